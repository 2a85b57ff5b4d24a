"""Simulated clients, each of which takes simulated time, several at a time on each worker."""

import asyncio
from collections.abc import Callable, Sequence

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.program import Program
from fedstack.computations.types.language import Executor
from fedstack.computations.values.columns import Column
from fedstack.executors.base.engines import PassingEngine, ProgramEngine
from fedstack.executors.base.phase_sink import PassingSink, Sink
from fedstack.executors.base.wrapper_executor import WrapperExecutor
from fedstack.executors.concurrency.coroutines import gather
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.survivors.ending import Ending
from fedstack.executors.survivors.tolerance import Tolerance


class _Clients(PassingEngine):
    """Runs clients one after the other on a number of slots, and each for its simulated time.

    Args:
      target: The engine that runs a client at the end of its time.
      seconds: Returns how long a client takes, in simulated seconds.
      slots: The maximum number of clients that run at the same time.
    """

    def __init__(self, target: ProgramEngine, seconds: Callable[[int], float], slots: int) -> None:
        super().__init__(target)
        self._seconds = seconds
        self._slots = slots

    @property
    def leaf_threads(self) -> LeafThreads | None:
        return None  # so that no column is folded without taking time

    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        reached, running, failed = clients.start, set[int](), dict[int, Exception]()
        ending, over = _ending(), asyncio.get_running_loop().create_future()
        unwatch = None if ending is None else ending.watch(_setter(over))

        async def run() -> None:
            nonlocal reached
            while not failed and reached < sink.claim(min(reached + 1, clients.stop)):
                client, reached = reached, reached + 1
                running.add(client)
                if ending is None:
                    await asyncio.sleep(self._seconds(client))
                else:
                    await asyncio.wait([over], timeout=self._seconds(client))
                own, place = range(client, client + 1), client - clients.start
                columns = [column.slice(place, place + 1) for column in inputs]
                try:
                    await self.target.run_clients(program, columns, own, _OneClient(sink))
                except Exception as error:
                    failed[client] = error
                    return
                running.discard(client)
                sink.reached(min(running, default=reached))

        try:
            await gather([run() for _ in range(min(self._slots, len(clients)))])
        finally:
            if unwatch is not None:
                unwatch()
        if failed:
            raise failed[min(failed)]


def _ending() -> Ending | None:
    tolerance = current_scope().of(Tolerance)
    return None if tolerance is None else tolerance.ending


def _setter(over: "asyncio.Future[None]") -> Callable[[], None]:
    """Returns a function that lets a future be done, which may be called more than once and on any thread."""

    def done() -> None:
        if not over.done():
            over.set_result(None)

    loop = asyncio.get_running_loop()

    def set_soon() -> None:
        loop.call_soon_threadsafe(done)

    return set_soon


class _OneClient(PassingSink):
    """Passes the results of one client to a sink. It claims nothing, because other clients are running."""

    def claim(self, stop: int) -> int:
        return stop

    def reached(self, client: int) -> None:
        return


class SimulatedClientsExecutor(WrapperExecutor):
    """Runs each client for a simulated time; see `_Clients`."""

    def __init__(self, target: Executor, seconds: Callable[[int], float], slots: int) -> None:
        super().__init__(target, lambda engine: _Clients(engine, seconds, slots))
