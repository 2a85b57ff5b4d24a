"""Hands in the contributions of the first clients of a phase while other clients are still running.

If the worker is lost, only the clients that it has not handed in run again. A contribution consists of the nodes of the
fixed tree that cover its clients. These nodes are complete as soon as all of their clients are done, and are removed
from the folds when they are handed in. Handing in therefore never changes a result.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import attrs

from fedstack.computations.plan.tasks import Phase
from fedstack.computations.values.columns import Column, concatenate
from fedstack.executors.base.fold_states import FoldState
from fedstack.executors.base.phase_sink import PhaseResult, PhaseSink
from fedstack.executors.base.tree_fold import Partial
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.foundations.deadline import Deadline

# Handing in takes at most this share of the time, if enough clients are left.
_MOST_COST = 0.02
# Sending a byte takes about as many seconds over a fast network.
_SECONDS_PER_BYTE = 2e-9
# The size of contributions up to which a few more nodes do not matter.
_SMALL_BYTES = 256 * 1024


# A range of clients, and what they contribute to a phase.
Contribution: TypeAlias = tuple[range, PhaseResult]


@attrs.frozen(eq=False)
class HandIn:
    """Receives contributions to a phase.

    Attributes:
      take: Receives the contribution of a range of clients. May be called on any thread.
      seconds: The minimum time between two contributions, in seconds.
      is_free: Returns whether a contribution would be sent soon. If not, handing in waits.
    """

    take: Callable[[range, PhaseResult], None]
    seconds: float
    is_free: Callable[[], bool] = lambda: True


class HandInSink(PhaseSink):
    """Passes results to the folds of a phase, and hands in the contributions of the first clients from time to time.

    Args:
      phase: The phase.
      states: The state of each fold.
      clients: The clients of the phase.
      hand_in: Receives contributions, on the threads that run clients.

    """

    def __init__(self, phase: Phase, states: Sequence[FoldState], clients: range, hand_in: HandIn) -> None:
        super().__init__(phase, states)
        self._left = clients
        self._client = clients.start
        self._hand_in = hand_in
        self._due = time.perf_counter() + hand_in.seconds
        self._turn = threading.Lock()
        self._is_small = False
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    def reached(self, client: int) -> None:
        self._client = client
        self.look()

    def look(self) -> None:
        """Hands in what can be handed in now, if it is time."""
        if time.perf_counter() >= self._due and self._turn.acquire(blocking=False):
            try:
                if self._error is None:
                    self._reached(self._client)
            except Exception as error:  # nobody reads the outcome of some of the threads that call this
                self._error = error
            finally:
                self._turn.release()

    def watch(self) -> None:
        """Starts to call `look` regularly on another thread, because slow clients seldom call `reached`."""
        # Most phases end before the task would start.
        self._timer = asyncio.get_running_loop().call_later(self._hand_in.seconds, self._start_task)

    def _start_task(self) -> None:
        self._task = asyncio.ensure_future(self._keep_looking())

    async def _keep_looking(self) -> None:
        async for _ in Deadline().attempts(itertools.repeat(self._hand_in.seconds)):
            await off_loop(self.look)

    async def unwatch(self) -> bool:
        """Stops what `watch` has started, and returns whether another thread may still be in `look`."""
        self._timer.cancel()
        task, self._task = self._task, None  # otherwise, the task and this object would be a reference cycle
        if task is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        return True

    def finish(self) -> Contribution:
        """Returns the clients whose contributions have not been handed in, and their contribution. Call this once."""
        with self._turn:
            error, self._error = self._error, None
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # breaks the reference cycle of the error and this frame
            left, self._left = self._left, self._left[:0]
            return left, PhaseResult([state.partials() for state in self.states], self.columns())

    def _reached(self, client: int) -> None:
        left = self._left
        # The last contribution is the result of the phase.
        if not left.start < client < left.stop or not self._hand_in.is_free():
            return
        # The stop is a multiple of a large power of two, so that the contribution has few nodes. At least half of the
        # clients are handed in; if the nodes are small, seven of eight.
        block = 1 << (client - left.start).bit_length() - 1
        block = max(1, block // 8) if self._is_small else block
        clients, begin = range(left.start, client // block * block), time.perf_counter()
        result = self._taken(clients)
        if result is None:
            return
        self._left = range(clients.stop, left.stop)
        size = sum(map(_size, result.partials))
        self._is_small = size <= _SMALL_BYTES
        self._hand_in.take(clients, result)
        now = time.perf_counter()
        self._due = now + max(self._hand_in.seconds, (now - begin + size * _SECONDS_PER_BYTE) / _MOST_COST)

    def _taken(self, clients: range) -> PhaseResult | None:
        """Removes and returns the contribution of the first clients; `None` if it is not complete."""
        columns = self._taken_columns(clients)
        if columns is None:
            return None
        partials: list[object] = []
        for state in self.states:
            taken = state.take(clients)
            if taken is None:
                for each, found in zip(self.states, partials):
                    each.merge(found)
                if columns:
                    self.keep(clients.start, columns)
                return None
            partials.append(taken)
        return PhaseResult(partials, columns)

    def _taken_columns(self, clients: range) -> list[Column] | None:
        """Removes and returns the kept columns of the first clients; `None` if they are not complete."""
        columns: list[Column] = []
        with self._lock:
            for kept, (_, member) in zip(self._kept, self.phase.held):
                starts: list[int] = []
                reached = clients.start
                while reached < clients.stop and reached in kept:
                    starts.append(reached)
                    reached += len(kept[reached])
                if reached < clients.stop:
                    for earlier, found in zip(self._kept, columns):
                        earlier[clients.start] = found
                    return None
                column = concatenate([kept[start] for start in starts], member)
                for start in starts:
                    del kept[start]
                if len(column) > len(clients):
                    kept[clients.stop] = column.slice(len(clients), len(column))
                columns.append(column.slice(0, len(clients)))
        return columns


def _size(partials: object) -> int:
    """Returns the size of partial results in bytes."""
    if isinstance(partials, Partial):
        return partials.value.nbytes
    return sum(map(_size, cast("Sequence[object]", partials))) if isinstance(partials, (list, tuple)) else 0
