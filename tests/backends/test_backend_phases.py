"""What holds over any engine: the same bits, what is sent once, whose fault an error is, what a loss costs."""

import contextlib
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest
from engines import ThreadBackend, context_over
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from watching import Diary

import fedstack
from fedstack import observe
from fedstack.backends import worker_side
from fedstack.computations.leaves import portability
from fedstack.errors import (
    CarrierError,
    LeafError,
    LostWorkersError,
    NoWorkersError,
    ProtocolVersionError,
    RemoteError,
    WorkerUnavailableError,
)
from fedstack.proto import extensions_pb2

VECTOR = fl.TensorType(np.float32, (8192,))
INT = fl.TensorType(np.int32)
# What runs tasks in a process stays for the next task, and here that is this process.
pytestmark = pytest.mark.fedstack_leak_check(False)


@fedstack.python_computation((VECTOR, VECTOR), VECTOR)
def scaled(values, model):
    return values * np.float32(0.3) + model


@fl.federated_computation(fl.FederatedType(VECTOR, fl.CLIENTS), fl.FederatedType(VECTOR, fl.SERVER))
def means(values, model):
    mapped = fl.federated_map(scaled, (values, fl.federated_broadcast(model)))
    return fl.federated_mean(mapped), fl.federated_sum(values), mapped


def raising_at(*clients: int):
    """Returns a computation that fails at some clients, whose values are their indices."""

    @fedstack.python_computation(INT, INT)
    def picky(value):
        if value in clients:
            raise ValueError(f"not {value}")
        return value

    @fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(fl.federated_map(picky, values))

    return total


@contextlib.contextmanager
def over(backend: ThreadBackend, **options) -> Iterator[ThreadBackend]:
    with context_over(backend, **options):
        yield backend
    assert backend.is_closed


def vectors(clients: int) -> list[np.ndarray]:
    return list(np.random.default_rng(7).normal(size=(clients, 8192)).astype(np.float32))


def bits(result) -> list[bytes]:
    mean, total, mapped = result
    return [np.asarray(array).tobytes() for array in (mean, total, *mapped)]


@settings(max_examples=examples(12))
@given(st.integers(1, 40), st.integers(1, 9), st.integers(2, 4))
def test_results_are_those_of_the_local_stack_to_the_bit(clients: int, workers: int, fanout: int) -> None:
    values, model = vectors(clients), np.linspace(-1, 1, 8192, dtype=np.float32)
    with fedstack.create_sync_local_execution_context():
        expected = bits(means(values, model))
    with over(ThreadBackend(workers), max_fanout=fanout) as backend:
        assert bits(means(values, model)) == expected
    assert len(backend.tasks) == min(clients, workers)


def test_what_all_clients_get_is_handed_over_once() -> None:
    model = np.ones(8192, np.float32)
    with over(ThreadBackend(4)) as backend:
        means(vectors(9), model)
    ((array,),) = backend.shared
    assert np.shares_memory(array, model)
    assert all(any(part is backend.shared[0] for part in task.arguments) for task in backend.tasks)


def test_arrays_of_clients_are_sent_and_taken_as_they_lie_there() -> None:
    values = vectors(6)
    with over(ThreadBackend(2)) as backend:
        means(values, np.ones(8192, np.float32))
    sent = [
        array
        for task in backend.tasks
        for part in task.arguments[2:]
        for memory in part
        for array in getattr(memory, "arrays", [memory])
    ]
    assert all(any(np.shares_memory(value, array) for array in sent) for value in values)


def test_no_clients_need_no_workers() -> None:
    with over(ThreadBackend(0)):
        assert raising_at()([]) == 0


def test_the_first_client_that_fails_is_blamed_and_its_place_is_named() -> None:
    with (
        over(ThreadBackend(3)),
        pytest.raises(LeafError, match="'picky' raised ValueError: not 4; at client 4") as caught,
    ):
        raising_at(7, 4, 8)(list(range(9)))
    assert caught.value.client_index == 4
    assert "process" in str(caught.value.__cause__)


def test_a_function_that_cannot_travel_is_named_with_what_holds_it_back() -> None:
    lock = __import__("threading").Lock()

    @fedstack.python_computation(INT, INT)
    def locked(value):
        with lock:
            return value

    @fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(fl.federated_map(locked, values))

    with over(ThreadBackend(2)) as backend, pytest.raises(CarrierError, match=r"'locked'.*variable 'lock'"):
        total([1, 2, 3])
    assert not backend.tasks


