"""Runs a program over workers of a simulation, and checks what must hold whatever happens to them."""

import asyncio
import contextlib
import random
import traceback
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.errors import ContextError, FedstackError
from fedstack.executors.concurrency.leaf_threads import without_threads
from fedstack.executors.factories import local_executor_factory
from fedstack.foundations.drawn_ids import ids_from
from fedstack.foundations.number_checks import check_number, check_whole_number
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.simulation.simulated_connection import SimulatedConnection
from fedstack.testing.simulation.simulated_network import SimulatedFaults, SimulatedNetwork
from fedstack.testing.simulation.simulated_worker import SimulatedWorker
from fedstack.testing.simulation.virtual_loop import VirtualLoop
from fedstack.testing.simulation.watchdog import Watchdog
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.methods import Service

_T = TypeVar("_T")
_LAST_LINES = 40
# How long after the end of its lease a session may still be there.
_SWEEP_SECONDS = 2.0
# Longer than any lease that a service gives.
_SETTLE_SECONDS = 200.0
# At the end, tasks that are cancelled may start others that end something: so many times over at most.
_MOST_ENDINGS = 10
# How long that may take in real time.
_END_SECONDS = 60.0
# A task that another one asks for by way of the loop begins after so many steps of it.
_STEPS_TO_BEGIN = 3


class SimulationError(FedstackError, AssertionError):
    """A program over a simulated cluster failed, or something was not as it must be.

    The message has the seed, with which it happens again exactly so, and the last lines of what happened.
    """


