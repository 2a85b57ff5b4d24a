"""Clients of other makes are understood by their bytes, and get the statuses that they know."""

import struct

import federated_language as fl
import foreign_bytes as fb
import numpy as np
import pytest
from federated_language.proto import array_pb2, data_type_pb2
from foreign_bytes import CLIENTS, FLOAT, INT32, SERVER, STRING, array, federated, listed, message, raw

import fedstack
from fedstack.computations.codec.arrays import array_from_proto
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.errors import FedstackError, InvalidValueError, TypeMismatchError
from fedstack.proto import executor_pb2
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.executor.value_types import type_of_value
from fedstack.service.host.limits import ServiceLimits
from fedstack.testing.computation_builder import as_expression
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP
from fedstack.transport.wire.status import Code, code_of

INT, F32 = fl.TensorType(np.int32), fl.TensorType(np.float32)
PAIR = fl.StructType([("x", F32), ("y", F32)])
FLOAT_TYPE, INT_TYPE = fb.tensor_type(FLOAT), fb.tensor_type(INT32)


@fedstack.python_computation([np.float32, np.float32], np.float32)
def subtract(x, y):
    return x - y


@fedstack.python_computation([PAIR], np.float32)
def subtract_named(pair):
    return pair.x - pair.y


@fedstack.python_computation([fl.StructType([("pair", PAIR), ("more", F32)])], np.float32)
def subtract_inside(both):
    return both.pair.x - both.pair.y - both.more


@fedstack.python_computation([fl.StructType([F32, F32])], np.float32)
def subtract_unnamed(pair):
    return pair[0] - pair[1]


@fedstack.python_computation([(np.float32, [None])], np.float32)
def norm(x):
    return np.float32(np.abs(x).sum())


@fedstack.python_computation([np.float32], np.float32)
def broken(x):
    raise ValueError("no luck")


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def mean(values):
    return fl.federated_mean(values)


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS), fl.FederatedType(np.float32, fl.SERVER))
def differences(x, y):
    return fl.federated_map(subtract, (x, fl.federated_broadcast(y)))


@fl.federated_computation(fl.SequenceType([("b", F32), ("a", F32)]))
def of_elements(sequence):
    return fl.sequence_reduce(
        sequence,
        np.float32(0),
        fl.federated_computation(
            lambda total, e: subtract(subtract(total, e.b), e.a), [F32, fl.StructType([("b", F32), ("a", F32)])]
        ),
    )


class Peer:
    """A client that knows nothing but bytes."""

    def __init__(self, service):
        self._methods = service.methods[EXECUTOR_GROUP]
        self.executor = b""

    async def call(self, method, request):
        """Returns the fields of the answer by number; all of them are bytes."""
        return parsed(await self._methods[method].handle(request))

    async def open(self, clients=3):
        answer = await self.call("GetExecutor", fb.get_executor(clients=clients))
        self.executor = parsed(answer[1])[1]

    async def ref(self, method, request):
        return parsed((await self.call(method, request))[1])[1]

    async def value(self, value):
        return await self.ref("CreateValue", fb.create_value(self.executor, value))

    async def function(self, computation):
        # What the language's own messages look like is not in question here.
        return await self.value(message(2, as_expression(computation).proto.SerializeToString()))

    async def called(self, function, argument=None):
        return await self.ref("CreateCall", fb.create_call(self.executor, function, argument))

    async def struct(self, *members):
        return await self.ref("CreateStruct", fb.create_struct(self.executor, *members))

    async def selected(self, source, index):
        return await self.ref("CreateSelection", fb.create_selection(self.executor, source, index))

    async def compute(self, value):
        """Returns the bytes of the value."""
        return (await self.call("Compute", fb.compute(self.executor, value))).get(1, b"")


def parsed(content):
    """Reads fields that are all messages or bytes."""
    found = {}
    while content:
        tag, content = read_varint(content)
        assert tag & 7 == 2
        size, content = read_varint(content)
        found[tag >> 3], content = content[:size], content[size:]
    return found


