"""Runs the clients of one worker in pieces, of which the next ones are under way while the first one runs.

Engines whose tasks answer once run a series of tasks (`task_pace.py`), so that what a task has answered is not lost
with the worker, and clients whose tasks have not been queued can move to other workers. Workers that receive large
inputs run a series of calls, so that their first clients run while the inputs of the others travel.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

import attrs

from fedstack.computations.values.columns import Column
from fedstack.computations.values.shared_columns import bytes_per_client, shared_bytes
from fedstack.errors import FedstackError, ResourceLimitError
from fedstack.executors.base.hand_ins import END, Contribution, HandIn, Headway, Leave, estimated_rate, kept_until
from fedstack.executors.composing_executor import LOSSES
from fedstack.executors.concurrency.coroutines import end_all
from fedstack.foundations.draws import draw_id

# A piece has this many times as many clients as a worker runs at the same time, since workers are less busy between two
# pieces, and its inputs have a size between these limits. Sending 16 MiB takes some ten milliseconds.
_TIMES_AT_ONCE = 4
_LEAST_BYTES, _MOST_BYTES = 16 << 20, 32 << 20
# A piece has this many times the size of the values that all clients share, which may be sent with each piece.
_TIMES_SHARED = 8
# The number of clients that a worker runs at the same time if it does not report it.
_THREADS = 32

# Runs a range of clients, and returns the contribution of those that have not been handed in.
RunPiece = Callable[[range, HandIn], Awaitable[Contribution]]


@attrs.frozen
class ClientPieces:
    """How the clients of a worker are divided.

    Attributes:
      size: Returns the number of clients of the next piece, given the clients that are left.
      most: The maximum number of pieces that are under way at the same time.
      in_turn: Whether the inputs of a piece travel after those of the previous one, and its clients begin after the
        previous ones.
    """

    size: Callable[[range], int]
    most: int = 2
    in_turn: bool = False


def pieces_of_inputs(inputs: Sequence[object], clients: int, threads: int | None) -> ClientPieces | None:
    """Returns how to divide clients such that some run while the inputs of others travel.

    Args:
      inputs: The inputs of the clients.
      clients: The number of clients.
      threads: The number of clients that the worker runs at the same time; `None` if it is not known.

    Returns:
      The division; `None` if the inputs are small, so that all of them travel together.
    """
    each = sum(bytes_per_client(column) for column in inputs if isinstance(column, Column))
    at_once = threads or _THREADS
    piece = max(min(_TIMES_AT_ONCE * at_once * each, _MOST_BYTES), _LEAST_BYTES, _TIMES_SHARED * shared_bytes(inputs))
    if each * clients < 2 * piece:
        return None
    # A piece is a node of the tree, so that its contribution is small.
    size = 1 << max(1, piece // each).bit_length() - 1
    # As many clients as the worker can run at the same time, one piece that is there, and one that travels.
    most = 2 + math.ceil(at_once / size)
    return ClientPieces(lambda left: min((left.start // size + 1) * size, left.stop) - left.start, most, in_turn=True)


def _ignore(_: int) -> None:
    """Ignores how far a piece is, of which all clients count as begun."""


class PieceRun:
    """One series of pieces.

    Args:
      run: Runs one piece.
      pieces: How the clients are divided.
      clients: The clients of the worker.
      hand_in: Receives the contributions of all pieces but the last.
    """

    def __init__(self, run: RunPiece, pieces: ClientPieces, clients: range, hand_in: HandIn) -> None:
        self._run = run
        self._pieces = pieces
        self._most = pieces.most
        self._refused: list[range] = []
        self._hand_in = hand_in
        self._next = clients.start
        self._stop = clients.stop
        self._done = 0
        self._begun = time.monotonic()
        self._running: dict[asyncio.Task[Contribution], range] = {}
        self._leaves: dict[range, Leave] = {}
        self._last_id = ""
        self._is_sent = True
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> Contribution:
        """Runs all pieces, and returns the contribution of the last one that ends.

        Raises:
          FedstackError: If a piece fails. If several clients fail, the error is that of the first.
        """
        self._hand_in.begun(self.leave)
        try:
            while True:
                self._start()
                await self._news.wait()
                self._news.clear()
                for piece, clients in [(piece, clients) for piece, clients in self._running.items() if piece.done()]:
                    if self._is_refused(piece):
                        continue
                    await self._raise_first(piece, clients)
                    del self._running[piece]
                    self._done += len(clients)
                    if not (self._running or self._refused) and self._next >= self._stop:
                        return piece.result()
                    self._hand_in.take(*piece.result())
        except BaseException as error:
            await end_all(list(self._running), error)
            raise
        finally:
            self._running.clear()
            self._leaves.clear()

    async def leave(self, rate: float) -> Headway | None:
        """Leaves clients to another worker; see `Leave`. First those of pieces that have not begun."""
        if rate == END:
            self._stop = self._next
            self._refused.clear()
            asked = [self._leaves.get(clients) for clients in self._running.values()]
            answers = await asyncio.gather(*(leave(rate) for leave in asked if leave is not None))
            # A task that runs cannot be asked what it has finished.
            return Headway(self._stop, self._done) if answers and all(answers) else None
        running = sum(map(len, self._running.values()))
        if rate > 0 and self._next < self._stop:
            own = estimated_rate(self._done, running, time.monotonic() - self._begun, rate)
            self._stop = kept_until(range(self._next, self._stop), running, own, rate)
        elif rate > 0 and self._running:
            last = max(self._running.values(), key=lambda clients: clients.start)
            leave = self._leaves.get(last)
            headway = None if leave is None else await leave(rate)
            if headway is not None:
                self._stop = self._next = min(self._stop, headway.stop)
        return Headway(self._stop, self._done)

    def _start(self) -> None:
        """Starts pieces while clients are left and pieces may start."""
        while (self._refused or self._next < self._stop) and len(self._running) < self._most and self._is_sent:
            if self._refused:
                clients = self._refused.pop(0)
            else:
                clients = range(self._next, self._next + self._pieces.size(range(self._next, self._stop)))
                self._next = clients.stop
                self._hand_in.reached(clients.stop)
            self._is_sent = not self._pieces.in_turn
            piece = asyncio.ensure_future(self._run(clients, self._hand_in_of(clients)))
            piece.add_done_callback(self._ended)
            self._running[piece] = clients

    def _hand_in_of(self, clients: range) -> HandIn:
        """Returns the hand-in of a piece."""

        def begun(leave: Leave) -> None:
            self._leaves[clients] = leave

        def sent() -> None:
            self._loop.call_soon_threadsafe(self._sent)

        after, self._last_id = self._last_id, draw_id().hex() if self._pieces.in_turn else ""
        return attrs.evolve(self._hand_in, begun=begun, sent=sent, reached=_ignore, call_id=self._last_id, after=after)

    def _sent(self) -> None:
        self._is_sent = True
        self._news.set()

    def _ended(self, piece: "asyncio.Task[Contribution]") -> None:
        self._sent()  # at the latest

    def _is_refused(self, piece: "asyncio.Task[Contribution]") -> bool:
        """Returns whether a worker has refused a piece that may run later, because it is busy with the others."""
        if not isinstance(piece.exception(), ResourceLimitError) or len(self._running) == 1:
            return False
        self._refused.append(self._running.pop(piece))
        self._refused.sort(key=lambda clients: clients.start)
        self._most = len(self._running)
        return True

    async def _raise_first(self, failed: "asyncio.Task[Contribution]", clients: range) -> None:
        """Raises the error of a piece, or that of a piece with earlier clients, which may still be running."""
        error = failed.exception()
        if error is None:
            return
        if isinstance(error, FedstackError) and not isinstance(error, LOSSES):
            for piece, other in list(self._running.items()):
                if other.start < clients.start:
                    del self._running[piece]
                    self._hand_in.take(*await piece)
        raise error
