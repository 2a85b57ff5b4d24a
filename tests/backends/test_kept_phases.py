"""What a call has computed is kept when work after it fails with a retryable error."""

import threading
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest
import remote_stacks

import fedstack
from fedstack import RetryPolicy
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import LostWorkersError, RetryLimitError, WorkerUnavailableError
from fedstack.membership.ledger import InvocationLosses
from fedstack.proto.extensions_pb2 import HandshakeResponse
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.wire.connection_errors import BROKEN_OFF

FLOAT = np.float32
CLIENTS = 10
VALUES = [float(client) for client in range(CLIENTS)]
POLICY = RetryPolicy(attempts=3, first_pause=0.001, longest_pause=0.001)
STACKS = {"local": fedstack.local_executor_factory, "two workers": lambda: remote_stacks.in_memory_workers(2)}
ran: list[float] = []
failing: list[Exception] = []
tried: list[float] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    for some in (ran, failing, tried):
        some.clear()
    remote_stacks.start_servers()
    yield
    remote_stacks.stop_servers()


@fedstack.python_computation([FLOAT], FLOAT)
def first(x):
    ran.append(float(x))
    return x


@fedstack.python_computation([FLOAT], FLOAT)
def at_server(x):
    tried.append(float(x))
    if failing:
        raise failing.pop()
    return x


@fedstack.python_computation([FLOAT, FLOAT], FLOAT)
def minus(x, y):
    return x - y


@fedstack.python_computation([FLOAT, np.int32], FLOAT)
def entry(x, key):
    tried.append(float(key))
    if failing:
        raise failing.pop()
    return x + FLOAT(key)


@fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
def two_phases(values):
    middle = fl.federated_map(at_server, fl.federated_mean(fl.federated_map(first, values)))
    return fl.federated_sum(fl.federated_map(minus, (values, fl.federated_broadcast(middle))))


@fl.federated_computation(
    fl.FederatedType(FLOAT, fl.CLIENTS), fl.FederatedType(fl.TensorType(np.int32, [1]), fl.CLIENTS)
)
def selecting(values, keys):
    mean = fl.federated_mean(fl.federated_map(first, values))
    return fl.federated_select(keys, fl.federated_value(np.int32(5), fl.SERVER), mean, entry)


def unavailable(times: int) -> list[Exception]:
    return [WorkerUnavailableError("something behind the function") for _ in range(times)]


@pytest.mark.parametrize("stack", STACKS)
def test_server_work_that_fails_runs_again_alone(stack: str) -> None:
    failing.extend(unavailable(2))
    with SyncExecutionContext(STACKS[stack](), retry_policy=POLICY):
        assert two_phases(VALUES) == 0
    assert (len(ran), len(tried)) == (CLIENTS, 3)


@pytest.mark.parametrize("stack", STACKS)
def test_a_selection_that_fails_runs_again_alone(stack: str) -> None:
    failing.extend(unavailable(1))
    with SyncExecutionContext(STACKS[stack](), retry_policy=POLICY):
        found = selecting([1.0] * 4, [[key] for key in (0, 1, 1, 2)])
    assert [list(map(float, one)) for one in found] == [[1], [2], [2], [3]]
    assert (len(ran), len(tried)) == (4, 4)


def test_server_work_that_fails_too_often_ends_the_call() -> None:
    failing.extend(unavailable(100))
    with SyncExecutionContext(fedstack.local_executor_factory(), retry_policy=POLICY):
        with pytest.raises(RetryLimitError, match="limit: 3 attempts"):
            two_phases(VALUES)
    assert (len(ran), len(tried)) == (CLIENTS, 3)


class SecondWorker(InMemoryConnection):
    """A connection to a worker that joins after the first phase. Its sessions cannot be opened for a while."""

    refusals = 0

    async def wait_ready(self, seconds: float | None) -> None:
        if not tried:
            raise BROKEN_OFF.error_at(self.address)
        await super().wait_ready(seconds)

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        if not tried:
            raise BROKEN_OFF.error_at(self.address)
        if path.endswith("OpenSession") and self.refusals:
            self.refusals -= 1
            raise BROKEN_OFF.error_at(self.address)
        return await super().unary(path, request, timeout)