def losing(*tasks: int):
    def lose(place: str, number: int, task: object) -> None:
        if number in tasks:
            error = WorkerUnavailableError(f"The worker {place} is lost")
            error.causes = {place: "lost"}
            raise error

    return lose


def test_a_lost_worker_costs_its_part_and_changes_no_bit() -> None:
    values, model = vectors(10), np.ones(8192, np.float32)
    with over(ThreadBackend(3)):
        expected = bits(means(values, model))
    backend = ThreadBackend(3, losing(1, 3))
    with over(backend):
        assert bits(means(values, model)) == expected


def test_workers_that_come_and_go_are_used_from_the_next_phase_on() -> None:
    with over(ThreadBackend(1)) as backend:
        total = raising_at()
        assert total([1, 2, 3]) == 6
        backend.workers = ["a", "b", "c"]
        assert total([1, 2, 3]) == 6
    assert len(backend.tasks) == 4


def test_clients_that_ran_where_workers_were_lost_each_time_are_named() -> None:
    backend = ThreadBackend(2, losing(*range(100)))
    with over(backend), pytest.raises(LostWorkersError, match=r"that ended: clients? \d") as caught:
        raising_at()(list(range(10)))
    assert "(limit: 4 attempts); check the engine's logs:\n  thread 0: lost" in str(caught.value)


def test_an_engine_without_workers_says_so_itself() -> None:
    with over(ThreadBackend(0)), pytest.raises(NoWorkersError, match="No thread is left"):
        raising_at()([1])


def test_an_error_of_the_engine_names_clients_and_place() -> None:
    def fail(place: str, number: int, task: object) -> None:
        raise OSError("disk full")

    backend = ThreadBackend(2, fail)
    with over(backend), pytest.raises(RemoteError, match="clients 0 to 2 at thread 0 raised OSError: disk full"):
        raising_at()([1, 2, 3, 4, 5])


@pytest.mark.parametrize("what", ["python", "fedstack"])
def test_another_version_on_the_other_side_is_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = worker_side.settings_of_sender(None, None)
    monkeypatch.setattr(worker_side, "settings_of_sender", lambda *_: {**sent, what: "2.7"})
    with (
        over(ThreadBackend(1)),
        pytest.raises(ProtocolVersionError, match=rf"(?i)Expected {what} 2.7, .* found .*process"),
    ):
        raising_at()([1])


def test_a_computation_called_in_a_function_runs_where_that_runs() -> None:
    @fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
    def inner(values):
        return fl.federated_sum(values)

    @fedstack.python_computation(INT, INT)
    def outer(value):
        return inner([value, value])

    @fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(fl.federated_map(outer, values))

    with over(ThreadBackend(2)):
        assert total([1, 2, 3]) == 12


def test_observers_hear_of_each_part_and_progress_of_each_client() -> None:
    diary = Diary()
    with over(ThreadBackend(2)), observe.add_observer(diary):
        raising_at()(list(range(5)))
    parts = [event for event in diary.of(observe.PhaseEnded) if event.worker]
    assert sorted((event.worker, event.first_client, event.clients) for event in parts) == [
        ("thread 0", 0, 3),
        ("thread 1", 3, 2),
    ]
    assert all(event.bytes_sent and event.bytes_received for event in parts)
    assert sum(event.done for event in diary.of(observe.ClientsChanged)) == 5


class _OneDiffers(ThreadBackend):
    """Engines that keep contributions, so that workers merge them. One has another version of a module."""

    keeps_content = True

    async def run(self, place, task, heard):
        note, (header, arrays) = await super().run(place, task, heard)
        response = extensions_pb2.PhaseResponse.FromString(header)
        if place == "thread 3" and task.function is worker_side.run_phase:
            response.differing_module.append(__name__)
        return note, (response.SerializeToString(), arrays)


@pytest.mark.parametrize("mixed", [False, True])
def test_all_tasks_of_a_phase_say_whether_results_may_have_other_bits(mixed, caplog) -> None:
    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(values)

    backend = _OneDiffers(5)
    portability._warned_of.discard(__name__)
    with context_over(backend, max_fanout=2, mixed=mixed) as context, fedstack.use_context(context):
        assert total(list(range(100))) == 4950
    requests = {task.function: extensions_pb2.PhaseRequest.FromString(task.arguments[1]) for task in backend.tasks}
    assert [requests[kind].same_bits for kind in (worker_side.run_phase, worker_side.run_merge)] == [not mixed] * 2
    (record,) = caplog.records  # of a contribution that another worker has merged
    assert f"The module {__name__} on the worker at " in record.message
