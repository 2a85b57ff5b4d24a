"""Client phases survive the wire with all that belongs to them, and what a peer makes up is refused by name."""

import asyncio

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, note, settings
from random_computations import SLOW_IS_FINE, bare, programs

import fedstack
from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.leaves.portability import portable
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.schedule import schedule
from fedstack.computations.plan.tasks import PhaseTask
from fedstack.computations.plan.trace import trace
from fedstack.computations.values.columns import ConstantColumn, ListColumn, ScalarColumn
from fedstack.errors import (
    CardinalityError,
    FedstackError,
    InvalidComputationError,
    InvalidValueError,
    TypeMismatchError,
    UnsupportedIntrinsicError,
)
from fedstack.executors import (
    ComposingExecutor,
    FederatingExecutor,
    LeafExecutor,
    ReferenceResolvingExecutor,
    SequenceExecutor,
)
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.folds.aggregations import FoldArgument, partial_states
from fedstack.executors.remote.phase_copies import computations_of
from fedstack.executors.remote.phase_messages import (
    SentFunctions,
    check_first_client,
    phase_template,
    read_phase,
    write_phase,
)
from fedstack.executors.remote.phase_results import read_result, write_result
from fedstack.executors.survivors.ending import Ending
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.foundations.segments import SegmentReader
from fedstack.proto.extensions_pb2 import Packed, PhaseRequest, PhaseResponse
from fedstack.testing.computation_builder import (
    as_expression,
    at_clients,
    at_server,
    computation,
    function,
    intrinsic,
    literal,
    struct,
)
from fedstack.transport.wire.frames import data_frames, parse_frame

INT, FLOAT = fl.TensorType(np.int32), fl.TensorType(np.float32)
VECTOR = fl.TensorType(np.float32, [None])
PLENTY = 1 << 30


@fedstack.python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


ADD = as_expression(add)


def no_kept(value_id):
    raise AssertionError(f"Expected no input that was kept, found {value_id!r}")


def moved(message, segments, unpacker, read):
    """Sends a message and the bytes beside it, and returns what `read` makes of them."""
    received = read(type(message).FromString(message.SerializeToString()), unpacker)
    reader = SegmentReader(unpacker.buffers)
    for frame in data_frames(segments):
        reader.feed(parse_frame(frame).data)
    reader.finish()
    unpacker.finish()
    return received


def resent_phase(phase, inputs, arguments, clients):
    packer = Packer(large_bytes=1)
    request = write_phase(phase_template(phase, lambda found: found, "here"), phase, inputs, arguments, clients, packer)
    return moved(
        request,
        packer.segments,
        Unpacker(max_bytes=PLENTY, clients=len(clients)),
        lambda r, u: read_phase(r, u, no_kept),
    )


def resent_result(phase, arguments, clients, result):
    packer, states = Packer(large_bytes=1), partial_states(phase, arguments)
    response = write_result(phase, states, result, packer)
    unpacker = Unpacker(max_bytes=PLENTY, clients=len(clients))
    return moved(response, packer.segments, unpacker, lambda r, u: read_result(phase, states, clients, r, u)).complete()


class SentElsewhere(PhaseRunner):
    """Runs phases as a worker would: of a message, and with an answer that is one."""

    def __init__(self, clients):
        self.executor = FederatingExecutor(SequenceExecutor(LeafExecutor()), clients)

    async def run_phase(self, phase, inputs, arguments, clients):
        received = resent_phase(phase, inputs, arguments, clients)
        assert received.clients == clients
        result = await self.executor.phases.run_phase(
            received.phase, received.inputs, received.arguments, received.clients
        )
        # Which type a fold has, the one that sent the phase knows as well as the one that ran it.
        return resent_result(
            phase, arguments, clients, resent_result(received.phase, received.arguments, clients, result)
        )

    def close(self):
        self.executor.close()