def read_varint(content):
    value = 0
    for index, byte in enumerate(content):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, content[index + 1 :]
    raise AssertionError("no number")


@pytest.fixture
async def service():
    made = ExecutorService(fedstack.local_executor_factory(), policy=CarrierPolicy(modules=["*"]))
    yield made
    await made.close()


@pytest.fixture
async def peer(service):
    made = Peer(service)
    await made.open()
    return made


def f32(*values):
    return struct.pack(f"<{len(values)}f", *values)


def scalar(value):
    return array(listed(FLOAT, [value]))


# What TFF 0.87.0 and its successors send.


async def test_the_mean_of_clients_is_what_the_old_client_gets(peer):
    """The six calls of TFF 0.87.0, argument first."""
    values = federated(CLIENTS, *(scalar(k) for k in (1, 2, 6)), member=FLOAT_TYPE)
    argument = await peer.value(values)
    function = await peer.function(mean)
    result = await peer.compute(await peer.called(function, argument))
    assert result == federated(SERVER, scalar(3), all_equal=True, member=FLOAT_TYPE)
    assert await peer.call("DisposeExecutor", fb.dispose_executor(peer.executor)) == {}


async def test_two_arguments_come_one_by_one_and_are_put_together(peer):
    x = await peer.value(federated(CLIENTS, *(scalar(k) for k in (1, 2, 6)), member=FLOAT_TYPE))
    y = await peer.value(federated(SERVER, scalar(2), all_equal=True, member=FLOAT_TYPE))
    function = await peer.function(differences)
    for names, values in [((b"x", b"y"), (x, y)), ((b"", b""), (x, y)), ((b"y", b"x"), (y, x))]:
        argument = await peer.struct(*zip(names, values, strict=True))
        result = await peer.compute(await peer.called(function, argument))
        assert result == federated(CLIENTS, scalar(-1), scalar(0), scalar(4), member=FLOAT_TYPE)


@pytest.mark.parametrize("uri", [CLIENTS, SERVER])
async def test_a_federated_value_need_not_tell_its_member_type(peer, uri):
    values = [scalar(7)] * (3 if uri == CLIENTS else 1)
    value = await peer.value(federated(uri, *values, all_equal=uri == SERVER))
    assert await peer.compute(value) == federated(uri, *values, all_equal=uri == SERVER, member=FLOAT_TYPE)


async def test_an_all_equal_value_of_clients_comes_once(peer):
    value = await peer.value(federated(CLIENTS, scalar(7), all_equal=True))
    assert await peer.compute(value) == federated(CLIENTS, scalar(7), all_equal=True, member=FLOAT_TYPE)
    result = await peer.compute(await peer.called(await peer.function(mean), value))
    assert result == federated(SERVER, scalar(7), all_equal=True, member=FLOAT_TYPE)


ENCODINGS = {
    "int32, listed": (listed(INT32, [1, -2 % 2**64], [2]), np.array([1, -2], np.int32)),
    "int32, raw": (raw(INT32, struct.pack("<2i", 1, -2), [2]), np.array([1, -2], np.int32)),
    "int32 scalar, raw": (raw(INT32, struct.pack("<i", 5), []), np.int32(5)),
    "float, listed": (listed(FLOAT, [0.5], []), np.float32(0.5)),
    "matrix, listed": (listed(FLOAT, [1, 2, 3, 4, 5, 6], [2, 3]), np.arange(1, 7, dtype=np.float32).reshape(2, 3)),
    "matrix, raw": (raw(FLOAT, f32(1, 2, 3, 4, 5, 6), [2, 3]), np.arange(1, 7, dtype=np.float32).reshape(2, 3)),
    "none, listed": (listed(FLOAT, [], [0]), np.zeros(0, np.float32)),
    "none, raw": (raw(FLOAT, b"", [0]), np.zeros(0, np.float32)),
    "double": (listed(fb.DOUBLE, [0.1], []), np.float64(0.1)),
    "bool": (listed(fb.BOOL, [1, 0], [2]), np.array([True, False])),
    "half": (listed(fb.HALF, [0x4000], []), np.float16(2)),
    "complex": (listed(fb.COMPLEX64, [1, 2], []), np.complex64(1 + 2j)),
    "strings": (listed(STRING, [b"a\0", b"\xff"], [2]), np.array([b"a\0", b"\xff"], np.object_)),
    "string": (listed(STRING, [b"a\0"], []), b"a\0"),
    "int64": (listed(fb.INT64, [2**63], []), np.int64(-(2**63))),
}


