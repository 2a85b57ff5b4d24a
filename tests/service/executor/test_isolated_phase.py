"""How a worker looks for clients that end their process: which children it starts, and what they may run."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import federated_language as fl
import numpy as np
import psutil
import pytest

import fedstack
from fedstack.computations.codec.packing import Packer
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.portability import portable
from fedstack.computations.plan.schedule import schedule
from fedstack.computations.plan.tasks import Phase, PhaseTask
from fedstack.computations.plan.trace import trace
from fedstack.computations.values.columns import Column, ScalarColumn
from fedstack.errors import CarrierError, InvalidValueError, LeafError
from fedstack.executors.folds.aggregations import FoldArgument
from fedstack.executors.remote.phase_messages import phase_template, write_phase
from fedstack.executors.worker.receiving import receive
from fedstack.leaves import Destination
from fedstack.membership.search import Ended
from fedstack.proto.extensions_pb2 import HandshakeRequest, PhaseRequest
from fedstack.service.executor import isolated_phase
from fedstack.service.executor.executor_extensions import ExecutorExtensions
from fedstack.service.executor.isolated_phase import search_phase
from fedstack.service.executor.isolation_child import ChildOptions
from fedstack.service.executor.phase_service import SessionHost
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.host.limits import ServiceLimits
from fedstack.transport.peers.executor_stub import PROTOCOL
from fedstack.transport.wire.parcels import Parcel, incoming_of

FIRST, COUNT = 100, 40
EVERYONE = range(FIRST, FIRST + COUNT)
ANY_CODE = CarrierPolicy(modules=["*"], python_code=True)
Kills = Callable[[range], "int | None"]


def phase_of(body: Callable[[int], int]) -> Phase:
    """Returns the phase that maps a function over the clients and sums what it yields."""
    leaf = fedstack.python_computation(np.int32, np.int32)(body)

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(leaf, values))

    tasks = schedule(trace(total.to_proto())).tasks
    return next(task.phase for task in tasks if isinstance(task, PhaseTask))


def request_for(phase: Phase, suspects: Sequence[int] = ()) -> PhaseRequest:
    inputs: list[Column] = [ScalarColumn(np.arange(COUNT, dtype=np.int32))]
    travelling = partial(portable, destination=Destination(takes_code=True))
    request = write_phase(
        phase_template(phase, travelling, "test"), phase, inputs, [FoldArgument([], [])], EVERYONE, Packer()
    )
    request.isolate = True
    request.suspect.extend(suspects)
    return request


def search(request: PhaseRequest, policy: CarrierPolicy = ANY_CODE, **limits: Any) -> None:
    async def run() -> None:
        core = ServiceCore(fedstack.local_executor_factory(), ServiceLimits(**limits), policy)
        try:
            session = core.open({}, None)
            received = await receive(incoming_of(Parcel(request.SerializeToString())), PhaseRequest)
            await core.run(session, search_phase(core, SessionHost(core, session), received))
        finally:
            await core.close()

    asyncio.run(run())


class Children:
    """Stands for the child processes: says which clients each ran, and lets some of them die.

    Args:
      kills: Returns for clients that run one after the other in a process which of them ends it, if one does.
      together: Returns whether clients that run at the same time end it.
      status: How it ends.
    """

    def __init__(self, kills: Kills, together: Callable[[range], bool], status: int) -> None:
        self._kills = kills
        self._together = together
        self._status = status
        self.started: list[range] = []

    def __call__(self, options: ChildOptions, content: object) -> "Children.Run":
        clients = options.clients
        self.started.append(clients)
        killer = self._kills(clients)
        if killer is None and not self._together(clients):
            return Children.Run(None)
        among = None if killer is None else range(killer, killer + 1)
        return Children.Run(Ended(self._status, among, ("body", ())))

    class Run:
        def __init__(self, ended: Ended | None) -> None:
            self._ended = ended

        def run(self) -> Ended | None:
            return self._ended

        def cancel(self) -> None:
            pass


def first_of(*killers: int) -> Kills:
    return lambda clients: next((client for client in clients if client in killers), None)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Children]:
    def start(kills: Kills, together: Callable[[range], bool] = lambda clients: False, status: int = -11) -> Children:
        children = Children(kills, together, status)
        monkeypatch.setattr(isolated_phase, "IsolatedRun", children)
        return children

    return start


def body(value: int) -> int:
    return value


@pytest.mark.parametrize("killer", [100, 113, 119, 120, 139])
def test_a_client_is_found_with_three_children_at_most(killer: int, starts: Callable[..., Children]) -> None:
    children = starts(first_of(killer))
    with pytest.raises(LeafError, match=f"signal 11 .SIGSEGV.; at client {killer}$") as caught:
        search(request_for(phase_of(body)))
    assert (caught.value.client_index, caught.value.computation_name) == (killer, "body")
    assert len(children.started) <= 3


def test_those_that_heartbeats_named_are_tried_first(starts: Callable[..., Children]) -> None:
    children = starts(first_of(113))
    with pytest.raises(LeafError, match="at client 113"):
        search(request_for(phase_of(body), [113, 99]))  # the second is none of the phase's
    assert children.started == [range(113, 114)]


def test_of_several_the_first_is_named(starts: Callable[..., Children]) -> None:
    starts(first_of(105, 107, 130))
    with pytest.raises(LeafError, match="at client 105"):
        search(request_for(phase_of(body)))


def test_a_client_after_one_that_ends_a_process_only_with_others_is_found(starts: Callable[..., Children]) -> None:
    """One that has taken the rest of the memory, say."""
    starts(lambda clients: 110 if len(clients) > 1 and 110 in clients else first_of(115)(clients))
    with pytest.raises(LeafError, match="at client 115"):
        search(request_for(phase_of(body)))


def test_the_smallest_range_is_named_that_ends_a_process_together(starts: Callable[..., Children]) -> None:
    children = starts(first_of(), lambda clients: {111, 112} <= set(clients))
    with pytest.raises(LeafError, match="crashed its process with .* run for clients 111 to 112 together") as caught:
        search(request_for(phase_of(body)))
    assert caught.value.client_index is None
    assert len(children.started) < 12


def test_if_nobody_ends_a_child_nothing_is_raised(starts: Callable[..., Children]) -> None:
    children = starts(first_of())
    search(request_for(phase_of(body), [113]))
    assert children.started == [range(113, 114), EVERYONE]


def test_children_that_others_kill_blame_nobody(starts: Callable[..., Children]) -> None:
    children = starts(first_of(113), status=-9)
    search(request_for(phase_of(body)))
    assert children.started == [EVERYONE] * 3


def test_what_the_policy_refuses_is_run_in_no_child(starts: Callable[..., Children]) -> None:
    children = starts(first_of())
    with pytest.raises(CarrierError, match="Expected a function of an allowed module"):
        search(request_for(phase_of(body)), CarrierPolicy())
    assert children.started == []


def test_inputs_that_are_kept_are_refused(starts: Callable[..., Children]) -> None:
    children = starts(first_of())
    request = request_for(phase_of(body))
    request.input[0].ClearField("value")
    request.input[0].kept = "earlier"
    with pytest.raises(InvalidValueError, match="found a reference to the kept input"):
        search(request)
    assert children.started == []


def test_clients_are_told_that_a_server_searches() -> None:
    async def isolates() -> bool:
        core = ServiceCore(fedstack.local_executor_factory(), ServiceLimits(), CarrierPolicy())
        try:
            return (await ExecutorExtensions(core).handshake(HandshakeRequest(protocol=PROTOCOL))).isolates
        finally:
            await core.close()

    assert asyncio.run(isolates())


@pytest.mark.long
def test_errors_of_clients_are_not_the_searchs_and_what_they_print_goes_nowhere(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def noisy(value: int) -> int:
        print("noise")
        raise ValueError(value)

    search(request_for(phase_of(noisy)))
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_a_function_that_ends_the_process_that_loads_it_is_told() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            import os

            return os._exit, (5,)

    bomb = Bomb()

    def holds(value: int) -> int:
        return value if bomb else 0

    with pytest.raises(
        LeafError, match="loading the functions of a phase crashed its process with exit status 5"
    ) as caught:
        search(request_for(phase_of(holds)))
    assert caught.value.client_index is None


@pytest.mark.long
def test_a_search_ends_when_its_time_is_up(caplog: pytest.LogCaptureFixture) -> None:
    def hangs(value: int) -> int:
        import time

        time.sleep(600)
        return value

    before = set(psutil.Process().children())
    search(request_for(phase_of(hangs)), isolation_seconds=2.0)
    assert "with a larger --isolation-seconds" in caplog.text
    _, alive = psutil.wait_procs(set(psutil.Process().children()) - before, timeout=30)
    assert alive == []