def elsewhere(clients):
    counts = [clients // 3, clients - clients // 3]
    server = SequenceExecutor(LeafExecutor())
    return ReferenceResolvingExecutor(ComposingExecutor(server, [SentElsewhere(count) for count in counts], counts))


def here(clients):
    return ReferenceResolvingExecutor(FederatingExecutor(SequenceExecutor(LeafExecutor()), clients))


async def run(executor, computation, value):
    function = await executor.create_value(computation)
    argument = await executor.create_value(value, computation.type_signature.parameter)
    result = await (await executor.create_call(function, argument)).compute()
    executor.close()
    return result


def bits(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(bits, value))
    return value.dtype, np.shape(value), value.tobytes()


def check(program):
    computation, value, _, clients = program
    note(computation.to_building_block().formatted_representation())
    found, expected = (asyncio.run(run(make(clients), computation, value)) for make in (elsewhere, here))
    assert bits(bare(found)) == bits(bare(expected))


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(programs())
def test_the_phases_of_a_random_computation_mean_the_same_elsewhere(program):
    check(program)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=examples(4000), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(programs() | programs(fuel=8))
def test_the_phases_of_many_random_computations_mean_the_same_elsewhere(program):
    check(program)


def of_folds(values, weights, server):
    """Every aggregation, with functions that capture values at the server."""
    member = values.type.member
    captured = server
    total = intrinsic(
        "federated_aggregate",
        values,
        literal(np.int32(0), np.int32),
        function(lambda a, v: ADD(ADD(a, v), captured), INT, member),
        function(lambda a, b: ADD(a, b), INT, INT),
        function(lambda a: ADD(a, captured), INT),
    )
    return struct(
        total,
        *(intrinsic(f"federated_{kind}", values) for kind in ("sum", "min", "max")),
        intrinsic("federated_mean", weights),
        intrinsic("federated_weighted_mean", weights, values),
        intrinsic("federated_secure_sum", values, literal(np.int32(1000), np.int32)),
        intrinsic("federated_secure_sum_bitwidth", values, literal(np.int32(10), np.int32)),
        values,
    )


ALL = computation(of_folds, at_clients(INT), at_clients(FLOAT), INT)


@pytest.mark.parametrize("clients", [0, 1, 2, 3, 7, 8])
async def test_every_aggregation_survives_with_what_its_functions_capture(clients):
    values = list(range(clients)), [0.1 * k for k in range(clients)], 5
    found, expected = [await run(make(clients), ALL, values) for make in (elsewhere, here)]
    assert bits(bare(found))[1:] == bits(bare(expected))[1:]
    # Each of the two parts begins at zero, so only what is captured by each client is counted once for each.
    assert bare(found)[0] == bare(expected)[0] == sum(range(clients)) + 5 * clients + 5


def phase_of(body, *types):
    """Returns the only phase of a computation."""
    (task,) = [t for t in schedule(trace(computation(body, *types).to_proto())).tasks if isinstance(t, PhaseTask)]
    return task.phase


SUM = phase_of(lambda x: intrinsic("federated_sum", x), at_clients(INT))
MEAN = phase_of(lambda x, w: intrinsic("federated_weighted_mean", x, w), at_clients(VECTOR), at_clients(INT))
SECURE = phase_of(lambda x: intrinsic("federated_secure_sum", x, literal(np.int32(9), np.int32)), at_clients(INT))
AGGREGATE = phase_of(
    lambda x, k: intrinsic(
        "federated_aggregate",
        x,
        literal(np.int32(0), np.int32),
        function(lambda a, v: ADD(ADD(a, v), k), INT, INT),
        ADD,
        function(lambda a: a, INT),
    ),
    at_clients(INT),
    INT,
)
HELD = phase_of(lambda x: intrinsic("federated_map", function(lambda v: ADD(v, v), INT), x), at_clients(INT))

INTS = ScalarColumn(np.arange(3, dtype=np.int32))
VECTORS = ListColumn([np.full(4, k, np.float32) for k in range(3)])
NO_ARGUMENT = FoldArgument([], [])
ZERO = FoldArgument([np.int32(0)], [[np.int32(7)], [], []])
CASES = {
    "sum": (SUM, [INTS], [NO_ARGUMENT]),
    "mean": (MEAN, [VECTORS, INTS], [NO_ARGUMENT]),
    "secure sum": (SECURE, [INTS], [FoldArgument([np.int32(9)], [])]),
    "aggregate": (AGGREGATE, [INTS], [ZERO]),
    "held": (HELD, [INTS], []),
}


def request_of(name, clients=range(10, 13)):
    phase, inputs, arguments = CASES[name]
    return write_phase(
        phase_template(phase, lambda found: found, "test"),
        phase,
        inputs,
        arguments,
        clients,
        Packer(large_bytes=PLENTY),
    )


def read(request, clients=3):
    return read_phase(request, Unpacker(max_bytes=PLENTY, clients=clients), no_kept)


@pytest.mark.parametrize("name", CASES)
def test_a_phase_is_read_as_it_was_written(name):
    phase, inputs, arguments = CASES[name]
    received = read(request_of(name))
    assert received.clients == range(10, 13)
    assert [list(column) for column in received.inputs][-1] == list(inputs[-1])
    assert received.phase.input_types == phase.input_types
    assert received.phase.held == phase.held
    assert [f.uri for f in received.phase.folds] == [f.uri for f in phase.folds]
    for found, fold in zip(received.phase.folds, phase.folds, strict=True):
        assert (found.results, found.member, found.weight) == (fold.results, fold.member, fold.weight)
        assert (found.server_types, found.signatures, found.type) == (fold.server_types, fold.signatures, fold.type)
    for found, argument in zip(received.arguments, arguments, strict=True):
        assert (list(found.values), [list(c) for c in found.captures]) == (argument.values, argument.captures)


def test_what_does_not_change_is_written_once_per_phase_and_peer():
    asked = []

    def portable(found):
        asked.append(found)
        return found

    phase = phase_of(lambda x: intrinsic("federated_sum", x), at_clients(INT))
    for key in ("one", "one", "two", "one"):
        write_phase(phase_template(phase, portable, key), phase, [INTS], [NO_ARGUMENT], range(3), Packer())
    assert len(asked) == 2


def test_all_workers_of_a_phase_receive_the_functions_as_they_were_sent_first():
    factor = 2

    def scale(x):
        return np.int32(factor * x)

    leaf = fedstack.python_computation(np.int32, np.int32)(scale)
    phase = phase_of(lambda x: intrinsic("federated_map", leaf, x), at_clients(INT))

    def template():
        return phase_template(phase, lambda found: portable(found, Destination(takes_code=True)), "here", True)

    with current_scope().adding(SentFunctions(phase)).entered():
        first, factor = template(), 3
        assert template() == first
    assert template() != first


def test_all_computations_of_a_phase_are_there_to_be_looked_at():
    assert len(computations_of(request_of("sum"))) == 1
    assert len(computations_of(request_of("aggregate"))) == 4


def test_a_phase_with_the_same_program_is_planned_once():
    assert read(request_of("sum")).phase.program is read(request_of("sum")).phase.program


def test_a_broadcast_is_sent_once():
    phase = phase_of(
        lambda x, s: intrinsic(
            "federated_sum",
            intrinsic(
                "federated_map",
                ADD,
                intrinsic("federated_zip_at_clients", struct(x, intrinsic("federated_broadcast", s))),
            ),
        ),
        at_clients(INT),
        at_server(INT),
    )
    received = resent_phase(phase, [INTS, ConstantColumn(np.int32(5), 3)], [NO_ARGUMENT], range(3))
    assert isinstance(received.inputs[1], ConstantColumn)


def program(body, *types):
    return function(body, *types).proto


def set_program(*arguments):
    return lambda request: request.program.CopyFrom(program(*arguments))


def set_input(type_spec, column):
    def change(request):
        request.input[0].type.CopyFrom(type_spec.to_proto())
        request.input[0].value.Clear()
        Packer().pack(request.input[0].value, column, type_spec)

    return change


def set_uri(uri):
    return lambda request: setattr(request.fold[0], "uri", uri)


def set_function(position, body):
    return lambda request: request.fold[0].function[position].computation.CopyFrom(body.proto)


PAIR = fl.StructType([INT])
Malformed, Misfit = InvalidComputationError, TypeMismatchError
ONE = literal(np.int32(1), np.int32)
BAD = [
    ("sum", lambda r: r.ClearField("program"), Malformed, "Expected a type of Federated Language"),
    ("sum", lambda r: r.program.CopyFrom(ONE.proto), Malformed, "Expected a func"),
    ("sum", lambda r: r.program.CopyFrom(struct(ONE).proto),
     Malformed, "Expected a function as the program of a phase, found a computation of type <int32>"),
    ("sum", set_program(lambda x: x, INT), Malformed, "Expected the parameter to be a struct of inputs"),
    ("sum", set_program(lambda x: x[0], PAIR), Malformed, "Expected the result to be a struct"),
    ("sum", set_program(lambda: struct(ONE)), Malformed, "found a function of 0"),
    ("sum", set_program(lambda x: struct(intrinsic("federated_value_at_server", x[0])), PAIR), Malformed,
     "Expected only local work in a mapped function"),
    ("sum", lambda r: r.input.add(), Malformed, "Expected a function of 2 inputs, found a function of 1"),
    ("sum", lambda r: r.ClearField("input"), Malformed, "Expected a function of 0 inputs, found a function of 1"),
    ("sum", lambda r: r.input[0].type.Clear(), Malformed, "Expected a type of Federated Language"),
    ("sum", set_input(INT, np.int32(1)), Malformed, "Expected values of type int32 as input 0 of a phase"),
    ("sum", set_input(at_clients(FLOAT), ScalarColumn(np.zeros(3, np.float32))), Malformed, "type {float32}"),
    ("sum", set_input(at_clients(INT), ScalarColumn(np.zeros(4, np.int32))), CardinalityError, "found 4 values"),
    ("sum", lambda r: r.input[0].value.Clear(), Misfit, "found an empty message"),
    ("sum", set_uri("federated_summ"), UnsupportedIntrinsicError, "found 'federated_summ'"),
    ("sum", set_uri("federated_map"), Malformed, "Expected an aggregation at the end of a phase, found"),
    ("sum", set_uri("federated_secure_sum"), Malformed, "Expected 2 arguments for federated_secure_sum"),
    ("sum", set_uri("federated_mean"), Misfit, "Expected floating-point or complex numbers for a mean"),
    ("sum", lambda r: r.fold[0].result.append(0), Malformed, "Expected 1 arguments for federated_sum"),
    ("sum", lambda r: r.fold[0].ClearField("result"), Malformed, "found 0 from clients"),
    ("sum", lambda r: r.fold[0].result.__setitem__(0, 1), Malformed, "Expected a result index from 0 to 0"),
    ("sum", lambda r: r.held.append(1), Malformed, "Expected a result index from 0 to 0 in a phase, found 1"),
    ("mean", lambda r: r.fold[0].result.pop(), Malformed, "Expected 2 arguments for federated_weighted_mean"),
    ("mean", lambda r: r.fold[0].result.reverse(), Misfit, "Expected"),
    ("secure sum", lambda r: r.fold[0].argument.pop(), Malformed, "and 0 functions"),
    ("secure sum", lambda r: r.fold[0].argument[0].value.Clear(), Misfit, "found an empty message"),
    ("secure sum", lambda r: r.fold[0].argument[0].type.CopyFrom(at_clients(INT).to_proto()), FedstackError, ""),
    ("aggregate", lambda r: r.fold[0].function.pop(), Malformed, "and 2 functions"),
    ("aggregate", lambda r: r.fold[0].function[0].capture.pop(), Malformed, "Expected a function of 1 inputs"),
    ("aggregate", lambda r: r.fold[0].function[1].capture.add(), Malformed, "Expected a function of 2 inputs"),
    ("aggregate", lambda r: r.fold[0].function[0].capture[0].type.CopyFrom(FLOAT.to_proto()), Malformed,
     "Expected a captured value of type int32, found a value of type float32"),
    ("aggregate", set_function(1, function(lambda x: x, PAIR)), FedstackError, "Expected"),
    ("aggregate", set_function(1, function(lambda x: struct(x[0], x[0]), fl.StructType([fl.StructType([INT, INT])]))),
     Malformed, "Expected a function with one result in an aggregation, found a function with 2"),
    ("aggregate", set_function(1, ONE), Malformed, "Expected"),
    ("aggregate", lambda r: r.fold[0].argument[0].type.CopyFrom(at_clients(INT).to_proto()), FedstackError, "Expected"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "error", "message"), BAD)
def test_what_is_no_phase_is_refused(name, change, error, message):
    request = request_of(name)
    change(request)
    with pytest.raises(error) as caught:
        read(request)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("first", "clients", "fits"),
    [
        (0, 100, True),
        (2**63 - 101, 100, True),
        (2**63 - 100, 100, False),
        (2**64 - 1, 1, False),
        (0, 2**64 - 1, False),
    ],
)
def test_the_numbers_of_a_phase_are_looked_at_first(first, clients, fits):
    request = PhaseRequest(first_client=first, clients=clients)
    if fits:
        check_first_client(request)
    else:
        with pytest.raises(InvalidValueError, match=f"Expected clients with indices up to {2**63 - 1} in a phase"):
            check_first_client(request)