@pytest.mark.parametrize("name", ENCODINGS)
async def test_arrays_are_read_in_both_encodings_and_written_in_the_one_that_all_read(peer, name):
    content, payload = ENCODINGS[name]
    answer = executor_pb2.Value.FromString(await peer.compute(await peer.value(array(content)))).array
    is_listed = np.ndim(payload) == 0 or payload.dtype == np.object_
    assert answer.HasField("content") != is_listed
    assert bool(answer.WhichOneof("kind")) == is_listed
    found = array_from_proto(answer)
    assert np.array_equal(found, payload)
    assert np.shape(found) == np.shape(payload)


async def test_floats_that_are_not_packed_are_read_too(peer):
    one_by_one = b"".join(fb.varint(1 << 3 | 5) + f32(k) for k in (1, 2))
    content = fb.number(1, FLOAT) + fb.shape([2]) + message(fb.LISTS[FLOAT], one_by_one)
    assert await peer.compute(await peer.value(array(content))) == array(raw(FLOAT, f32(1, 2), [2]))


async def test_a_literal_is_a_value(peer):
    """Also as an argument, and inside of a struct."""
    value = await peer.value(fb.literal(FLOAT_TYPE, listed(FLOAT, [5])))
    assert await peer.compute(value) == scalar(5)
    vector = await peer.value(fb.literal(fb.tensor_type(FLOAT, [2]), listed(FLOAT, [1, -2], [2])))
    assert await peer.compute(await peer.called(await peer.function(norm), vector)) == scalar(3)
    both = await peer.value(fb.struct_of((b"x", fb.literal(FLOAT_TYPE, listed(FLOAT, [5]))), (b"y", scalar(2))))
    assert await peer.compute(await peer.called(await peer.function(subtract_named), both)) == scalar(3)


async def test_structs_are_matched_by_position_where_names_are_missing(peer):
    function = await peer.function(subtract_named)
    for names in [(b"x", b"y"), (b"", b"")]:
        value = await peer.value(fb.struct_of(*zip(names, (scalar(5), scalar(2)), strict=True)))
        assert await peer.compute(await peer.called(function, value)) == scalar(3)


async def test_structs_are_matched_by_name_where_all_names_are_there(peer):
    function = await peer.function(subtract_named)
    members = [(b"y", scalar(2)), (b"x", scalar(5))]
    values = [await peer.value(member) for _, member in members]
    for value in [
        await peer.value(fb.struct_of(*members)),
        await peer.struct(*zip((b"y", b"x"), values, strict=True)),
    ]:
        assert await peer.compute(await peer.called(function, value)) == scalar(3)


@pytest.mark.parametrize("names", [(b"p", b"q"), (b"x", b"z"), (b"y", b""), (b"", b"x")])
async def test_structs_with_other_names_than_the_parameter_are_refused(peer, names):
    function = await peer.function(subtract_named)
    value = await peer.value(fb.struct_of(*zip(names, (scalar(5), scalar(2)), strict=True)))
    with pytest.raises(TypeMismatchError, match="found a member named"):
        await peer.called(function, value)


async def test_structs_in_structs_are_matched_by_name_too(peer):
    function = await peer.function(subtract_inside)
    inside = fb.struct_of((b"y", scalar(2)), (b"x", scalar(5)))
    for names in [(b"pair", b"more"), (b"", b"")]:
        value = await peer.value(fb.struct_of(*zip(names, (inside, scalar(1)), strict=True)))
        assert await peer.compute(await peer.called(function, value)) == scalar(2)


