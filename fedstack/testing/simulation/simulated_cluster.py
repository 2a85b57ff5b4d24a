"""Runs a program over simulated workers, and checks invariants that must hold for any faults of the workers."""

import asyncio
import contextlib
import random
import traceback
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.types.language import Executor
from fedstack.errors import ContextError, FedstackError, InvalidValueError
from fedstack.executors.concurrency.leaf_threads import without_threads
from fedstack.executors.factories import local_executor_factory
from fedstack.foundations.draws import draws_from
from fedstack.foundations.number_checks import check_number, check_whole_number
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.simulation.simulated_clients import SimulatedClientsExecutor
from fedstack.testing.simulation.simulated_connection import SimulatedConnection
from fedstack.testing.simulation.simulated_network import SimulatedFaults, SimulatedNetwork
from fedstack.testing.simulation.simulated_worker import SimulatedWorker
from fedstack.testing.simulation.virtual_loop import VirtualLoop
from fedstack.testing.simulation.watchdog import Watchdog
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.methods import Service

_T = TypeVar("_T")
_LAST_LINES = 40
# How long a session may outlive its lease.
_SWEEP_SECONDS = 2.0
# Longer than any lease that a service grants.
_SETTLE_SECONDS = 200.0
# At the end of a run, cancelled tasks may start cleanup tasks. This is the maximum number of rounds of cancellation.
_MOST_ENDINGS = 10
# The time limit of these rounds, in real seconds.
_END_SECONDS = 60.0
# A task that a callback of the loop creates starts within this number of iterations of the loop.
_STEPS_TO_BEGIN = 3


class SimulationError(FedstackError, AssertionError):
    """Raised when a program over a simulated cluster fails, or an invariant of the simulation is violated.

    The message contains the seed, which reproduces the failure exactly, and the last lines of the trace.
    """