class SimulatedCluster:
    """Workers in this process, without threads, sockets or waiting: the same code as ever on simulated time.

    cluster = SimulatedCluster(workers=3, seed=7, faults=SimulatedFaults.rough())

    async def program(cluster):
        context = fedstack.contexts.AsyncExecutionContext(fedstack.remote_executor_factory(cluster.stubs()))
        ...

    cluster.run(program)

    Two runs with the same seed are the same. All that is awaited in the program must belong to the simulation:
    asyncio's own timers and tasks, and executors, contexts and coordinators over the stubs. Leaf functions run at once.

    Args:
      workers: How many workers there are.
      seed: Decides all that is left to chance.
      faults: What goes wrong; by default nothing but that messages take a while.
      seconds: How long the program may take, in simulated seconds.
      real_seconds: How long it may take in real seconds: what goes round in circles ends then.
      make_services: Makes what each worker serves, each time that it starts; by default an executor service. It gets
        what tells the time.
    """

    def __init__(
        self,
        workers: int = 2,
        seed: int = 0,
        faults: SimulatedFaults | None = None,
        *,
        seconds: float = 3600.0,
        real_seconds: float = 60.0,
        make_services: "Callable[[Callable[[], float]], Sequence[Service]] | None" = None,
    ) -> None:
        check_whole_number("workers", workers, 1)
        check_whole_number("seed", seed, 0)
        check_number("seconds", seconds, positive=True)
        check_number("real_seconds", real_seconds, positive=True)
        self.seed = seed
        self._real_seconds = real_seconds
        self._faults = SimulatedFaults() if faults is None else faults
        self._seconds = seconds
        self._loop = VirtualLoop()
        self._network = SimulatedNetwork(self._loop, seed, self._faults)
        make = make_services or _executor_service
        self.workers: tuple[SimulatedWorker, ...] = tuple(
            SimulatedWorker(self._network, f"worker-{index}", lambda: make(self._network.io.time))
            for index in range(workers)
        )
        self._happening: list[asyncio.Task[None]] = []
        self._failures: list[str] = []
        self._has_run = False

    @property
    def time(self) -> float:
        """The simulated seconds so far."""
        return self._network.io.time()

    @property
    def trace(self) -> str:
        """What has happened: the simulated second, the call or the worker, and what became of it, a line each."""
        return "\n".join(self._network.lines)

    def stubs(self) -> list[ExecutorStub]:
        """Returns a new stub for each worker, for all that takes targets."""
        return [ExecutorStub(SimulatedConnection(worker, self._network)) for worker in self.workers]

    def say(self, text: str) -> None:
        """Adds a line to the trace."""
        self._network.say(text)

    def run(self, program: "Callable[[SimulatedCluster], Coroutine[Any, Any, _T]]") -> _T:
        """Runs a program to its end, once, and returns its result.

        Raises:
          ContextError: If the caller's event loop runs.
          SimulationError: If it fails or takes too long, an error is lost on the way, or something is left of it.
        """
        if _is_in_loop():
            raise ContextError(
                "Expected a program without a running event loop, found one in it: a simulation has a loop of its own; "
                "write `await asyncio.to_thread(cluster.run, program)`"
            )
        if self._has_run:
            raise SimulationError("Expected a cluster that has not run yet, found one that has; make a new one")
        self._has_run = True
        try:
            with without_threads(), _seeded(self.seed), ids_from(random.Random(self.seed)):
                self._loop.set_exception_handler(self._lost_error)
                try:
                    with Watchdog().watching(self._real_seconds, self._out_of_time):
                        result = self._loop.run_until_complete(self._whole(program))
                finally:
                    with contextlib.suppress(SimulationError), Watchdog().watching(_END_SECONDS, self._out_of_time):
                        self._end()
                    self._loop.close()
        except Exception as error:
            self.say(f"failed: {error}")
            raise self._failed("".join(traceback.format_exception(error)).strip()) from error
        if failures := [*self._network.wrongs, *self._failures]:
            raise self._failed("; ".join(failures))
        return result

    async def _whole(self, program: "Callable[[SimulatedCluster], Coroutine[Any, Any, _T]]") -> _T:
        for worker in self.workers:
            worker.start()
        self._happening = [asyncio.ensure_future(it) for worker in self.workers for it in self._chaos(worker)]
        checks = asyncio.ensure_future(self._check())
        running = asyncio.ensure_future(program(self))
        try:
            await asyncio.wait([running, checks], timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if checks.done():
                checks.result()
            if not running.done():
                raise SimulationError(f"The program did not end within {self._seconds:g} simulated seconds")
            result = running.result()
            self.say("the program has ended")
            self.calm()
            await asyncio.wait([checks], timeout=_SETTLE_SECONDS)
            if checks.done():
                checks.result()
            for worker in self.workers:
                self._check_empty(worker)
            return result
        finally:
            for task in (*self._happening, checks, running):
                task.cancel()

    def calm(self) -> None:
        """Lets nothing happen to workers from now on; those that stand still go on, and all ways are open."""
        for task in self._happening:
            task.cancel()
        for worker in self.workers:
            worker.heal()
            worker.resume()

    def _chaos(self, worker: SimulatedWorker) -> list[Coroutine[Any, Any, None]]:
        """Returns what happens to a worker, kind by kind."""
        network, faults, later = self._network, self._faults, self._loop.call_later

        def part() -> None:
            worker.part()
            later(network.chance.uniform(*faults.heal_seconds), worker.heal)

        def stall() -> None:
            worker.stall()
            later(network.chance.uniform(*faults.resume_seconds), worker.resume)

        kinds = (
            (faults.crash_seconds, lambda: self._crash(worker)),
            (faults.part_seconds, part),
            (faults.stall_seconds, stall),
        )
        return [network.now_and_then(seconds, happen) for seconds, happen in kinds]

    def _crash(self, worker: SimulatedWorker) -> None:
        worker.crash()
        self._loop.call_later(self._network.chance.uniform(*self._faults.restart_seconds), worker.start)

    async def _check(self) -> None:
        """Raises when a session outlives its lease."""
        due: dict[str, float] = {}
        while True:
            await asyncio.sleep(1.0)
            for worker in self.workers:
                for session in worker.sessions:
                    if session.lease_seconds_left > 0:
                        due[session.id] = self.time + session.lease_seconds_left + _SWEEP_SECONDS
                    elif self.time > due.get(session.id, self.time):
                        raise SimulationError(f"Session {session.id} at {worker.address} outlived its lease")

    def _check_empty(self, worker: SimulatedWorker) -> None:
        left = [f"session {session.id} with {session.values} values" for session in worker.sessions]
        if left:
            raise SimulationError(
                f"Expected nothing left at {worker.address} after all leases, found {', '.join(left)}; close what the "
                "program opens"
            )

    def _out_of_time(self) -> Exception:
        return SimulationError(
            f"The program did not end within {self._real_seconds:g} real seconds; it may go round in circles, or this "
            "machine is slow: see what happened last, or give more real_seconds"
        )

    def _lost_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        said = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self._failures.append(f"{context.get('message')} {said}".strip())

    def _failed(self, why: str) -> SimulationError:
        lines = "\n".join(self._network.lines[-_LAST_LINES:])
        return SimulationError(
            f"The simulation with seed {self.seed} failed after {self.time:.4f} simulated seconds: {why}\n"
            f"The last of what happened (all of it is in `trace`; the same seed does it again):\n{lines}"
        )

    def _end(self) -> None:
        """Ends what still runs."""
        for _ in range(_MOST_ENDINGS):
            for _ in range(_STEPS_TO_BEGIN):  # what is cancelled before it has begun does nothing of what it should
                self._loop.run_until_complete(asyncio.sleep(0))
            tasks = [task for task in asyncio.all_tasks(self._loop) if not task.done()]
            if not tasks:
                break
            for task in sorted(tasks, key=lambda task: task.get_name()):
                task.cancel()
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=60))


def _executor_service(clock: Callable[[], float]) -> Sequence[Service]:
    return [ExecutorService(local_executor_factory(max_concurrent_clients=1), policy=CarrierPolicy(), clock=clock)]


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def _seeded(seed: int) -> Generator[None, None, None]:
    """Lets pauses that are drawn at random follow from the seed for the block."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
