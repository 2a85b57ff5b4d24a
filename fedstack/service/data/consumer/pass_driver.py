"""Carries out the plan of a pass: calls the dispatcher and the workers, and hands elements to a thread."""

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
# The interval between requests for workers while there are none.
_LOOK_SECONDS = 0.1
_ALIVE_SECONDS = 1.0


class PassDriver:
    """One pass. It belongs to the loop of its connections, except for the methods that other threads call.

    Args:
      plan: Makes the decisions.
      connections: The connections to the dispatcher and to workers.
      opening: The parameters of the pass.
      register: Ensures that the dispatcher has the dataset.

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
        # While there is no worker: the deadline for finding one, and the notice that is logged.
        self._search: tuple[Deadline, WaitNotice] | None = None

    # For the thread that consumes.

    def begin(self) -> None:
        """Begins the pass."""
        calls_on(self._io.loop).add(lambda: self._start(self._run()))

    def take(self) -> Column | None:
        """Waits for the next elements; `None` after the last.

        Raises:
          FedstackError: The error that ended the pass.
          ClosedError: If the pass was closed.
        """
        if self._io.is_current():
            raise RuntimeError("Expected a wait outside the transport's loop, found one on the loop")
        with self._arrived:
            while not self.has_news():
                self.ask()
                self._arrived.wait()
            return self.next()

    def has_news(self) -> bool:
        """Returns whether `take` would not wait."""
        return self._plan.is_over or self._plan.has_arrived or self._error is not None or self._closed

    def ask(self) -> None:
        """Records that the consumer waits for news."""
        self._note(self._plan.ask)

    def work_on(self, blocks: int) -> None:
        """Records how many blocks the consumer is processing while it asks for more, as a prefetch does."""
        self._note(lambda: self._plan.work_on(blocks))

    def _note(self, what: Callable[[], None]) -> None:
        with self._arrived:
            what()
            others_wait = self._plan.others_wait
        if others_wait:
            calls_on(self._io.loop).add(self._wake.set)

    def next(self) -> Column | None:
        """Does the same as `take`, but does not wait: call it only if there is news."""
        column = self._plan.next()
        if column is not None:
            calls_on(self._io.loop).add(self._turn)
        elif self._error is not None:
            raise raised_again(self._error)
        elif self._closed:
            raise ClosedError("Expected an open iterator, found one that has been closed; make a new one")
        return column

    def acknowledge(self, rows: int | None) -> None:
        """Acknowledges the first `rows` elements, or all that were handed out if `None`."""
        self._note(lambda: self._plan.acknowledge(rows))

    def position(self, rows: int) -> Position:
        """Returns the position after `rows` elements since the beginning; from now on the pass can be resumed there.

        Raises:
          ClosedError: If the pass was closed, so that other consumers may have the rest.
        """
        with self._arrived:
            if self._closed and not self._is_resumable:
                raise ClosedError(
                    "Expected the cursor of an open iterator, found one that has been closed; take the cursor "
                    "before close()"
                )
            self._is_resumable = True
            return self._plan.position(rows)

    def keep(self) -> None:
        """Makes the pass resumable from now on, at any position of its consumer."""
        with self._arrived:
            self._is_resumable = self._is_resumable or not self._closed

    @property
    def missing(self) -> int | None:
        """The number of lost elements; `None` if some were lost, but it is not known how many."""
        return self._plan.missing

    @property
    def commit(self) -> Commit:
        """The latest commit of the dispatcher that this consumer has heard of; number 0 before the pass has begun."""
        return self._client.commit

    def close(self, seconds: float = 0.0) -> None:
        """Ends the pass and tells the dispatcher which ranges are finished. Idempotent; never raises.

        Args:
          seconds: How long to wait for the dispatcher; by default not at all.
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
        """Sends the workers the requests that the plan wants now."""
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
        """Takes ranges, and regularly shows the dispatcher a sign of life."""
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
        """Waits for the dispatcher's answer, and meanwhile sends it news that other consumers wait for."""
        asking = asyncio.ensure_future(self._client.take(take))
        try:
            while not asking.done():
                waking = asyncio.ensure_future(self._wake.wait())
                try:
                    await asyncio.wait([asking, waking], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waking.cancel()
                self._wake.clear()  # before the news is read: more may come while it is sent
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
        """Checks how long there has been no worker.

        Raises:
          NoWorkersError: If there has been none for too long.
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
                f"Expected a reachable data worker, found none at the dispatcher {dispatcher} for "
                f"{seconds:g} s; start some with `fedstack serve --data-worker {dispatcher}`"
            )
        notice.waits(f"none attends at the dispatcher {dispatcher}")

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
        left_out = "" if not missing else f", and leaves out {counted(missing, 'element') if missing > 0 else 'some'}"
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
        """Gives up a worker that is no longer listed, unless it still answers here."""
        try:
            await self._reader(worker).reach(_ALIVE_SECONDS)
        except FedstackError:
            task = self._reads.get(worker)
            if task is not None:
                task.cancel()
            self._lose(worker, NoWorkersError("the dispatcher has not heard of it for a while, and it does not answer"))

    async def _end(self) -> None:
        """Ends everything. Idempotent."""
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
            # A cursor may be older: even a pass that was read to its end can be resumed.
            last = self._plan.leave(self._is_resumable)
        await self._client.leave(last, self._is_resumable)

    def __repr__(self) -> str:
        return f"<PassDriver of {self._plan!r}>"