class SimulatedCluster:
    """A cluster of simulated workers that run the production code in one thread and in simulated time.

        cluster = SimulatedCluster(workers=3, seed=7, faults=SimulatedFaults.rough())

        async def program(cluster):
            context = fedstack.contexts.AsyncExecutionContext(fedstack.remote_executor_factory(cluster.stubs()))
            ...

        cluster.run(program)

    Runs with the same seed are identical. A program may only await objects of the simulation: asyncio's timers and
    tasks, and executors, contexts and coordinators over the stubs. Leaf functions take no simulated time, but the
    clients of a phase may, as in this cluster with a worker that is four times slower:

        chance = lambda *what: random.Random(repr(what)).expovariate(5.0)
        cluster = SimulatedCluster(3, client_seconds=chance, speeds=(1.0, 1.0, 0.25), slots=2)

    Args:
      workers: The number of workers.
      seed: The seed of all random decisions.
      faults: The faults to simulate. By default messages are delayed, and nothing fails.
      seconds: The time limit of the program, in simulated seconds.
      real_seconds: The time limit of the program, in real seconds. It stops endless loops.
      make_services: Returns the services of a worker, given a function that returns the simulated time. It is called
        each time that a worker starts. By default a worker has an executor service.
      client_seconds: Returns how long a client takes, in simulated seconds, as a function of the seed, the `round` of
        the cluster, and the index of the client. Not used together with `make_services`.
      speeds: The speed of each worker, by which the time of its clients is divided; by default 1.
      slots: The maximum number of clients that a worker runs at the same time.

    Attributes:
      round: The number of the current round, for `client_seconds`. A program may change it.
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
        client_seconds: Callable[[int, int, int], float] | None = None,
        speeds: Sequence[float] = (),
        slots: int = 1,
    ) -> None:
        check_whole_number("workers", workers, 1)
        check_whole_number("seed", seed, 0)
        check_number("seconds", seconds, positive=True)
        check_number("real_seconds", real_seconds, positive=True)
        check_whole_number("slots", slots, 1)
        for speed in speeds:
            check_number("a speed", speed, positive=True)
        if speeds and len(speeds) != workers:
            raise InvalidValueError(f"Expected a speed for each of {workers} workers, found {len(speeds)} speeds")
        if make_services is not None and client_seconds is not None:
            raise InvalidValueError(
                "Expected client_seconds for workers with an executor service, found make_services as well; pass one "
                "of the two"
            )
        self.seed = seed
        self.round = 0
        self._real_seconds = real_seconds
        self._faults = SimulatedFaults() if faults is None else faults
        self._seconds = seconds
        self._loop = VirtualLoop()
        self._network = SimulatedNetwork(self._loop, seed, self._faults)
        self._client_seconds = client_seconds
        makes = [make_services or self._services_at(speed, slots) for speed in speeds or [1.0] * workers]
        self.workers: tuple[SimulatedWorker, ...] = tuple(
            SimulatedWorker(self._network, f"worker-{index}", lambda make=make: make(self._network.io.time))
            for index, make in enumerate(makes)
        )
        self._happening: list[asyncio.Task[None]] = []
        self._failures: list[str] = []
        self._has_run = False

    @property
    def time(self) -> float:
        """The current simulated time, in seconds since the start."""
        return self._network.io.time()

    @property
    def trace(self) -> str:
        """The events so far, one per line: the simulated time, the call or worker, and what happened to it."""
        return "\n".join(self._network.lines)

    def stubs(self) -> list[ExecutorStub]:
        """Returns a new stub for each worker. The stubs can be passed to every API that accepts targets."""
        return [ExecutorStub(SimulatedConnection(worker, self._network)) for worker in self.workers]

    def say(self, text: str) -> None:
        """Adds a line to the trace."""
        self._network.say(text)

    def run(self, program: "Callable[[SimulatedCluster], Coroutine[Any, Any, _T]]") -> _T:
        """Runs a program until it ends, and returns its result. A cluster can run only one program.

        Args:
          program: A coroutine function that is called with this cluster.

        Raises:
          ContextError: If the calling thread runs an event loop.
          SimulationError: If the cluster has already run a program, the program fails or exceeds a time limit, an error
            in a task is never retrieved, or a worker still holds sessions after all leases have expired.
        """
        if _is_in_loop():
            raise ContextError(
                "Expected a calling thread without a running event loop, found a running event loop; a simulation has "
                "its own loop, so write `await asyncio.to_thread(cluster.run, program)`"
            )
        if self._has_run:
            raise SimulationError(
                "Expected a cluster that has not run yet, found one that has already run; create a new cluster"
            )
        self._has_run = True
        try:
            with without_threads(), _seeded(self.seed), draws_from(self._network.chance):
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
            self._start(worker, "join", self._faults.join_seconds)
        self._happening = [asyncio.ensure_future(it) for worker in self.workers for it in self._chaos(worker)]
        checks = asyncio.ensure_future(self._check())
        running = asyncio.ensure_future(program(self))
        try:
            await asyncio.wait([running, checks], timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if checks.done():
                checks.result()
            if not running.done():
                raise SimulationError(
                    f"Expected the program to end within {self._seconds:g} simulated seconds, found it still running; "
                    "check the trace for calls without an answer, or increase `seconds`"
                )
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
        """Stops injecting faults into workers, resumes stalled workers, and restores the network paths to workers."""
        for task in self._happening:
            task.cancel()
        for worker in self.workers:
            worker.heal()
            worker.resume()

    def _services_at(self, speed: float, slots: int) -> Callable[[Callable[[], float]], Sequence[Service]]:
        """Returns a function that makes the services of a worker of the given speed."""

        def make(clock: Callable[[], float]) -> Sequence[Service]:
            wrap = None if self._client_seconds is None else wrap_clients
            factory = local_executor_factory(max_concurrent_clients=1, wrap_clients=wrap)
            return [ExecutorService(factory, policy=CarrierPolicy(), clock=clock)]

        def wrap_clients(target: Executor) -> Executor:
            return SimulatedClientsExecutor(target, seconds, slots)

        def seconds(client: int) -> float:
            assert self._client_seconds is not None, "otherwise, clients take no time"
            found = self._client_seconds(self.seed, self.round, client)
            check_number("the result of client_seconds", found)
            return found / speed

        return make

    def _chaos(self, worker: SimulatedWorker) -> list[Coroutine[Any, Any, None]]:
        """Returns coroutines that inject faults into a worker, one for each kind of fault."""
        network, faults, later = self._network, self._faults, self._loop.call_later

        def part() -> None:
            worker.part()
            later(network.chance("heal", worker.address).uniform(*faults.heal_seconds), worker.heal)

        def stall() -> None:
            worker.stall()
            later(network.chance("resume", worker.address).uniform(*faults.resume_seconds), worker.resume)

        def drain() -> None:
            draining = worker.drain()
            if draining is not None:
                later(network.chance("grace", worker.address).uniform(*faults.grace_seconds), stop, draining)

        def stop(draining: object) -> None:
            if worker.incarnation is draining:
                self.say(f"the grace of {worker.address} is over")
                self._crash(worker)

        kinds = (
            ("crash", faults.crash_seconds, lambda: self._crash(worker)),
            ("part", faults.part_seconds, part),
            ("stall", faults.stall_seconds, stall),
            ("drain", faults.drain_seconds, drain),
        )
        return [network.now_and_then(seconds, happen, what, worker.address) for what, seconds, happen in kinds]

    def _crash(self, worker: SimulatedWorker) -> None:
        worker.crash()
        self._start(worker, "restart", self._faults.restart_seconds)

    def _start(self, worker: SimulatedWorker, what: str, seconds: tuple[float, float]) -> None:
        """Starts a worker, after a random time between two limits."""
        wait = self._network.chance(what, worker.address).uniform(*seconds)
        if wait:
            self._loop.call_later(wait, worker.start)
        else:
            worker.start()

    async def _check(self) -> None:
        """Checks sessions periodically, until one outlives its lease.

        Raises:
          SimulationError: If a session outlives its lease.
        """
        due: dict[str, float] = {}
        while True:
            await asyncio.sleep(1.0)
            for worker in self.workers:
                for session in worker.sessions:
                    if session.lease_seconds_left > 0:
                        due[session.id] = self.time + session.lease_seconds_left + _SWEEP_SECONDS
                    elif self.time > due.get(session.id, self.time):
                        raise SimulationError(f"Session {session.id} on {worker.address} outlived its lease")

    def _check_empty(self, worker: SimulatedWorker) -> None:
        left = [f"session {session.id} with {session.values} values" for session in worker.sessions]
        if left:
            raise SimulationError(
                f"Expected no sessions on {worker.address} after all leases have expired, found {', '.join(left)}; "
                "close the contexts, executors and clients that the program opens"
            )

    def _out_of_time(self) -> Exception:
        return SimulationError(
            f"Expected the program to end within {self._real_seconds:g} real seconds, found it still running; check "
            "the last lines of the trace for an endless loop, or increase `real_seconds` if this machine is slow"
        )

    def _lost_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        said = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self._failures.append(f"{context.get('message')} {said}".strip())

    def _failed(self, why: str) -> SimulationError:
        lines = "\n".join(self._network.lines[-_LAST_LINES:])
        return SimulationError(
            f"The simulation with seed {self.seed} failed after {self.time:.4f} simulated seconds: {why}\n"
            f"The last lines of the trace (`trace` contains all lines; the same seed reproduces them):\n{lines}"
        )

    def _end(self) -> None:
        """Cancels the remaining tasks."""
        for _ in range(_MOST_ENDINGS):
            for _ in range(_STEPS_TO_BEGIN):  # a task that is cancelled before it starts would skip its cleanup
                self._loop.run_until_complete(asyncio.sleep(0))
            tasks = [task for task in asyncio.all_tasks(self._loop) if not task.done()]
            if not tasks:
                break
            for task in sorted(tasks, key=lambda task: task.get_name()):
                task.cancel()
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=60))


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def _seeded(seed: int) -> Generator[None, None, None]:
    """Seeds the global `random` module in the block, so that what the program draws is reproducible."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