async def test_names_do_not_matter_to_a_parameter_without_names(peer):
    function = await peer.function(subtract_unnamed)
    value = await peer.value(fb.struct_of((b"b", scalar(5)), (b"a", scalar(2))))
    assert await peer.compute(await peer.called(function, value)) == scalar(3)


async def test_structs_nest_and_members_are_selected(peer):
    inner = fb.struct_of((b"b", scalar(1)), (b"a", array(listed(STRING, [b"s"]))))
    value = await peer.value(fb.struct_of(inner, scalar(2)))
    member = await peer.selected(await peer.selected(value, 0), 1)
    assert await peer.compute(member) == array(listed(STRING, [b"s"]))


async def test_a_function_in_a_struct_can_be_called(peer):
    function = message(2, as_expression(subtract).proto.SerializeToString())
    value = await peer.value(fb.struct_of((b"f", function), (b"argument", fb.struct_of(scalar(5), scalar(2)))))
    called = await peer.called(await peer.selected(value, 0), await peer.selected(value, 1))
    assert await peer.compute(called) == scalar(3)


async def test_an_intrinsic_is_called_with_what_other_calls_made(peer):
    clients = message(7, fb.placement(CLIENTS, False, FLOAT_TYPE))
    signature = fb.function_type(FLOAT_TYPE, FLOAT_TYPE)
    of_map = fb.function_type(fb.struct_type((b"", signature), (b"", clients)), clients)
    mapping = await peer.value(message(2, fb.computation(of_map, 3, message(1, b"federated_map"))))
    body = fb.computation(FLOAT_TYPE, 6, message(1, b"x"))
    same = fb.computation(signature, 4, message(1, b"x") + message(2, body))
    function = await peer.value(message(2, same))
    values = await peer.value(federated(CLIENTS, *(scalar(k) for k in (1, 2, 3)), member=FLOAT_TYPE))
    argument = await peer.struct((b"", function), (b"", values))
    result = await peer.compute(await peer.called(mapping, argument))
    assert result == federated(CLIENTS, *(scalar(k) for k in (1, 2, 3)), member=FLOAT_TYPE)


ELEMENTS = [[listed(FLOAT, [k]), listed(FLOAT, [10 * k])] for k in (1, 2)]
PAIR_TYPE = fb.struct_type((b"b", FLOAT_TYPE), (b"a", FLOAT_TYPE))


@pytest.mark.parametrize("element_type", [PAIR_TYPE, None], ids=["typed", "untyped"])
async def test_sequences_come_element_by_element_in_the_order_of_the_type(peer, element_type):
    value = await peer.value(fb.sequence(*ELEMENTS, element_type=element_type))
    assert await peer.compute(await peer.called(await peer.function(of_elements), value)) == scalar(-33)


async def test_a_short_last_batch_is_an_element_like_the_others(peer):
    batches = [[raw(FLOAT, f32(1, 2), [2])], [raw(FLOAT, f32(3), [1])]]
    for element_type in (fb.tensor_type(FLOAT, [-1 % 2**64]), None):
        value = await peer.value(fb.sequence(*batches, element_type=element_type))
        answer = executor_pb2.Value.FromString(await peer.compute(value)).sequence
        assert [list(array_from_proto(e.flat_value[0])) for e in answer.element] == [[1, 2], [3]]


async def test_an_empty_sequence_is_one_if_it_tells_its_type(peer):
    value = await peer.value(fb.sequence(element_type=PAIR_TYPE))
    assert await peer.compute(await peer.called(await peer.function(of_elements), value)) == scalar(0)
    assert await status_of(peer.value(fb.sequence())) == (Code.INVALID_ARGUMENT, "send the type with the value")


# With which status what is refused.


async def status_of(call):
    """Returns the code of a call that fails, and what its message says at the end."""
    with pytest.raises(FedstackError) as caught:
        await call
    return code_of(caught.value), str(caught.value).rpartition("; ")[2]


