"""What observers are told of phases at workers, on both sides."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from watching import Diary, watched

import fedstack
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import WorkerUnavailableError
from fedstack.executors.remote.phase_messages import read_span
from fedstack.observe import CallEnded, CallStarted, ClientsChanged, ClientsRetried, PhaseEnded, PhaseStarted
from fedstack.observe.events import NO_SPAN, Span, new_id
from fedstack.proto import extensions_pb2 as messages
from fedstack.service import local_worker_pool
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.parcels import Parcel

INTS = fl.FederatedType(np.int32, fl.CLIENTS)


@fedstack.python_computation([np.int32], np.int32)
def double(x: np.int32) -> np.int32:
    return x + x


@fl.federated_computation(INTS)
def double_all(values: fl.Value) -> fl.Value:
    return fl.federated_sum(fl.federated_map(double, values))


class Breaking(InMemoryConnection):
    """A connection whose first phase fails as if its worker had gone away."""

    broken = False

    async def exchange(self, path: str, parcel: Parcel) -> AsyncIterator[Any]:
        if path.endswith("RunPhase") and not self.broken:
            self.broken = True
            raise WorkerUnavailableError("gone")
        async for piece in super().exchange(path, parcel):
            yield piece


@contextlib.contextmanager
def over(*kinds: type[InMemoryConnection], **options: Any) -> Iterator[None]:
    services = [ExecutorService(fedstack.local_executor_factory(max_concurrent_clients=1), **options) for _ in kinds]
    connections = [kind(service, f"worker-{place}") for place, (kind, service) in enumerate(zip(kinds, services))]
    stubs = [ExecutorStub(connection) for connection in connections]
    retry_policy = fedstack.RetryPolicy(first_pause=0.001)
    context = SyncExecutionContext(fedstack.remote_executor_factory(stubs), retry_policy=retry_policy)
    with context, fedstack.use_context(context):
        yield
    for service in services:
        io_loop.run_sync(service.close())


def phases_at_the_worker(diary: Diary) -> list[PhaseStarted]:
    """Returns the phases that run, of those and of the parts that wait for one."""
    parts = {event.phase for event in diary.of(PhaseStarted) if event.worker}
    return [event for event in diary.of(PhaseStarted) if event.parent in parts]


def test_a_phase_has_a_part_for_each_worker_and_within_it_what_runs_there() -> None:
    with over(InMemoryConnection, InMemoryConnection), watched() as diary:
        assert double_all(list(range(10))) == 90
    call = diary.the(CallStarted)
    (whole,) = (event for event in diary.of(PhaseStarted) if event.parent == call.call)
    parts = [event for event in diary.of(PhaseStarted) if event.parent == whole.phase]
    assert [(part.worker, part.first_client, part.clients, part.functions) for part in parts] == [
        ("worker-0", 0, 5, "double"),
        ("worker-1", 5, 5, "double"),
    ]
    there = phases_at_the_worker(diary)
    assert {(phase.first_client, phase.clients, phase.functions) for phase in there} == {
        (0, 5, "double"),
        (5, 5, "double"),
    }
    assert {event.trace for event in diary.of(PhaseStarted)} == {call.call}
    assert len(diary.of(PhaseEnded)) == 5
    counted = [event for event in diary.of(ClientsChanged) if event.parent == call.call]
    assert sum(event.done for event in counted) == sum(event.expected for event in counted) == 10


def test_of_a_part_it_is_told_how_many_bytes_went_there_and_came_back() -> None:
    vector = fl.TensorType(np.float32, [10_000])

    @fl.federated_computation(fl.FederatedType(vector, fl.CLIENTS))
    def total(values: fl.Value) -> fl.Value:
        return fl.federated_sum(values)

    with over(InMemoryConnection), watched() as diary:
        total([np.ones(10_000, np.float32)] * 5)
    (part,) = (event for event in diary.of(PhaseEnded) if event.worker)
    assert 200_000 < part.bytes_sent < 210_000
    assert 40_000 < part.bytes_received < 100_000
    assert {(event.bytes_sent, event.bytes_received) for event in diary.of(PhaseEnded) if not event.worker} == {(0, 0)}


def test_the_loss_of_a_worker_ends_its_part_which_another_worker_runs_again() -> None:
    with over(Breaking, InMemoryConnection), watched() as diary:
        assert double_all(list(range(10))) == 90
    parts = {event.worker: event.error for event in diary.of(PhaseEnded) if event.worker and event.error}
    assert parts["worker-0"] == "WorkerUnavailableError"
    retried = diary.the(ClientsRetried)
    assert (retried.worker, retried.error) == ("worker-0", "WorkerUnavailableError")
    assert (retried.first_client, retried.clients, retried.attempt) == (0, 5, 1)
    assert diary.the(CallEnded).error == ""
    assert len(diary.of(PhaseStarted)) == len(diary.of(PhaseEnded))
    assert {event.phase for event in diary.of(PhaseStarted)} == {event.phase for event in diary.of(PhaseEnded)}


def test_a_worker_that_knows_only_values_has_parts_too() -> None:
    service = ExecutorService(fedstack.local_executor_factory(), extensions=False)
    stub = ExecutorStub(InMemoryConnection(service, "plain"), extensions=False, keeps_handles=True)
    with SyncExecutionContext(fedstack.remote_executor_factory([stub])) as context, fedstack.use_context(context):
        with watched() as diary:
            assert double_all([1, 2]) == 6
    io_loop.run_sync(service.close())
    (part,) = (event for event in diary.of(PhaseEnded) if event.worker)
    assert (part.worker, part.functions, part.clients) == ("plain", "double", 2)


def test_a_client_that_nobody_watches_sends_no_ids() -> None:
    sent: list[messages.PhaseRequest] = []

    class Reading(InMemoryConnection):
        def exchange(self, path: str, parcel: Parcel) -> AsyncIterator[Any]:
            sent.append(messages.PhaseRequest.FromString(parcel.header))
            return super().exchange(path, parcel)

    with over(Reading):
        double_all([1])
        with watched():
            double_all([1])
    assert [request.HasField("span") for request in sent] == [False, True]


def test_a_phase_of_a_client_that_says_nothing_of_its_call_is_told_of_without_ids() -> None:
    class Older(InMemoryConnection):
        def exchange(self, path: str, parcel: Parcel) -> AsyncIterator[Any]:
            request = messages.PhaseRequest.FromString(parcel.header)
            request.ClearField("span")
            return super().exchange(path, Parcel(request.SerializeToString(), parcel.segments))

    with over(Older), watched() as diary:
        double_all([1])
    (phase,) = (event for event in diary.of(PhaseStarted) if not event.trace)
    assert (phase.call, phase.parent, phase.functions) == ("", "", "double")


IDS = new_id(), new_id(), new_id()


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (IDS, Span(*IDS)),
        (("", "", ""), NO_SPAN),
        (("", *IDS[1:]), NO_SPAN),
        ((IDS[0], IDS[1], "x" * 16), NO_SPAN),
        ((IDS[0], IDS[1], IDS[2] * 1000), NO_SPAN),
        ((IDS[0], IDS[1], IDS[2] + "\n"), NO_SPAN),
    ],
)
def test_only_ids_are_taken_from_a_client(sent: tuple[str, str, str], read: Span) -> None:
    trace, call, own = sent
    assert read_span(messages.Span(trace=trace, call=call, id=own)) == read


def test_events_in_the_process_of_a_worker_have_the_ids_of_the_call(tmp_path: Path) -> None:
    heard = str(tmp_path / "heard")

    @fedstack.python_computation([np.int32], np.int32)
    def listen(x: Any) -> Any:
        from fedstack import observe

        class Writer(observe.Observer):
            def observe(self, event):  # names in a class are not taken along by value
                if type(event).__name__ == "PhaseStarted":
                    with open(heard, "a", encoding="utf-8") as file:
                        file.write(f"{event.trace} {event.parent} {event.functions}\n")

        observe.add_observer(Writer(), direct=True)
        return x

    @fl.federated_computation(INTS)
    def listen_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(listen, values)

    @fedstack.python_computation([np.int32], np.int32)
    def negate(x: Any) -> Any:
        return -x

    @fl.federated_computation(INTS)
    def negate_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(negate, values)

    with local_worker_pool(1) as pool:
        context = SyncExecutionContext(fedstack.remote_executor_factory(pool))
        with context, fedstack.use_context(context):
            listen_all([1])
            with watched() as diary:
                assert negate_all([1, 2]) == [-1, -2]
    (part,) = (event for event in diary.of(PhaseStarted) if event.worker)
    trace, parent, functions = Path(heard).read_text(encoding="utf-8").split()
    assert (trace, parent) == (diary.the(CallStarted).call, part.phase)
    assert functions.endswith("negate")
