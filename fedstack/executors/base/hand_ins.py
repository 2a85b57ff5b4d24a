"""Hands in the contributions of the first clients of a phase while others are running, and leaves the last to others.

If the worker is lost, only the clients that it has not handed in run again. If another worker is idle, this worker can
leave it some of the clients that it has not begun. A contribution consists of the nodes of the fixed tree that cover
its clients. These nodes are complete as soon as all of their clients are done, and are removed from the folds when they
are handed in. Neither therefore changes a result.
"""

import asyncio
import enum
import itertools
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

import attrs
import numpy as np

from fedstack.computations.plan.tasks import Phase
from fedstack.computations.values.columns import Column, concatenate
from fedstack.executors.base.phase_sink import PhaseResult, PhaseSink
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.executors.folds.fold_states import FoldState
from fedstack.executors.folds.tree_fold import Partial
from fedstack.foundations.deadline import Deadline

# Handing in takes at most this share of the time, if enough clients are left.
_MOST_COST = 0.02
# Sending a byte takes about as many seconds over a fast network.
SECONDS_PER_BYTE = 2e-9
# The size of contributions up to which a few more nodes do not matter.
_SMALL_BYTES = 256 * 1024
# Moving clients to another worker takes a few milliseconds, and the time to send the values that clients share. A
# worker keeps its clients if leaving them to another worker does not save more time than this.
_LEAST_SAVING_SECONDS = 0.03


# A range of clients, and what they contribute to a phase.
Contribution: TypeAlias = tuple[range, PhaseResult]


@attrs.frozen
class Headway:
    """How far a worker is with its clients.

    Attributes:
      stop: The index after the last client that the worker runs. It leaves the clients from there on to other workers.
      done: The number of clients that it has run, including clients that it has handed in.
    """

    stop: int
    done: int


# Asks a worker to leave its last clients to another worker, which runs the given number of clients per second. It keeps
# as many clients as it can run in the time in which the other worker runs the rest. At an infinite rate, it keeps only
# the clients that it has begun; at `END`, it ends the phase now, and the clients that are not done are late. Returns
# `None` if the worker cannot do this, or has ended the phase.
Leave: TypeAlias = Callable[[float], Awaitable[Headway | None]]

END = -math.inf


class Why(enum.Enum):
    """Why a worker runs clients that another worker had."""

    LOST = "lost"
    MOVED = "moved"
    COPIED = "copied"


@attrs.frozen
class Origin:
    """Where clients come from that a worker does not run from the beginning of a phase.

    Attributes:
      why: Whether the other worker was lost, has left the clients to this worker, or runs them as well.
      worker: The other worker.
    """

    why: Why
    worker: str


@attrs.frozen(eq=False)
class HandIn:
    """Receives contributions to a phase.

    Attributes:
      take: Receives the contribution of a range of clients. May be called on any thread.
      seconds: The minimum time between two contributions, in seconds.
      is_free: Returns whether a contribution would be sent soon. If not, handing in waits.
      begun: Receives a function to ask for the last clients, once the clients run. Never called if they stay together.
      reached: Receives the index of the first client that has certainly not begun, if the worker knows it.
      sent: Called on any thread when the inputs have been sent, if they are sent.
      all_begun: Called on any thread when no further clients will begin.
      call_id: An id for the call to the worker; by default it draws one.
      after: The id of a call to the same worker, whose clients begin before those of this call.
      function_bytes: The size of the functions, which another worker may have to receive.
      origin: Where the clients come from, for the status of the worker; `None` if it has had them from the beginning.
    """

    take: Callable[[range, PhaseResult], None]
    seconds: float
    is_free: Callable[[], bool] = lambda: True
    begun: Callable[[Leave], None] = lambda leave: None
    reached: Callable[[int], None] = lambda client: None
    sent: Callable[[], None] = lambda: None
    all_begun: Callable[[], None] = lambda: None
    call_id: str = ""
    after: str = ""
    function_bytes: int = 0
    origin: Origin | None = None