DATASETS = {
    "zipped saved model": message(4, message(1, b"PK\3\4")),
    "graph": message(4, message(2, PAIR_TYPE) + message(3, b"\x0a\x10graph of a dataset")),
    "graph without a type": message(4, message(3, b"\x0a\x10graph of a dataset")),
}


@pytest.mark.parametrize("name", DATASETS)
async def test_a_dataset_that_only_tensorflow_can_run_is_refused_by_name(peer, name):
    code, _ = await status_of(peer.value(DATASETS[name]))
    assert code == Code.INVALID_ARGUMENT
    if name == "graph":
        with pytest.raises(FedstackError, match="found a serialized dataset that only TensorFlow can read; conver"):
            await peer.value(DATASETS[name])
    # Also as what one client has.
    clients = federated(CLIENTS, *[DATASETS["graph"]] * 3, member=fb.sequence_type(PAIR_TYPE))
    with pytest.raises(FedstackError, match="client 0, found .*; convert the dataset to a list"):
        await peer.value(clients)


@pytest.mark.parametrize("inside", [False, True])
async def test_a_tensorflow_graph_is_refused_by_name(peer, inside):
    graph = message(1, message(1, b"type.googleapis.com/tensorflow.GraphDef") + message(2, b"graph"))
    leaf = fb.computation(fb.function_type(FLOAT_TYPE, FLOAT_TYPE), 2, graph)
    if inside:
        body = fb.computation(
            FLOAT_TYPE, 7, message(1, leaf) + message(2, fb.computation(FLOAT_TYPE, 6, message(1, b"x")))
        )
        leaf = fb.computation(fb.function_type(FLOAT_TYPE, FLOAT_TYPE), 4, message(1, b"x") + message(2, body))
    with pytest.raises(FedstackError, match="found tensorflow.GraphDef") as caught:
        await peer.value(message(2, leaf))
    assert code_of(caught.value) == Code.INVALID_ARGUMENT


BAD_VALUES = {
    "nothing": b"",
    "an array of no dtype": array(fb.shape([])),
    "an array of a dtype that nobody knows": array(fb.number(1, 999) + fb.shape([])),
    "a list that is too short": array(listed(INT32, [1], [2])),
    "a list that is too long": array(listed(INT32, [1, 2, 3], [2])),
    "no list": array(fb.number(1, INT32) + fb.shape([2])),
    "the list of another dtype": array(fb.number(1, FLOAT) + fb.shape([]) + message(6, fb.numbers(1, [1]))),
    "content that is too short": array(raw(INT32, b"abc", [1])),
    "a negative dimension": array(raw(INT32, b"", [-1])),
    "huge dimensions": array(raw(INT32, b"", [2**40, 2**40])),
    "strings as content": array(raw(STRING, b"abc", [3])),
    "two clients of three": federated(CLIENTS, scalar(1), scalar(2), member=FLOAT_TYPE),
    "four clients of three": federated(CLIENTS, *[scalar(1)] * 4, member=FLOAT_TYPE),
    "two values that are one": federated(CLIENTS, scalar(1), scalar(2), all_equal=True),
    "two values at the server": federated(SERVER, scalar(1), scalar(2), all_equal=True),
    "not all-equal at the server": federated(SERVER, scalar(1), member=FLOAT_TYPE),
    "no value and no type": federated(CLIENTS),
    "a placement that nobody knows": federated(b"moon", scalar(1)),
    "no placement": message(5, message(2, scalar(1))),
    "another member than its type": federated(SERVER, scalar(1), all_equal=True, member=INT_TYPE),
    "placed in placed": federated(SERVER, federated(SERVER, scalar(1), all_equal=True), all_equal=True),
    "a name twice": fb.struct_of((b"a", scalar(1)), (b"a", scalar(2))),
    "a name that is kept": fb.struct_of((b"_asdict", scalar(1))),
    "elements of two types": fb.sequence([listed(FLOAT, [1])], [listed(INT32, [1])]),
    "elements of two lengths": fb.sequence([listed(FLOAT, [1])], []),
    "a computation of no kind": message(2, message(1, FLOAT_TYPE)),
    "a computation of no type": message(2, message(14, message(1, listed(FLOAT, [1])))),
    "a literal of another type": fb.literal(INT_TYPE, listed(FLOAT, [1])),
    "an unbound name": message(2, fb.computation(FLOAT_TYPE, 6, message(1, b"x"))),
}