@pytest.mark.parametrize("refusals", [1, 1000])
def test_a_worker_whose_session_is_lost_is_left_out(refusals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = InMemoryConnection(remote_stacks.service(), "a")
    joining = SecondWorker(remote_stacks.service(), "b")
    joining.refusals = refusals
    monkeypatch.setattr(fedstack.backends.workers_backend.WorkersBackend, "places", places_of(healthy, joining))
    factory = fedstack.remote_executor_factory([ExecutorStub(healthy), ExecutorStub(joining)])
    with SyncExecutionContext(factory, retry_policy=POLICY):
        assert two_phases(VALUES) == 0
    assert len(ran) == CLIENTS
    assert joining.refusals < refusals


def places_of(healthy: InMemoryConnection, joining: InMemoryConnection):
    """Returns a replacement for `places`, with the joining worker from the second phase on."""

    async def places(self):
        members = {worker.stub.connection: worker for worker in self.workers.members}
        return [members[healthy], members[joining]] if tried else [members[healthy]]

    return places


def test_phases_that_cannot_begin_end_the_call_with_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    async def places(self):
        begun.append(1)
        raise BROKEN_OFF.error_at("b")

    monkeypatch.setattr(fedstack.backends.workers_backend.WorkersBackend, "places", places)
    with SyncExecutionContext(remote_stacks.in_memory_workers(1), retry_policy=POLICY):
        with pytest.raises(LostWorkersError, match="limit: 3 attempts"):
            two_phases(VALUES)
    assert len(begun) == 3


def test_the_longest_total_of_a_policy_counts_from_the_beginning_of_a_call() -> None:
    now = [0.0]
    losses = InvocationLosses(RetryPolicy(attempts=10, first_pause=0.0, longest_total=5.0))
    losses._clock = lambda: now[0] + losses._began
    assert losses.pause(1) == 0
    now[0] = 4.0
    assert losses.pause(9) == 0
    assert losses.pause(10) is None
    now[0] = 5.5
    assert losses.pause(1) is None


def test_a_million_clients_over_workers_that_are_lost_have_the_sum_of_a_local_run() -> None:
    total = fl.federated_computation(lambda xs: fl.federated_sum(xs), fl.FederatedType(np.int32, fl.CLIENTS))
    values = np.arange(1_000_000, dtype=np.int32) % 1000
    policy = RetryPolicy(attempts=100, first_pause=0.001, longest_pause=0.01)
    with SyncExecutionContext(remote_stacks.lossy_workers(), retry_policy=policy):
        assert [total([*values]) for _ in range(3)] == [values.sum()] * 3


class SessionsOpened(InMemoryConnection):
    """A connection that counts the sessions, and loses one phase."""

    opened = 0
    loses = False

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        self.opened += path.endswith("OpenSession")
        return await super().unary(path, request, timeout)

    async def exchange(self, path: str, parcel):
        if path.endswith("/RunPhase") and self.loses:
            self.loses = False
            raise BROKEN_OFF.error_at(self.address)
        async for piece in super().exchange(path, parcel):
            yield piece


def test_a_loss_in_a_phase_leaves_the_sessions_of_other_workers_open() -> None:
    connections = [SessionsOpened(remote_stacks.service(), address) for address in "ab"]
    factory = fedstack.remote_executor_factory([ExecutorStub(connection) for connection in connections])
    with SyncExecutionContext(factory, retry_policy=POLICY):
        two_phases(VALUES)
        connections[1].loses = True
        assert two_phases(VALUES) == 0
        two_phases(VALUES)
    assert connections[0].opened == 1


class OtherVersion(InMemoryConnection):
    """A connection to a worker of another version, which joins while a phase runs.

    Attributes:
      greeted: Set once the worker has told its version.
    """

    def __init__(self, service, address: str) -> None:
        super().__init__(service, address)
        self.greeted = threading.Event()

    async def wait_ready(self, seconds: float | None) -> None:
        if not ran:
            raise BROKEN_OFF.error_at(self.address)

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        if not ran:
            raise BROKEN_OFF.error_at(self.address)
        assert path.endswith("Handshake"), "it must not be asked for anything else"
        self.greeted.set()
        return HandshakeResponse(protocol=99, version="9.9", phases=True).SerializeToString()


def test_a_worker_of_another_version_that_joins_in_mid_phase_gets_no_clients() -> None:
    healthy = InMemoryConnection(remote_stacks.service(), "a")
    other = OtherVersion(remote_stacks.service(), "b")

    @fedstack.python_computation([FLOAT], FLOAT)
    def waiting(x):
        ran.append(float(x))
        assert other.greeted.wait(60), "the worker has not joined"
        return x

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(fl.federated_map(waiting, values))

    factory = fedstack.remote_executor_factory([ExecutorStub(healthy), ExecutorStub(other)])
    with SyncExecutionContext(factory, retry_policy=POLICY):
        assert total(VALUES) == sum(VALUES)
