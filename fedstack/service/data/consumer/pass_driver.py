"""Carries out the plan of a pass: calls the dispatcher and the workers, and passes elements to a thread."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fedstack.computations.types.language import RetryableError
from fedstack.computations.values.columns import Column
from fedstack.errors import ClosedError, FedstackError, NoWorkersError, StaleSessionError
from fedstack.executors.concurrency.coroutines import raised_again
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.membership.reaching import WaitNotice
from fedstack.proto.data_service_pb2 import (
    Commit,
    DatasetDescription,
    DataWorkerAddress,
    ReadRequest,
    SplitRange,
    TakeResponse,
)
from fedstack.service.data.consumer.acknowledgements import Position
from fedstack.service.data.consumer.connections import Connections, Opening, PassClient, taken_range
from fedstack.service.data.consumer.data_workers import LostWorkers
from fedstack.service.data.consumer.pass_plan import PassPlan, Read, Take
from fedstack.service.data.reading.readers import Reader, Reading
from fedstack.transport.peers.io_loop import calls_on, start_apart
from fedstack.transport.wire.connection_errors import never_arrived

_logger = logging.getLogger(__name__)
# The interval between requests to the dispatcher while no worker is reachable.
_LOOK_SECONDS = 0.1
_ALIVE_SECONDS = 1.0


class PassDriver:
    """The driver of one pass. It runs on the loop of its connections, except for the methods for the consumer's thread.

    Args:
      plan: The plan, which makes the decisions.
      connections: The connections to the dispatcher and to workers.
      opening: The parameters of the pass.
      register: Registers the dataset with the dispatcher if necessary.

    Attributes:
      opening: The parameters of the pass.
    """

    def __init__(
        self,
        plan: PassPlan,
        connections: Connections,
        opening: Opening,
        register: Callable[[], Coroutine[Any, Any, DatasetDescription]],
    ) -> None:
        self._plan = plan
        self._connections = connections
        self.opening = opening
        self._client = PassClient(connections.dispatcher, opening, register)
        self._io = connections.io
        self._arrived = threading.Condition()
        self._error: Exception | None = None
        self._closed = False
        self._is_resumable = opening.request.resumes
        self._wake = asyncio.Event()
        self._addresses: dict[bytes, str] = {}
        self._foreign: set[bytes] = set()
        self._readings: dict[bytes, Reading] = {}
        self._reads: dict[bytes, asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._lost = LostWorkers(self._found)
        self._ending: asyncio.Task[None] | None = None
        # While no worker is reachable: the deadline for finding a worker, and the notice that is logged.
        self._search: tuple[Deadline, WaitNotice] | None = None

    # For the consumer's thread.

    def begin(self) -> None:
        """Begins the pass."""
        calls_on(self._io.loop).add(lambda: self._start(self._run()))

    def take(self) -> Column | None:
        """Waits for the next elements and returns them; returns `None` after the last element.

        Raises:
          FedstackError: The error that ended the pass.
          ClosedError: If the pass was closed.
        """
        if self._io.is_current():
            raise RuntimeError(
                "Expected a call from outside the transport's loop, found a call on that loop; wait on another thread"
            )
        with self._arrived:
            while not self.has_news():
                self.ask()
                self._arrived.wait()
            return self.next()

    def has_news(self) -> bool:
        """Returns whether `take` would return or raise without waiting."""
        return self._plan.is_over or self._plan.has_arrived or self._error is not None or self._closed

    def ask(self) -> None:
        """Records that the consumer is waiting for elements."""
        self._note(self._plan.ask)

    def work_on(self, blocks: int) -> None:
        """Records the number of blocks that the consumer is processing while it requests more, as a prefetch does."""
        self._note(lambda: self._plan.work_on(blocks))

    def _note(self, what: Callable[[], None]) -> None:
        with self._arrived:
            what()
            others_wait = self._plan.others_wait
        if others_wait:
            calls_on(self._io.loop).add(self._wake.set)

    def next(self) -> Column | None:
        """Does the same as `take` without waiting. Call it only if `has_news` returns true."""
        column = self._plan.next()
        if column is not None:
            calls_on(self._io.loop).add(self._turn)
        elif self._error is not None:
            raise raised_again(self._error)
        elif self._closed:
            raise ClosedError("Expected an open iterator, found a closed one; create a new iterator")
        return column

    def acknowledge(self, rows: int | None) -> None:
        """Acknowledges the first `rows` elements, or all elements returned so far if `rows` is `None`."""
        self._note(lambda: self._plan.acknowledge(rows))

    def position(self, rows: int) -> Position:
        """Returns the position after the first `rows` elements, and makes the pass resumable from then on.

        Raises:
          ClosedError: If the pass was closed; other consumers may then have received the remaining elements.
        """
        with self._arrived:
            if self._closed and not self._is_resumable:
                raise ClosedError(
                    "Expected an open iterator when a cursor is requested, found a closed one; request the cursor "
                    "before calling close()"
                )
            self._is_resumable = True
            return self._plan.position(rows)

    def keep(self) -> None:
        """Makes the pass resumable from then on, at any position of its consumer."""
        with self._arrived:
            self._is_resumable = self._is_resumable or not self._closed

    @property
    def missing(self) -> int | None:
        """The number of lost elements; `None` if elements were lost, but their number is not known."""
        return self._plan.missing

    @property
    def commit(self) -> Commit:
        """The dispatcher's latest commit that this consumer has received; its number is 0 before the pass begins."""
        return self._client.commit

    def close(self, seconds: float = 0.0) -> None:
        """Ends the pass and reports the finished ranges to the dispatcher. Idempotent; never raises.

        Args:
          seconds: How long to wait for the dispatcher, in seconds; 0 means not to wait.
        """
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()
        if seconds:
            self._io.finish(self._end(), seconds)
        else:
            self._io.call_soon(lambda: start_apart(self._end()))

    # On the loop.

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = start_apart(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _fail(self, error: Exception) -> None:
        with self._arrived:
            self._error = self._error or without_own_frames(error)
            self._arrived.notify_all()
        self._wake.set()

    def _turn(self) -> None:
        """Sends the plan's requests to the workers."""
        if self._closed or self._error is not None:
            return
        with self._arrived:
            reads = self._plan.reads()
        for read in reads:
            self._reads[read.worker] = self._start(self._read(read))
        self._wake.set()

    async def _run(self) -> None:
        try:
            await self._open()
            await self._go_on()
        except Exception as error:
            self._fail(error)

    async def _open(self) -> None:
        response = await self._client.open()
        with self._arrived:
            self._plan.resume(map(taken_range, response.taken), self.opening.position, response.next_number)

    async def _go_on(self) -> None:
        """Takes ranges from the dispatcher, with regular requests that renew the pass's lease."""
        due = 0.0
        while not (self._closed or self._error is not None):
            now = self._io.time()
            with self._arrived:
                take = self._plan.take(must=now >= due)
            if take is None:
                self._wake.clear()
                timer = self._io.loop.call_later(due - now, self._wake.set)
                try:
                    await self._wake.wait()
                finally:
                    timer.cancel()
            else:
                self._took(await self._answer(take))
                self._check_workers()
                pause = self._client.renewal_seconds if self._search is None else _LOOK_SECONDS
                due = self._io.time() + pause

    async def _answer(self, take: Take) -> TakeResponse:
        """Waits for the dispatcher's answer, and meanwhile reports progress for which other consumers are waiting."""
        asking = asyncio.ensure_future(self._client.take(take))
        try:
            while not asking.done():
                waking = asyncio.ensure_future(self._wake.wait())
                try:
                    await asyncio.wait([asking, waking], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waking.cancel()
                self._wake.clear()  # before the news is read, because more news may follow while it is sent
                with self._arrived:
                    news = self._plan.news_for_others()
                if news is not None and not asking.done():
                    await self._client.tell(news)
            return asking.result()
        finally:
            asking.cancel()

    def _took(self, response: TakeResponse) -> None:
        with self._arrived:
            for one in response.range:
                if one.worker in self._foreign:
                    self._plan.pass_over(one.id)
            ours = [taken_range(one) for one in response.range if one.worker not in self._foreign]
            self._plan.took(ours, response.is_exhausted)
            if response.workers_version:
                self._list(response.worker)
            if self._plan.is_over:
                self._arrived.notify_all()
        self._turn()

    def _list(self, workers: Iterable[DataWorkerAddress]) -> None:
        mine: list[bytes] = []
        for one in workers:
            self._addresses[one.worker] = one.address
            if self._connections.may_ask(one.worker, one.address):
                mine.append(one.worker)
            else:
                self._foreign.add(one.worker)
        self._lost.keep(mine)
        for worker in self._plan.list_workers(mine):
            self._start(self._check_alive(worker))

    def _check_workers(self) -> None:
        """Checks how much time has passed without a reachable worker.

        Raises:
          NoWorkersError: If no worker has been reachable within the time limit of the pass.
        """
        if self._plan.has_workers or self._plan.is_over:
            self._search = None
            return
        seconds, dispatcher = self.opening.timeout, self._connections.dispatcher.address
        if self._search is None:
            self._search = Deadline(seconds, self._io.time), WaitNotice("a data worker", seconds, self._io.time)
        deadline, notice = self._search
        if deadline.is_over:
            raise NoWorkersError(
                f"Expected a reachable data worker of the dispatcher at {dispatcher}, found none within "
                f"{seconds:g} s; start one with `fedstack serve --data-worker {dispatcher}`"
            )
        notice.waits(f"no data worker is registered with the dispatcher at {dispatcher}")

    async def _read(self, read: Read) -> None:
        try:
            reading = self._readings.get(read.worker)
            if read.begins or reading is None:
                reading = self._readings[read.worker] = self._begin(read)
            columns = await reading.next()
        except StaleSessionError as error:  # the dispatcher was restarted; the worker is not to blame
            self._fail(error)
            return
        except (RetryableError, ClosedError) as error:
            self._lose(read.worker, error)
            return
        except Exception as error:
            self._fail(error)
            return
        with self._arrived:
            self._plan.arrive(read, columns)
            self._arrived.notify_all()
        self._turn()

    def _begin(self, read: Read) -> Reading:
        one = read.range
        request = ReadRequest(
            digest=self.opening.request.digest,
            splits=SplitRange(id=one.id, first=one.first, last=one.last, whole=one.whole, shard=one.shard),
            num_splits=self.opening.num_splits,
            first_element=one.rows,
            commit=self._client.commit,
            pass_id=self._client.pass_id,
        )
        return self._reader(read.worker).open(request, self.opening.element, self.opening.ahead)

    def _reader(self, worker: bytes) -> Reader:
        return self._connections.reader(worker, self._addresses[worker])

    def _lose(self, worker: bytes, error: Exception) -> None:
        if self._closed or self._error is not None:
            return
        address = self._addresses[worker]
        try:
            with self._arrived:
                was_there = not (isinstance(error, FedstackError) and never_arrived(error))
                missing = self._plan.lose(worker, error, was_there)
                self._arrived.notify_all()
        except FedstackError as failure:
            self._fail(failure)
            return
        left_out = "" if not missing else f", and skips {counted(missing, 'element') if missing > 0 else 'elements'}"
        _logger.warning("This pass continues without the data worker at %s%s: %s", address, left_out, error)
        reading = self._readings.pop(worker, None)
        if reading is not None:
            self._start(reading.close())
        if worker in self._plan.away:
            self._lost.add(worker, self._reader(worker))
        self._turn()

    def _found(self, worker: bytes) -> None:
        with self._arrived:
            self._plan.found(worker)
        self._turn()

    async def _check_alive(self, worker: bytes) -> None:
        """Gives up a worker that the dispatcher no longer lists, unless the worker still answers this consumer."""
        try:
            await self._reader(worker).reach(_ALIVE_SECONDS)
        except FedstackError:
            task = self._reads.get(worker)
            if task is not None:
                task.cancel()
            self._lose(
                worker, NoWorkersError("the dispatcher no longer lists the worker, and the worker does not answer")
            )

    async def _end(self) -> None:
        """Ends the pass, its tasks and its readings. Idempotent."""
        if self._ending is None:
            self._ending = start_apart(self._leave())
        await asyncio.shield(self._ending)

    async def _leave(self) -> None:
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
        await self._lost.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for reading in self._readings.values():
            await reading.close()
        with self._arrived:
            # Even a pass that was read completely can be resumed, because a cursor may refer to an earlier position.
            last = self._plan.leave(self._is_resumable)
        await self._client.leave(last, self._is_resumable)

    def __repr__(self) -> str:
        return f"<PassDriver of {self._plan!r}>"