@pytest.mark.parametrize("name", BAD_VALUES)
async def test_what_is_no_value_is_an_invalid_argument(peer, service, name):
    code, _ = await status_of(peer.value(BAD_VALUES[name]))
    assert code == Code.INVALID_ARGUMENT
    assert service.status().values == 0


@pytest.mark.parametrize(
    "cardinalities", [{"clients": -1}, {"moon": 1}, {"clients": 1, "": 1}], ids=["negative", "moon", "nowhere"]
)
async def test_cardinalities_that_cannot_be_are_an_invalid_argument(service, cardinalities):
    code, _ = await status_of(Peer(service).call("GetExecutor", fb.get_executor(**cardinalities)))
    assert code == Code.INVALID_ARGUMENT


async def test_more_clients_and_sessions_than_allowed_exhaust_a_resource():
    limits = ServiceLimits(max_clients=5, max_sessions=2)
    service = ExecutorService(fedstack.local_executor_factory(), limits=limits)
    peer = Peer(service)
    assert (await status_of(peer.open(6)))[0] == Code.RESOURCE_EXHAUSTED
    await peer.open(5)
    await peer.open(0)
    assert (await status_of(peer.open(1)))[0] == Code.RESOURCE_EXHAUSTED
    assert len(service.status().session) == 2
    await service.close()


def calls_with(executor, value):
    return {
        "CreateValue": fb.create_value(executor, scalar(1)),
        "CreateCall": fb.create_call(executor, value),
        "CreateStruct": fb.create_struct(executor, (b"", value)),
        "CreateSelection": fb.create_selection(executor, value, 0),
        "Compute": fb.compute(executor, value),
    }


@pytest.mark.parametrize("executor", [b"", b"clients=3/21057/0", b"\xf0\x9f\x8c\x99" * 1000])
@pytest.mark.parametrize("method", calls_with(b"", b""))
async def test_an_executor_that_is_not_there_is_a_failed_precondition(peer, method, executor):
    code, advice = await status_of(peer.call(method, calls_with(executor, b"0")[method]))
    assert (code, advice) == (Code.FAILED_PRECONDITION, "create the executor again")


async def test_letting_go_of_what_is_not_there_is_fine(peer):
    for executor in (b"", b"clients=3/21057/0"):
        assert await peer.call("Dispose", fb.dispose(executor, b"0", b"1")) == {}
        assert await peer.call("DisposeExecutor", fb.dispose_executor(executor)) == {}
    assert await peer.call("Dispose", b"") == {}
    assert await peer.call("DisposeExecutor", b"") == {}


async def test_an_executor_is_gone_when_it_has_been_let_go_of(peer, service):
    value = await peer.value(scalar(1))
    for _ in range(2):
        assert await peer.call("DisposeExecutor", fb.dispose_executor(peer.executor)) == {}
    assert (await status_of(peer.compute(value)))[0] == Code.FAILED_PRECONDITION
    assert await peer.call("Dispose", fb.dispose(peer.executor, value)) == {}
    assert len(service.status().session) == 0


@pytest.mark.parametrize("method", [name for name in calls_with(b"", b"") if name != "CreateValue"])
async def test_a_value_that_is_not_there_is_not_found(peer, method):
    known = await peer.value(scalar(1))
    await peer.call("Dispose", fb.dispose(peer.executor, known))
    for value in (b"", b"0", known, b"x" * 1000):
        code, _ = await status_of(peer.call(method, calls_with(peer.executor, value)[method]))
        assert code == Code.NOT_FOUND


