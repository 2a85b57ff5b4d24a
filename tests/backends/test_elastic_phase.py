"""Phases on workers that are lost all the time: they end, and have the bits of a local run."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

import federated_language as fl
import numpy as np
import pytest
from engines import context_over

import fedstack
from fedstack.backends.backend import Backend, Caller
from fedstack.backends.backend_executor import BackendExecutorFactory
from fedstack.backends.task_phases import PhaseAtClients
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.errors import LeafError, LostWorkersError, NoWorkersError, RemoteError, WorkerUnavailableError
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.hand_ins import HandIn, Headway
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.concurrency.phase_records import note_losses
from fedstack.executors.federating_executor import LocalPhases
from fedstack.foundations.deadline import Deadline
from fedstack.membership.ledger import Suspects

FLOAT = fl.TensorType(np.float32)
CLIENTS = fl.FederatedType(FLOAT, fl.CLIENTS)
WALL = 20.0


@fedstack.python_computation(FLOAT, FLOAT)
def wobble(x):
    if x == 13:
        raise ZeroDivisionError("13")
    return np.float32(np.sin(x) * 1e3)


@fedstack.python_computation([FLOAT, FLOAT], FLOAT)
def difference(x, mean):
    return x - mean


@fl.federated_computation(CLIENTS)
def twice(values):
    mean = fl.federated_broadcast(fl.federated_mean(fl.federated_map(wobble, values)))
    shifted = fl.federated_map(difference, (values, mean))
    return fl.federated_sum(shifted), fl.federated_map(wobble, values)


class Unsteady(Backend):
    """Workers in this process that are lost by a seed: before, amid and after their work, one by one and together.

    Args:
      seed: Decides what happens.
      workers: How many there are.
      apart: Whether others run during a search.
      most: How often workers are lost; then no more.
    """

    def __init__(self, seed: int, workers: int, *, apart: bool, most: int = 12) -> None:
        self.random = random.Random(seed)
        self.searches_apart = apart
        self.searches = 0
        self.losses_left = most
        self.forgets_a_client = False
        self._workers = workers

    async def places(self) -> Sequence[str]:
        await self.breathe()
        if self.losses_left and self.random.random() < 0.1:
            raise self.lost("somebody")
        count = self.random.randint(1, self._workers)
        return [f"w{index}" for index in sorted(self.random.sample(range(self._workers), count))]

    def runners(self, phase, places, counts, caller: Caller):
        return [_Runner(self, place, caller.server) for place in places], counts

    async def search(self, part: PhaseAtClients, suspects: Sequence[Suspects], caller: Caller) -> bool:
        self.searches += 1
        await self.breathe()
        if self.losses_left and self.random.random() < 0.2:
            raise self.lost("a searcher")
        return self.random.random() < 0.7

    async def breathe(self) -> None:
        """Lets others run for some turns of the loop."""
        for _ in range(self.random.randint(0, 4)):
            await asyncio.sleep(0)

    def lost(self, name: str) -> WorkerUnavailableError:
        self.losses_left -= 1
        error = WorkerUnavailableError(f"{name} is lost")
        error.causes = {name: "lost"}
        return error


class _Runner(PhaseRunner):
    def __init__(self, backend: Unsteady, name: str, server: ProgramEngine) -> None:
        self._backend = backend
        self._name = name
        self._server = server

    async def run_phase(self, phase, inputs, arguments, clients: range) -> PhaseResult:
        local = LocalPhases(self._server, self._server, len(clients))
        return await local.run_phase(phase, inputs, arguments, clients)

    async def run_in_parts(self, phase, inputs, arguments, clients: range, hand_in: HandIn):
        backend, whole = self._backend, PhaseAtClients(phase, inputs, arguments, clients)
        start = clients.start
        while start < clients.stop:
            await backend.breathe()
            stop = backend.random.randint(start + 1, clients.stop)
            if backend.losses_left and backend.random.random() < 0.3:
                losses = current_scope().losses
                losses.lose(phase, self._name, range(start, clients.stop))
                raise backend.lost(self._name)
            part = whole.at(range(start, stop))
            result = await self.run_phase(phase, part.inputs, arguments, part.clients)
            if stop == clients.stop:
                await backend.breathe()
                return range(start, stop - backend.forgets_a_client), result
            hand_in.take(part.clients, result)
            start = stop
        raise AssertionError("there is at least one client")


def bits(value: object) -> bytes:
    return b"".join(np.asarray(part).tobytes() for part in value)


def called(backend: Backend, values: list[float]) -> object:
    """Calls `twice`, and fails if it does not end."""

    async def call() -> object:
        return await Deadline(WALL).wait(twice(values))

    policy = fedstack.RetryPolicy(attempts=50, first_pause=0.0005, longest_pause=0.001)
    context = AsyncExecutionContext(BackendExecutorFactory(backend), retry_policy=policy)
    try:
        with fedstack.use_context(context):
            return asyncio.run(call())
    finally:
        context.close()


def locally(values: list[float]) -> bytes:
    with SyncExecutionContext(fedstack.local_executor_factory()) as context, fedstack.use_context(context):
        return bits(twice(values))


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("clients", [1, 5, 12])
def test_whatever_is_lost_the_call_ends_with_the_bits_of_a_local_run(clients: int, apart: bool, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    values = [0.1 * number for number in range(clients)]
    expected, searches = locally(values), 0
    for seed in range(60):
        backend = Unsteady(seed, workers=4, apart=apart)
        assert bits(called(backend, values)) == expected, f"seed {seed}"
        searches += backend.searches
    assert searches


def test_the_first_client_that_fails_is_blamed_whatever_is_lost(caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    values = [float(number) for number in [*range(8), 13, 1, 13, 2]]
    for seed in range(40):
        with pytest.raises(LeafError, match="13; at client 8") as caught:
            called(Unsteady(seed, workers=4, apart=True), values)
        assert caught.value.client_index == 8


def test_a_worker_that_hands_in_too_little_is_named() -> None:
    backend = Unsteady(0, workers=1, apart=True, most=0)
    backend.forgets_a_client = True
    with pytest.raises(RemoteError, match="all clients from w0, found none of client.* 4"):
        called(backend, [0.1 * number for number in range(5)])


def test_clients_that_are_lost_again_and_again_end_the_call_after_as_many_attempts(caplog) -> None:
    backend = Unsteady(3, workers=1, apart=True, most=10**6)
    backend.random.random = lambda: 0.25  # type: ignore[method-assign]
    with context_over(backend) as context, fedstack.use_context(context):
        with pytest.raises((LostWorkersError, NoWorkersError), match=r"limit: 4 attempts"):
            twice([1.0])
    assert 10**6 - backend.losses_left == 4


class _Changing(Backend):
    """One worker fails, and while the other one is being stopped, the workers change."""

    def __init__(self) -> None:
        self.changed: list[Callable[[], None]] = []
        self.settled = asyncio.Event()
        self.asked_after_the_end = 0
        self.is_stopping = False

    async def places(self) -> Sequence[str]:
        if self.is_stopping:
            self.asked_after_the_end += 1
            await asyncio.Event().wait()
        return ["w0", "w1"]

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.changed.append(changed)
        self.settled.set()
        return lambda: self.changed.remove(changed)

    def runners(self, phase, places, counts, caller: Caller):
        return [_Stopped(self) for _ in places], counts


class _Stopped(PhaseRunner):
    def __init__(self, backend: _Changing) -> None:
        self._backend = backend

    async def run_phase(self, phase, inputs, arguments, clients: range) -> PhaseResult:
        raise NotImplementedError

    async def run_in_parts(self, phase, inputs, arguments, clients: range, hand_in: HandIn):
        await self._backend.settled.wait()
        if clients.start == 0:
            raise RemoteError("w0 has failed")
        try:
            await asyncio.Event().wait()
        finally:
            self._backend.is_stopping = True
            for changed in [*self._backend.changed]:
                changed()
            for _ in range(10):
                await asyncio.sleep(0)


def test_a_phase_that_has_failed_looks_for_no_more_workers() -> None:
    backend = _Changing()
    with pytest.raises(RemoteError, match="w0 has failed"):
        called(backend, [0.1, 0.2])
    assert backend.is_stopping
    assert backend.asked_after_the_end == 0


class _Late(_Changing):
    """The second of two workers begins only when the first has been idle for long, and has to be asked three times."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Headway | None] = []

    def runners(self, phase, places, counts, caller: Caller):
        return [_LateRunner(self, caller.server) for _ in places], counts


