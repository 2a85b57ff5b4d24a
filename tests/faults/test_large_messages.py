"""What is large, or stands for much more than it is, keeps nobody else waiting at a worker, and never stops it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from federated_language.proto import computation_pb2 as pb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedstack
from fedstack.computations.codec.value_messages import value_from_proto, value_to_proto
from fedstack.errors import FedstackError, ResourceLimitError
from fedstack.executors.remote.worker_stubs import make_stubs
from fedstack.proto import executor_pb2 as messages
from fedstack.service import local_worker_pool
from fedstack.service.executor.value_types import type_of_value
from fedstack.service.pool.worker_pool import WorkerPool
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP
from fedstack.transport.peers.io_loop import io_loop

pytestmark = pytest.mark.long
WALL = 100.0
# A client takes a worker for dead that shows no sign of life for four heartbeats of so many seconds.
HEARTBEAT_SECONDS = 5.0
INT = fl.TensorType(np.int32)
PAIR = fl.StructType([("x", np.float32), ("y", np.int32)])


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with local_worker_pool(1) as made:
        yield made


class Client:
    """A client with a session of its own, which speaks the plain executor service."""

    def __init__(self, pool: WorkerPool) -> None:
        (self.stub,) = make_stubs(pool, None)
        self.executor = self.call("GetExecutor", messages.GetExecutorRequest(), messages.GetExecutorResponse).executor

    def call(self, method: str, request: Any, response: Any) -> Any:
        content = request if isinstance(request, bytes) else request.SerializeToString()
        path = f"/{EXECUTOR_GROUP}/{method}"
        return response.FromString(io_loop.run_sync(self.stub.connection.unary(path, content, WALL), WALL + 5))

    def create(self, value: messages.Value) -> messages.ValueRef:
        request = messages.CreateValueRequest(executor=self.executor, value=value)
        return self.call("CreateValue", request, messages.CreateValueResponse).value_ref

    def create_struct(self, *members: messages.ValueRef) -> messages.ValueRef:
        elements = [messages.CreateStructRequest.Element(value_ref=member) for member in members]
        request = messages.CreateStructRequest(executor=self.executor, element=elements)
        return self.call("CreateStruct", request, messages.CreateStructResponse).value_ref

    def create_selection(self, source: messages.ValueRef, index: int) -> messages.ValueRef:
        request = messages.CreateSelectionRequest(executor=self.executor, source_ref=source, index=index)
        return self.call("CreateSelection", request, messages.CreateSelectionResponse).value_ref

    def create_call(self, function: messages.ValueRef, argument: messages.ValueRef) -> messages.ValueRef:
        request = messages.CreateCallRequest(executor=self.executor, function_ref=function, argument_ref=argument)
        return self.call("CreateCall", request, messages.CreateCallResponse).value_ref

    def compute(self, ref: messages.ValueRef) -> messages.Value:
        request = messages.ComputeRequest(executor=self.executor, value_ref=ref)
        return self.call("Compute", request, messages.ComputeResponse).value

    def close(self) -> None:
        self.call(
            "DisposeExecutor",
            messages.DisposeExecutorRequest(executor=self.executor),
            messages.DisposeExecutorResponse,
        )
        io_loop.run_sync(self.stub.close())


@pytest.fixture
def client(pool: WorkerPool) -> Iterator[Client]:
    made = Client(pool)
    yield made
    made.close()


class Bystander:
    """Another client, which asks something of the worker all the time while the block runs."""

    def __init__(self, pool: WorkerPool) -> None:
        (self._stub,) = make_stubs(pool, None)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answers = 0
        self.error: Exception | None = None
        self.longest_stall = 0.0

    def _ask(self) -> None:
        try:
            while not self.answers or not self._ended.wait(0.05):
                self.longest_stall = io_loop.run_sync(self._stub.get_status(), 30).longest_stall_seconds
                self.answers += 1
        except Exception as error:
            self.error = error

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        io_loop.run_sync(self._stub.close())


def a_function(content: str = "") -> pb.Computation:
    function = pb.Computation(type=fl.FunctionType(INT, INT).to_proto())
    function.data.content.type_url = f"type.googleapis.com/{content or 'fedstack.v1.PickledPython'}"
    return function


def literal() -> pb.Computation:
    found = pb.Computation(type=INT.to_proto())
    found.literal.value.CopyFrom(value_to_proto(np.int32(1), INT).array)
    return found


def empty_structs() -> messages.Value:
    value = messages.Value()
    for _ in range(2_000_000):
        value.struct.element.add().value.struct.SetInParent()
    return value


def nested_lists_of_structs() -> messages.Value:
    value = messages.Value()
    for _ in range(1000):
        inner = value.struct.element.add().value
        for _ in range(200):
            inner.struct.element.add().value.struct.SetInParent()
    return value


def long_block() -> messages.Value:
    block = pb.Computation(type=INT.to_proto())
    for index in range(300_000):
        block.block.local.add(name=f"x{index}").value.CopyFrom(literal())
    block.block.result.CopyFrom(literal())
    return messages.Value(computation=block)


def unfolding_block(levels: int) -> messages.Value:
    """A few kilobytes that unfold to many steps: a function that calls the one before it twice, and so on."""
    unary = fl.FunctionType(INT, INT)
    whole = pb.Computation(type=INT.to_proto())
    for level in range(levels):
        body = pb.Computation(type=INT.to_proto())
        if level:
            inner = pb.Computation(type=INT.to_proto())
            for call in (inner, body):
                call.call.function.type.CopyFrom(unary.to_proto())
                call.call.function.reference.name = f"f{level - 1}"
            inner.call.argument.type.CopyFrom(INT.to_proto())
            inner.call.argument.reference.name = "x"
            body.call.argument.CopyFrom(inner)
        else:
            body.reference.name = "x"
        function = whole.block.local.add(name=f"f{level}").value
        function.type.CopyFrom(unary.to_proto())
        getattr(function, "lambda").parameter_name = "x"
        getattr(function, "lambda").result.CopyFrom(body)
    result = whole.block.result
    result.type.CopyFrom(INT.to_proto())
    result.call.function.type.CopyFrom(unary.to_proto())
    result.call.function.reference.name = f"f{levels - 1}"
    result.call.argument.CopyFrom(literal())
    return messages.Value(computation=whole)


def wide_function() -> messages.Value:
    wide = fl.StructType([(f"x{index}", np.int32) for index in range(20_000)])
    function = a_function()
    function.type.CopyFrom(fl.FunctionType(wide, INT).to_proto())
    return messages.Value(computation=function)


def too_wide_function() -> messages.Value:
    proto = pb.Type()
    for index in range(500_000):
        proto.function.result.struct.element.add(name=f"x{index}").value.tensor.dtype = 3
    function = a_function()
    function.type.CopyFrom(proto)
    return messages.Value(computation=function)


def long_name() -> messages.Value:
    return messages.Value(computation=a_function("x" * 20_000_000))


def pairs(count: int) -> messages.Value:
    return value_to_proto([(np.float32(i), np.int32(i)) for i in range(count)], fl.SequenceType(PAIR))


REQUESTS: list[Callable[[], messages.Value]] = [
    empty_structs,
    nested_lists_of_structs,
    long_block,
    lambda: unfolding_block(60),
    lambda: unfolding_block(14),
    wide_function,
    too_wide_function,
    long_name,
    lambda: pairs(30_000),
    lambda: value_to_proto(np.zeros(12_500_000), fl.TensorType(np.float64, [None])),
]
NAMES = [
    "two million empty structs",
    "structs of many structs",
    "300,000 locals",
    "a few kilobytes that unfold without end",
    "a few kilobytes that unfold to many steps",
    "a parameter of 20,000 tensors",
    "a result of half a million tensors",
    "a name of 20 MB",
    "30,000 pairs, a message each",
    "an array of 100 MB",
]


@pytest.mark.parametrize("make", REQUESTS, ids=NAMES)
def test_others_are_answered_while_a_large_value_is_created_and_computed(pool, client, make):
    value = make()
    with Bystander(pool) as bystander:
        with contextlib.suppress(FedstackError):  # it may be refused
            client.compute(client.create(value))
    assert bystander.error is None
    assert bystander.answers
    assert bystander.longest_stall < HEARTBEAT_SECONDS
    assert client.compute(client.create(value_to_proto(np.int32(7), INT))).array.int32_list.value[0] == 7


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("Dispose", lambda c: messages.DisposeRequest(value_ref=[messages.ValueRef(id="x")] * 500_000)),
        ("CreateStruct", lambda c: messages.CreateStructRequest(element=[c.element] * 90_000)),
        ("GetExecutor", lambda c: messages.GetExecutorRequest(cardinalities=[messages.Cardinality()] * 500_000)),
        ("CreateValue", lambda c: b"\x0a" * (16 << 20)),
        ("Compute", lambda c: b"\xff" * (16 << 20)),
    ],
)
def test_others_are_answered_while_a_large_request_is_read(pool, client, method, request_of):
    client.element = messages.CreateStructRequest.Element(value_ref=client.create(value_to_proto(np.int32(1), INT)))
    request = request_of(client)
    if not isinstance(request, bytes) and method != "GetExecutor":
        request.executor.CopyFrom(client.executor)
    response = getattr(messages, f"{method}Response")
    with Bystander(pool) as bystander:
        with contextlib.suppress(FedstackError):
            client.call(method, request, response)
    assert bystander.error is None
    assert bystander.answers
    assert bystander.longest_stall < HEARTBEAT_SECONDS


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("fedstack.v1.ExecutorExtensions/RenewLease", b"\x0a\x00" * (1 << 20), "1048576 bytes in a RenewLeaseRequest"),
        ("fedstack.v1.ExecutorExtensions/Handshake", b"\x0a\x81\x80\x40" + bytes(1 << 20), "in a HandshakeRequest"),
        (f"{EXECUTOR_GROUP}/GetExecutor", b"\x0a\x00" * (1 << 20), "1048576 bytes in a GetExecutorRequest"),
        (
            "grpc.health.v1.Health/Check",
            b"\x0a\x80\x80\x40" + b"x" * (1 << 20),
            "at most 65536 bytes, found a request of 1048580 bytes",
        ),
    ],
)
def test_a_request_that_has_no_reason_to_be_large_is_refused_before_it_is_read(client, path, content, words):
    with pytest.raises(ResourceLimitError, match=words):
        io_loop.run_sync(client.stub.connection.unary(f"/{path}", content, WALL), WALL)


def test_who_has_much_to_do_does_not_keep_others_from_small_things(pool, client):
    wide = client.create(value_to_proto(np.int32(1), INT))
    for _ in range(15):
        wide = client.create_struct(wide, wide)
    other = Client(pool)
    with ThreadPoolExecutor(30) as threads:
        computed = [threads.submit(client.compute, wide) for _ in range(30)]
        wait(computed, WALL, FIRST_COMPLETED)
        other.create(value_to_proto(np.zeros(10_000, np.float32), fl.TensorType(np.float32, [10_000])))
        assert not all(one.done() for one in computed)
    other.close()


@pytest.mark.parametrize("levels", [20, 40, 90])
def test_structs_that_double_are_refused_when_they_are_made_and_the_limit_is_named(pool, client, levels):
    with Bystander(pool) as bystander:
        ref = client.create(value_to_proto(np.int32(1), INT))
        with pytest.raises(ResourceLimitError, match="at most 100000 tensors .*larger --max-leaves"):
            for _ in range(levels):
                ref = client.create_struct(ref, ref)
    assert bystander.error is None
    assert bystander.longest_stall < HEARTBEAT_SECONDS


def test_structs_that_are_too_deep_are_refused_when_they_are_made_and_the_limit_is_named(client):
    ref = client.create(value_to_proto(np.int32(1), INT))
    with pytest.raises(ResourceLimitError, match="at most 100 nested structs, found 101.*--max-depth"):
        for _ in range(200):
            ref = client.create_struct(ref)


def test_a_struct_deeper_than_a_message_can_be_says_so_when_it_is_computed(client):
    ref = client.create(value_to_proto(np.int32(1), INT))
    for _ in range(60):
        ref = client.create_struct(ref)
    with pytest.raises(ResourceLimitError, match="at most 30 levels of nested structs"):
        client.compute(ref)


STEPS = st.tuples(st.sampled_from(["struct", "struct", "select", "call"]), st.integers(1, 4), st.integers(1, 4))
MOST_COMPARED = 2000


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=100))
def test_any_chain_of_structs_selections_and_calls_is_computed_or_refused_soon(pool, steps):
    client = Client(pool)
    try:
        function = pb.Computation(type=fl.FunctionType(INT, INT).to_proto())
        getattr(function, "lambda").parameter_name = "x"
        getattr(function, "lambda").result.type.CopyFrom(INT.to_proto())
        getattr(function, "lambda").result.reference.name = "x"
        identity = client.create(messages.Value(computation=function))
        made: list[tuple[messages.ValueRef, Any]] = [(client.create(value_to_proto(np.int32(5), INT)), 5)]
        sizes: list[int] = [1]
        started = time.monotonic()
        for kind, first, second in steps:
            (left, a), (right, b) = made[-min(first, len(made))], made[-min(second, len(made))]
            try:
                if kind == "struct":
                    made.append((client.create_struct(left, right), (a, b)))
                    sizes.append(sizes[-min(first, len(sizes))] + sizes[-min(second, len(sizes))])
                elif kind == "select" and isinstance(a, tuple):
                    made.append((client.create_selection(left, second % 2), a[second % 2]))
                    sizes.append(sizes[-1])
                elif kind == "call":
                    made.append((client.create_call(identity, left), a))
                    sizes.append(sizes[-1])
            except FedstackError:
                assert kind == "struct" or isinstance(a, tuple)  # too large, or no integer
        ref, expected = made[-1]
        try:
            value = client.compute(ref)
            found = value_from_proto(value, type_of_value(value))
        except ResourceLimitError:
            return
        finally:
            assert time.monotonic() - started < WALL
        if max(sizes) <= MOST_COMPARED:
            assert found == expected
    finally:
        client.close()


@fedstack.python_computation(fl.SequenceType(PAIR), np.float64)
def weighted(pairs):
    return float(sum(float(pair.x) * int(pair.y) for pair in pairs))


@fedstack.python_computation(fl.SequenceType(PAIR), fl.SequenceType(PAIR))
def unchanged(pairs):
    return pairs


@fl.federated_computation(fl.FederatedType(fl.SequenceType(PAIR), fl.CLIENTS))
def sum_and_sequences(data):
    return fl.federated_sum(fl.federated_map(weighted, data)), fl.federated_map(unchanged, data)


@pytest.mark.parametrize("count", [100_000, pytest.param(1_500_000, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_a_long_sequence_is_accepted_computed_on_and_answered(pool, count):
    data = [(np.float32(i % 7), np.int32(i % 5)) for i in range(count)]
    with Bystander(pool) as bystander:
        context = fedstack.create_sync_remote_execution_context(pool)
        try:
            with fedstack.use_context(context):
                total, (back,) = sum_and_sequences([data])
        finally:
            context.close()
    assert total == sum((i % 7) * (i % 5) for i in range(count))
    assert [(pair["x"], pair["y"]) for pair in back] == data
    assert bystander.error is None
    assert bystander.answers
    assert bystander.longest_stall < HEARTBEAT_SECONDS


_VECTOR = fl.TensorType(np.float32, [None])


@pytest.mark.parametrize("megabytes", [1, pytest.param(32, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_an_accumulator_grows_with_each_client_to_gigabytes_and_comes_home(megabytes: int) -> None:
    clients, each = 64, megabytes << 18
    repeated = fedstack.python_computation([np.float32], _VECTOR)(lambda x: np.full(each, x, np.float32))
    join = fedstack.python_computation([_VECTOR, _VECTOR], _VECTOR)(lambda a, b: np.concatenate([a, b]))
    ends = fedstack.python_computation([_VECTOR], _VECTOR)(lambda a: np.concatenate([a[::each], a[each - 1 :: each]]))

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def joined(values):
        mapped = fl.federated_map(repeated, values)
        return fl.federated_aggregate(mapped, np.zeros(0, np.float32), join, join, ends)

    with local_worker_pool(2) as workers, fedstack.create_sync_remote_execution_context(workers):
        found = joined([float(number) for number in range(clients)])
    assert found.tolist() == 2 * list(range(clients))