async def test_an_argument_that_is_not_there_is_not_found(peer):
    function = await peer.function(mean)
    assert (await status_of(peer.called(function, b"0")))[0] == Code.NOT_FOUND


async def test_of_values_to_let_go_of_those_that_are_there_go(peer, service):
    one, other = await peer.value(scalar(1)), await peer.value(scalar(2))
    code, _ = await status_of(peer.call("Dispose", fb.dispose(peer.executor, one, b"0", other)))
    assert code == Code.NOT_FOUND
    assert service.status().values == 0


async def test_calls_that_do_not_fit_are_invalid_arguments(peer):
    number, pair = await peer.value(scalar(1)), await peer.value(fb.struct_of(scalar(1), scalar(2)))
    function = await peer.function(subtract)
    for call in (
        peer.called(number),
        peer.called(number, number),
        peer.called(function),
        peer.called(function, number),
        peer.called(function, function),
        peer.selected(number, 0),
        peer.selected(function, 0),
        peer.selected(pair, 2),
        peer.selected(pair, -1),
        peer.selected(pair, 2**31 - 1),
        peer.struct((b"a", number), (b"a", number)),
        peer.struct((b"_asdict", number)),
        peer.compute(function),
    ):
        assert (await status_of(call))[0] == Code.INVALID_ARGUMENT


async def test_a_function_that_raises_does_so_when_its_value_is_computed(peer):
    called = await peer.called(await peer.function(broken), await peer.value(scalar(1)))
    struct = await peer.struct((b"a", called), (b"b", await peer.value(scalar(1))))
    for value in (called, struct, called):
        with pytest.raises(FedstackError, match="raised ValueError: no luck") as caught:
            await peer.compute(value)
        assert code_of(caught.value) == Code.UNKNOWN
    assert await peer.compute(await peer.selected(struct, 1)) == scalar(1)


@pytest.mark.parametrize("content", [b"\xff", b"\x0a\x05abc", b"\x0a\xff\xff\xff\xff\x7f"])
@pytest.mark.parametrize(
    "method", executor_pb2_methods := [*calls_with(b"", b""), "GetExecutor", "Dispose", "DisposeExecutor"]
)
async def test_what_is_no_message_is_an_invalid_argument(peer, method, content):
    with pytest.raises(FedstackError, match=f"{method}Request, found {len(content)} bytes that cannot be") as e:
        await peer.call(method, content)
    assert code_of(e.value) == Code.INVALID_ARGUMENT


async def test_messages_nested_beyond_measure_are_invalid_arguments(peer):
    value = scalar(1)
    for _ in range(10_000):
        value = fb.struct_of(value)
    with pytest.raises(FedstackError, match="nested too deep") as caught:
        await peer.value(value)
    assert code_of(caught.value) == Code.INVALID_ARGUMENT


async def test_sessions_share_nothing(service):
    one, other = Peer(service), Peer(service)
    await one.open(2)
    await other.open(2)
    assert one.executor != other.executor
    value = await one.value(scalar(1))
    assert (await status_of(other.compute(value)))[0] == Code.NOT_FOUND
    assert (await status_of(other.call("Dispose", fb.dispose(other.executor, value))))[0] == Code.NOT_FOUND
    assert await one.compute(value) == scalar(1)
    await other.call("DisposeExecutor", fb.dispose_executor(other.executor))
    assert await one.compute(value) == scalar(1)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (array_pb2.Array(dtype=99, shape={"dim": [1]}), "a known dtype at value, found an array of dtype number 99"),
        (array_pb2.Array(dtype=data_type_pb2.DT_INT32, shape={"dim": [2, -1]}), "at value, found the dimension -1"),
        (
            array_pb2.Array(dtype=data_type_pb2.DT_INT32, shape={"unknown_rank": True}),
            "at value, found an unknown rank",
        ),
    ],
)
def test_what_is_wrong_with_an_array_is_said_of_what_is_wrong(sent, told):
    with pytest.raises(InvalidValueError, match=told):
        type_of_value(executor_pb2.Value(array=sent))