class HandInSink(PhaseSink):
    """Passes results to the folds of a phase, and hands in the contributions of the first clients from time to time.

    Args:
      phase: The phase.
      states: The state of each fold.
      clients: The clients of the phase.
      hand_in: Receives contributions, on the threads that run clients.
      shared_bytes: The size of the values that all clients share.
    """

    def __init__(
        self, phase: Phase, states: Sequence[FoldState], clients: range, hand_in: HandIn, shared_bytes: int = 0
    ) -> None:
        super().__init__(phase, states)
        self._least_saving = _LEAST_SAVING_SECONDS + 2 * (shared_bytes + hand_in.function_bytes) * SECONDS_PER_BYTE
        self._clients = clients
        self._first = clients.start  # the first client whose contribution has not been handed in
        self._stop = clients.stop
        self._claimed = self._client = clients.start
        self._bounds = threading.Lock()
        self._clock = asyncio.get_running_loop().time
        self._begun = self._clock()
        self._hand_in = hand_in
        self._due = self._begun + hand_in.seconds
        self._turn = threading.Lock()
        self._is_small = False
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    def claim(self, stop: int) -> int:
        with self._bounds:
            stop = min(stop, self._stop)
            self._claimed = max(stop, self._claimed)
            is_last = stop == self._stop
        if is_last:
            self._hand_in.all_begun()
        return stop

    async def leave(self, rate: float) -> Headway:
        """Leaves clients that have not been claimed to another worker; see `Leave`."""
        seconds = self._clock() - self._begun
        with self._bounds:
            done, begun = self._client - self._clients.start, self._claimed - self._clients.start
            if rate > 0:
                own = estimated_rate(done, begun - done, seconds, rate)
                self._stop = kept_until(range(self._claimed, self._stop), begun - done, own, rate, self._least_saving)
            return Headway(self._stop, done)

    def reached(self, client: int) -> None:
        self._client = client
        self.look()

    def look(self) -> None:
        """Hands in what can be handed in now, if it is time."""
        if self._clock() >= self._due and self._turn.acquire(blocking=False):
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
            left, self._first = range(self._first, self._stop), self._stop
            partials = [state.partials() for state in self.states]
            return left, PhaseResult(partials, self.columns(), self.failures, self.ran, self.again)

    def _reached(self, client: int) -> None:
        left = range(self._first, self._stop)
        # The last contribution is the result of the phase.
        if not left.start < client < left.stop or not self._hand_in.is_free():
            return
        # The stop is a multiple of a large power of two, so that the contribution has few nodes. At least half of the
        # clients are handed in; if the nodes are small, seven of eight.
        block = 1 << (client - left.start).bit_length() - 1
        block = max(1, block // 8) if self._is_small else block
        clients, begin = range(left.start, client // block * block), self._clock()
        result = self._taken(clients)
        if result is None:
            return
        self._first = clients.stop
        size = sum(map(_size, result.partials))
        self._is_small = size <= _SMALL_BYTES
        self._hand_in.take(clients, result)
        now = self._clock()
        self._due = now + max(self._hand_in.seconds, (now - begin + size * SECONDS_PER_BYTE) / _MOST_COST)

    def _taken(self, clients: range) -> PhaseResult | None:
        """Removes and returns the contribution of the first clients; `None` if it is not complete."""
        columns = self._taken_columns(clients)
        if columns is None:
            return None
        with self._lock:
            again = {client: error for client, error in self.again.items() if client in clients}
        partials: list[object] = []
        for state in self.states:
            taken = state.take(clients, again.keys())
            if taken is None:
                for each, found in zip(self.states, partials):
                    each.merge(found)
                if columns:
                    self.keep(clients.start, columns)
                return None
            partials.append(taken)
        with self._lock:
            failures = {client: error for client, error in self.failures.items() if client in clients}
            for client in failures:
                del self.failures[client]
            for client in again:
                del self.again[client]
            ran, self.ran = self.ran, []  # also those of clients behind the range: where they are told does not matter
        return PhaseResult(partials, columns, failures, ran, again)

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


def estimated_rate(done: int, running: int, seconds: float, rate: float) -> float:
    """Returns the estimated number of clients that a worker runs per second.

    Args:
      done: The number of clients that the worker has run.
      running: The number of clients that it is running. Half of them count as done.
      seconds: The time since the worker began, in seconds.
      rate: The rate of another worker, which is assumed for a worker that has just begun.
    """
    return (done + running / 2 + 1) / (seconds + 1 / rate)


def kept_until(left: range, running: int, own: float, rate: float, least_saving: float = _LEAST_SAVING_SECONDS) -> int:
    """Returns the index before which a worker ends if another worker runs the clients from there on.

    Both end at about the same time. The index is a multiple of a large power of two, so that neither contribution has
    many nodes.

    Args:
      left: The clients that the worker has not begun.
      running: The number of clients that it is running.
      own: The number of clients that the worker runs per second.
      rate: The number of clients that the other worker runs per second; infinity to keep no client.
      least_saving: The time that leaving clients to the other worker has to save, in seconds.

    Returns:
      The index; that of the end if this would save little time.
    """
    if rate == math.inf:
        return left.start
    if len(left) / own <= least_saving:
        return left.stop
    # Even a single client that the worker keeps begins only after a running client has ended.
    if len(left) / rate <= 1.5 * max(1, running) / own:
        return left.start
    most = len(left) * rate / (own + rate)
    if most < 1 or most / own <= least_saving:
        return left.stop
    wanted, exact = 1, left.stop - int(most)
    while 8 * wanted <= most:
        wanted *= 2
    return min(left.stop, -(-exact // wanted) * wanted)


def _size(partials: object) -> int:
    """Returns the size of partial results in bytes; values of general aggregations may be of any kind."""
    if isinstance(partials, Partial):
        return _size(partials.value)
    if isinstance(partials, (np.ndarray, np.generic)):
        return partials.nbytes
    if isinstance(partials, bytes):
        return len(partials)
    if isinstance(partials, dict):
        return sum(map(_size, cast("dict[int, object]", partials).values()))
    return sum(map(_size, cast("Sequence[object]", partials))) if isinstance(partials, (list, tuple)) else 0