async def answer_of(name, clients=range(10, 13)):
    phase, inputs, arguments = CASES[name]
    executor = FederatingExecutor(SequenceExecutor(LeafExecutor()), len(clients))
    result = await executor.phases.run_phase(phase, inputs, arguments, clients)
    executor.close()
    return write_result(phase, partial_states(phase, arguments), result, Packer(large_bytes=PLENTY))


def read_answer(name, response, clients=range(10, 13), tolerance=None):
    phase, _, arguments = CASES[name]
    unpacker = Unpacker(max_bytes=PLENTY, clients=len(clients))
    return read_result(phase, partial_states(phase, arguments), clients, response, unpacker, tolerance)


def first_tree(response):
    return response.fold[0].tree[0]


def swap(response):
    tree = first_tree(response)
    first = PhaseResponse.Partial.FromString(tree.partial[0].SerializeToString())
    tree.partial[0].CopyFrom(tree.partial[1])
    tree.partial[1].CopyFrom(first)


WRONG = [
    ("sum", lambda r: r.fold.pop(), "aggregations and 0 columns, found 0 aggregations and 0 columns"),
    ("sum", lambda r: r.held.add(), "found 1 aggregations and 1 columns"),
    ("sum", lambda r: r.fold[0].tree.pop(), "Expected the folds of 1 tensors, found the folds of 0"),
    ("sum", lambda r: r.fold[0].tree.add(), "Expected the folds of 1 tensors, found the folds of 2"),
    ("sum", lambda r: first_tree(r).partial.pop(), "of clients 10 to 12, found the fold of 2 of these clients"),
    ("sum", lambda r: first_tree(r).ClearField("partial"), "of clients 10 to 12, found the fold of 0 of these clients"),
    ("sum", swap, "Expected the fold of clients 10 to 12, found the fold of block"),
    ("sum", lambda r: setattr(first_tree(r).partial[0], "level", 63), "found the fold of block 5 of 2^63"),
    ("sum", lambda r: setattr(first_tree(r).partial[0], "level", 0), "found the fold of block 5 of 2^0"),
    (
        "sum",
        lambda r: setattr(first_tree(r).partial[0], "position", 2**64 - 1),
        "found the fold of block 18446744073709551615 of",
    ),
    ("sum", lambda r: first_tree(r).partial.add(level=2, position=3), "found the fold of block"),
    ("sum", lambda r: first_tree(r).partial[0].value.Clear(), "Expected int32, found an empty message"),
    ("sum", lambda r: setattr(first_tree(r).partial[0].value.array, "dtype", 1), "Expected int32, found float32"),
    ("mean", lambda r: setattr(r.fold[0], "clients", 2), "Expected the fold of clients 10 to 12, found 2"),
    ("mean", lambda r: r.fold[0].ClearField("weights"), "of clients 10 to 12, found the fold of 0 of these clients"),
    ("mean", lambda r: setattr(r.fold[0].weights.partial[0].value.array, "dtype", 1), "Expected float64, found"),
    ("aggregate", lambda r: r.fold[0].ClearField("tree"), "clients 10 to 12, found no tree over blocks of 8 clients"),
    ("aggregate", lambda r: first_tree(r).partial.add(level=2), "clients 10 to 12, found no tree over blocks of 8"),
    ("aggregate", lambda r: first_tree(r).partial.add(level=3, position=1), "found the fold of block 1 of 2^3"),
    ("aggregate", lambda r: r.fold[0].value.pop(), "fold of clients 10 to 12, found 2 values instead of 3"),
    ("aggregate", lambda r: r.fold[0].value.add(), "fold of clients 10 to 12, found 4 values instead of 3"),
    ("aggregate", lambda r: r.fold[0].value[1].Clear(), "found an empty message; at a value of the fed"),
    ("held", lambda r: r.held.pop(), "Expected the results of 0 aggregations and 1 columns"),
    ("held", lambda r: r.held[0].Clear(), "found an empty message; at a result of the clients"),
    ("held", lambda r: r.held[0].CopyFrom(Packed(same=Packed.Same(clients=2, member=r.held[0]))), "Expected"),
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_the_answer_to_a_phase_is_read_as_it_was_written(name):
    read_answer(name, await answer_of(name)).complete()


@pytest.mark.parametrize(("name", "change", "message"), WRONG)
async def test_what_is_no_answer_to_a_phase_is_refused(name, change, message):
    response = await answer_of(name)
    change(response)
    with pytest.raises(FedstackError) as caught:
        read_answer(name, response)
    assert message in str(caught.value)


async def test_folds_that_came_beside_their_message_may_be_written_into():
    phase, inputs, arguments = CASES["mean"]
    executor = FederatingExecutor(SequenceExecutor(LeafExecutor()), 3)
    result = await executor.phases.run_phase(phase, inputs, arguments, range(3))
    executor.close()
    received = resent_result(phase, arguments, range(3), result)
    _, _, (tree,) = received.partials[0]
    assert all(partial.owned and partial.value.flags.writeable for partial in tree)


def is_unfinished(response, first_client, clients):
    response.unfinished.add(first_client=first_client, clients=clients)


TOLERANT, ENDING = Tolerance(), Tolerance(ending=Ending(2, 3))
AGAIN = Tolerance(retries=1, retries_elsewhere=True)
WRONG_FAILURES = [
    (None, lambda r: r.failure.add(client=10), "found a failure of client 10"),
    (TOLERANT, lambda r: r.failure.add(client=13), "found a failure of client 13"),
    (TOLERANT, lambda r: [r.failure.add(client=11), r.failure.add(client=11)], "found a failure of client 11"),
    (TOLERANT, lambda r: r.failure.add(client=12), "found the fold of clients 12 to 12, 1 of them absent"),
    (TOLERANT, lambda r: r.again.add(client=10), "found a failure of client 10"),
    (AGAIN, lambda r: r.again.add(client=9), "found a failure of client 9"),
    (AGAIN, lambda r: [r.failure.add(client=12), r.again.add(client=12)], "found a failure of client 12"),
    (AGAIN, lambda r: r.again.add(client=11), "found the fold of clients 10 to 11, some of which run again"),
    (AGAIN, lambda r: r.again.add(client=10), "found the fold of block 5 of 2^1 clients"),
    (AGAIN, lambda r: r.again.add(client=12), "found the fold of block 12 of 2^0 clients"),
    (TOLERANT, lambda r: is_unfinished(r, 10, 1), "found clients 10 to 10 that are late"),
    (ENDING, lambda r: is_unfinished(r, 10, 0), "that are late"),
    (ENDING, lambda r: is_unfinished(r, 10, 2**62), "that are late"),
    (ENDING, lambda r: is_unfinished(r, 9, 2), "found clients 9 to 10 that are late"),
    (ENDING, lambda r: [is_unfinished(r, 10, 2), is_unfinished(r, 11, 1)], "found client 11 that is late"),
    (ENDING, lambda r: [r.failure.add(client=12), is_unfinished(r, 12, 1)], "found client 12 that is late"),
    (ENDING, lambda r: is_unfinished(r, 10, 3), "found the fold of block 5 of 2^1 clients"),
    (TOLERANT, lambda r: is_unfinished(r, 10, 3), "that are late"),
]  # fmt: skip


@pytest.mark.parametrize(("tolerance", "change", "message"), WRONG_FAILURES)
async def test_failures_that_do_not_fit_the_folds_are_refused(tolerance, change, message):
    response = await answer_of("sum")
    change(response)
    for failure in (*response.failure, *response.again):
        failure.status.code, failure.status.message = 13, "a failure"
    with pytest.raises(InvalidValueError) as caught:
        read_answer("sum", response, tolerance=tolerance)
    assert message in str(caught.value)