class _LateRunner(PhaseRunner):
    def __init__(self, backend: _Late, server: ProgramEngine) -> None:
        self._backend = backend
        self._server = server

    async def run_phase(self, phase, inputs, arguments, clients: range) -> PhaseResult:
        return await LocalPhases(self._server, self._server, len(clients)).run_phase(phase, inputs, arguments, clients)

    async def run_in_parts(self, phase, inputs, arguments, clients: range, hand_in: HandIn):
        backend, whole = self._backend, PhaseAtClients(phase, inputs, arguments, clients)
        if clients.start == 4:  # those of the second worker
            has_left = asyncio.Event()
            await backend.settled.wait()
            for _ in range(100):
                await asyncio.sleep(0)

            async def leave(rate: float) -> Headway | None:
                backend.answers.append(None if len(backend.answers) < 2 else Headway(6, 0))
                if backend.answers[-1] is not None:
                    has_left.set()
                return backend.answers[-1]

            hand_in.begun(leave)
            await has_left.wait()
            whole = whole.at(range(4, 6))
        return whole.clients, await self.run_phase(phase, whole.inputs, arguments, whole.clients)


def test_a_worker_that_begins_after_another_is_idle_leaves_it_clients_as_soon_as_it_can() -> None:
    values = [0.1 * number for number in range(8)]
    backend = _Late()
    assert bits(called(backend, values)) == locally(values)
    assert [answer is None for answer in backend.answers][:3] == [True, True, False]


class _Begun(Unsteady):
    """Records the workers that begin, and the phases that they run. None is lost."""

    loses_workers = True

    def __init__(self) -> None:
        super().__init__(0, workers=2, apart=True, most=0)
        self.begun: list[Sequence[str]] = []
        self.phases: list[Phase] = []

    async def places(self) -> Sequence[str]:
        return ["w0", "w1"]

    def runners(self, phase, places, counts, caller: Caller):
        self.begun.append(places)
        self.phases.append(phase)
        return super().runners(phase, places, counts, caller)


def test_a_worker_is_in_reserve_for_new_programs_and_those_whose_clients_have_ended_workers() -> None:
    backend = _Begun()
    factory, tolerant = BackendExecutorFactory(backend), fedstack.ClientFailures()
    with SyncExecutionContext(factory, client_failures=tolerant) as context, fedstack.use_context(context):

        @fl.federated_computation(CLIENTS)
        def total(values):
            return fl.federated_sum(fl.federated_map(wobble, values))

        total([0.1, 0.2])
        total([0.1, 0.2])
        assert backend.begun == [["w0"], ["w0", "w1"]]
        note_losses(backend.phases[-1])
        for _ in range(9):
            total([0.1, 0.2])
        assert backend.begun[2:] == [["w0"]] * 8 + [["w0", "w1"]]
