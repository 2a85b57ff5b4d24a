"""The dispatcher's service, which keeps track of datasets and workers and assigns ranges of splits to consumers."""

import asyncio
import contextlib
import functools
import logging
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

from fedstack.errors import ClosedError, FedstackError, InvalidValueError, MembershipError, WorkerUnavailableError
from fedstack.executors.concurrency.leaf_threads import LeafThreads, off_loop, read_message
from fedstack.executors.worker.receiving import receive
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import name_text
from fedstack.proto import data_service_pb2 as messages
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.service.data.dispatcher import datasets, passes
from fedstack.service.data.dispatcher.attendance import Attendance, Times, addresses_of
from fedstack.service.data.dispatcher.heard_commits import HeardCommits
from fedstack.service.data.dispatcher.journal import Journal, Tables
from fedstack.service.executor.requests import control
from fedstack.service.host.limits import DispatcherLimits, add_limits
from fedstack.transport.grpc.credential_files import Renewed, token_matches
from fedstack.transport.peers.dispatcher_stub import DISPATCHER
from fedstack.transport.peers.executor_stub import check_protocol, with_protocol
from fedstack.transport.peers.io_loop import start_apart
from fedstack.transport.peers.leases import Leases
from fedstack.transport.peers.methods import Answers, DownloadMethod, Method, ServerFacts, Service, UploadMethod
from fedstack.transport.wire.parcels import Incoming, Parcel

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
_LONGEST_WAIT_SECONDS = 60.0
_ATTENDS_SECONDS = 1.0
_SIGNS_IN_A_LEASE = 4
# A dispatcher that was stalled for this long did not process requests, so expired leases do not mean lost peers.
_LATE_SECONDS = 1.0
_STOPPING = "The dispatcher is stopping; retry after it has been restarted"


class DispatchService(Service):
    """The dispatcher of a data service.

    Args:
      journal: The journal of the dispatcher's state, which the service closes when it is closed.
      worker_addresses: The addresses of the workers that may register, as `host`, `host:port` or `host:%port%`; `None`
        for any address.
      worker_tokens: The tokens, one of which a worker must present to register; `None` if no token is required.
      times: The dispatcher's timeouts and intervals.
      limits: The resource limits for clients of the dispatcher.
      clock: Returns the time in seconds.
      wall_clock: Returns the time in seconds since the epoch.

    Attributes:
      threads: The single thread on which the journal is used.
    """

    def __init__(
        self,
        journal: Journal | None = None,
        *,
        worker_addresses: Sequence[str] | None = None,
        worker_tokens: Renewed[tuple[str, ...]] | None = None,
        times: Times | None = None,
        limits: DispatcherLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal or Journal()
        self._limits = limits or DispatcherLimits()
        self._times = times or Times()
        self._clock, self._wall_clock = clock, wall_clock
        # Each pool has a single thread. Definitions use a separate thread, because they may be large and must not
        # delay small requests.
        self.threads = LeafThreads(1, idle_seconds=1.0, work_ends=True)
        self._files = LeafThreads(1, idle_seconds=1.0, work_ends=True)
        with self._journal.transaction() as tables:
            known = dict(tables.execute("SELECT worker, address FROM workers"))
            here = passes.live_consumers(tables)
        # Workers that were registered before a restart must report again within one lease from now.
        self._attendance = Attendance(known, worker_addresses, self._limits, self._times.worker, clock)
        self._written = self._attendance.workers
        self._worker_tokens = worker_tokens
        self._is_open = worker_addresses is None and worker_tokens is None
        self._server: ServerFacts | None = None
        self._consumers: Leases[tuple[bytes, bytes]] = Leases(2 * self._limits.max_consumers, clock)
        for consumer in here:
            self._consumers.open(consumer, self._times.consumer)
        # For each pass, a future that is done when waiting requests should check for ranges again. The entry exists
        # while a request waits.
        self._news: weakref.WeakValueDictionary[bytes, asyncio.Future[None]] = weakref.WeakValueDictionary()
        self._heard = HeardCommits(self._journal, lambda work: self._on(self.threads, work), self._end_all)
        self._watching: asyncio.Task[None] | None = None
        self._draining = self._closed = False

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        """The methods of the gRPC service."""
        return {
            DISPATCHER: {
                "Register": UploadMethod(self.register),
                "Describe": control(messages.DescribeDatasetRequest, self.describe),
                "Define": DownloadMethod(self.define),
                "OpenPass": control(messages.OpenPassRequest, self._heard.checked(self.open_pass)),
                "Take": control(messages.TakeRequest, self._heard.checked(self.take)),
                "Release": control(messages.ReleasePassRequest, self._heard.checked(self.release)),
                "Attend": control(messages.AttendRequest, self._heard.checked(self.attend)),
                "ListWorkers": control(messages.ListWorkersRequest, self.list_workers),
            }
        }

    @property
    def sessions(self) -> Sequence[GetStatusResponse.Session]:
        return [
            GetStatusResponse.Session(id=key[1].hex()[:8], lease_seconds_left=self._consumers.seconds_left(key))
            for key in self._consumers
        ]

    def attach(self, server: ServerFacts) -> None:
        self._server = server

    async def report(self, status: GetStatusResponse) -> None:
        count = "SELECT (SELECT COUNT(*) FROM datasets), (SELECT COUNT(*) FROM passes)"
        counts = await self._run(lambda tables: tables.execute(count).fetchone())
        status.dispatcher.datasets, status.dispatcher.passes = counts
        status.dispatcher.consumers = len(self._consumers)
        status.dispatcher.worker.extend(sorted(self._attendance.workers.values()))
        add_limits(status, self._limits)

    async def register(self, incoming: Incoming) -> bytes:
        """Registers a dataset."""
        received = await receive(incoming, messages.RegisterDatasetRequest)
        dataset = received.message.dataset
        datasets.check_dataset(dataset, self._limits)
        buffer = memoryview(bytearray(dataset.definition_bytes))
        await received.rest.read_into([buffer])
        await off_loop(lambda: datasets.check_definition(dataset, buffer))

        # The first call only checks the dataset, so that the definition of a refused dataset is not stored. The second
        # call registers the dataset after its definition has been stored.
        register = functools.partial(datasets.register, dataset=dataset, limits=self._limits)
        await self._run(functools.partial(register, keeps=False))
        await self._on(self._files, lambda: self._journal.keep_definition(dataset.digest, buffer))
        return self._known_here(await self._run(register)).SerializeToString()

    async def describe(self, request: messages.DescribeDatasetRequest) -> messages.DatasetDescription:
        """Returns the description of a dataset, if the client uses the same protocol version."""
        check_protocol(request.protocol, request.version, "the client")
        found = await self._run(lambda tables: datasets.find_dataset(tables, request))
        if request.may_lack and found.digest and not self._journal.is_definition_sound(found.digest):
            if not await self._on(self._files, lambda: self._journal.has_definition(found.digest)):
                found = messages.DatasetDescription()  # so that the client registers the definition again
        return self._known_here(found)

    async def define(self, content: bytes) -> Answers:
        """Sends the definition of a dataset."""
        request = await read_message(messages.DescribeDatasetRequest, content)
        check_protocol(request.protocol, request.version, "the data worker")
        try:
            found = await self._run(lambda tables: datasets.find_dataset(tables, request))
        except InvalidValueError:
            await self._heard.check(request.commit)  # the dataset may be registered with another dispatcher
            raise
        definition = await self._on(self._files, lambda: self._journal.definition(found.digest))
        yield Parcel(self._known_here(found).SerializeToString(), [memoryview(definition)])

    async def open_pass(self, request: messages.OpenPassRequest) -> messages.OpenPassResponse:
        """Opens a pass for a consumer."""
        passes.check_request(request)

        def open(tables: Tables) -> messages.OpenPassResponse:
            dataset = datasets.find_dataset(tables, messages.DescribeDatasetRequest(digest=request.digest))
            return passes.open_pass(tables, request, dataset, self._limits, len(self._attendance.assigned))

        response = await self._run(open)
        self._shows_life((response.pass_id, request.consumer))
        response.lease_seconds = self._times.consumer
        return response

    async def take(self, request: messages.TakeRequest) -> messages.TakeResponse:
        """Records the ranges that a consumer has read, and assigns more ranges to the consumer.

        If there is no range yet, the answer is delayed by up to the request's `wait_seconds`.
        """
        consumer = request.pass_id, request.consumer
        deadline = Deadline(max(0.0, min(request.wait_seconds, _LONGEST_WAIT_SECONDS)), self._clock)
        is_first = True
        with self._held(consumer):
            while True:
                there = self._attendance
                workers, version = there.workers, there.version
                may_wait = not deadline.is_over and request.workers_version == version and not self._draining
                # Created before the tables are read, so that a change in the meantime is not missed.
                news = self._news.setdefault(request.pass_id, asyncio.get_running_loop().create_future())
                ask = functools.partial(passes.take, request=request, workers=workers, may_wait=may_wait)
                taken = await self._run(functools.partial(ask, assigned=there.assigned))
                if taken.wakes and is_first:  # repeating the same request changes nothing for other consumers
                    self._wake(request.pass_id)
                is_first = False
                if not (taken.is_empty and may_wait):
                    break
                await deadline.has_ended(news)
        if taken.is_empty and self._draining:
            raise WorkerUnavailableError(_STOPPING)
        self._shows_life(consumer)
        response = messages.TakeResponse.FromString(taken.answer)
        response.workers_version = version
        if request.workers_version != version:
            response.worker.extend(addresses_of(workers))
        return response

    async def release(self, request: messages.ReleasePassRequest) -> messages.ReleasePassResponse:
        """Removes a consumer from a pass."""
        wakes = await self._run(lambda tables: passes.release(tables, request, self._wall_clock()))
        self._consumers.end((request.pass_id, request.consumer))
        if wakes:
            self._wake(request.pass_id)
        return messages.ReleasePassResponse()

    async def attend(self, request: messages.AttendRequest) -> messages.AttendResponse:
        """Records that a worker with the same protocol version is available or is leaving."""
        check_protocol(request.protocol, request.version, "the data worker")
        worker = request.worker
        self._check_may_attend(request)
        here = self._attendance
        if here.leave(worker.worker) if request.leaves else here.attend(worker.worker, worker.address):
            _logger.info("The data worker at %s %s", worker.address, "has left" if request.leaves else "has registered")
        if self._attendance.workers is not self._written:  # also if an earlier write failed because the disk was full
            await self._workers_changed()
        interval = min(_ATTENDS_SECONDS, self._times.worker / _SIGNS_IN_A_LEASE)
        return with_protocol(messages.AttendResponse(interval_seconds=interval, lease_seconds=self._times.worker))

    def _check_may_attend(self, request: messages.AttendRequest) -> None:
        """Checks that a peer is authorized as a data worker, because consumers will send their tokens to its address.

        Raises:
          MembershipError: If the peer is not authorized.
        """
        tokens, server = self._worker_tokens, self._server
        if tokens is not None and not token_matches(request.token, tokens.get()):
            found = "another token" if request.token else "no token"
            raise MembershipError(
                f"Expected a token for data workers, found {found}; start the worker with --worker-token-file "
                "(WorkerConfig.worker_token_file) and a token from the dispatcher's file"
            )
        if self._is_open and server is not None and (server.asks_for_token or server.asks_for_certificate):
            raise MembershipError(
                f"Expected a data worker that proves its role, found a worker at {name_text(request.worker.address)} "
                "with a client's credentials; start the dispatcher with --worker-token-file "
                "(DispatcherConfig.worker_token_file) and the workers with a token from that file, or set "
                "worker_addresses"
            )

    async def list_workers(self, request: messages.ListWorkersRequest) -> messages.ListWorkersResponse:
        """Lists the registered workers."""
        return messages.ListWorkersResponse(worker=addresses_of(self._attendance.workers))

    async def _run(self, work: Callable[[Tables], _T]) -> _T:
        """Runs `work` as a transaction on the journal's thread."""

        def transact() -> _T:
            with self._journal.transaction() as tables:
                return work(tables)

        return await self._on(self.threads, transact)

    async def _on(self, threads: LeafThreads, work: Callable[[], _T]) -> _T:
        try:
            return await threads.run(work)
        except ClosedError as error:
            raise WorkerUnavailableError(_STOPPING) from error

    async def _workers_changed(self) -> None:
        self._wake()
        workers = self._attendance.workers

        def write(tables: Tables) -> None:
            tables.execute("DELETE FROM workers")
            tables.executemany("INSERT INTO workers VALUES (?, ?)", workers.items())

        await self._run(write)
        self._written = workers

    def _wake(self, *pass_ids: bytes) -> None:
        """Wakes the requests that wait for ranges in the given passes; by default in all passes."""
        for news in [self._news.pop(pass_id, None) for pass_id in pass_ids or tuple(self._news)]:
            if news is not None:
                news.set_result(None)

    def _known_here(self, dataset: messages.DatasetDescription) -> messages.DatasetDescription:
        dataset.commit.CopyFrom(self._journal.commit)
        return with_protocol(dataset)

    def _end_all(self) -> None:
        for consumer in tuple(self._consumers):
            self._consumers.end(consumer)
        self._wake()

    @contextlib.contextmanager
    def _held(self, consumer: tuple[bytes, bytes]) -> Generator[None, None, None]:
        """Prevents the lease of a consumer from expiring while its request waits."""
        is_held = self._consumers.hold(consumer)
        try:
            yield
        finally:
            if is_held:
                self._consumers.release(consumer)

    def _shows_life(self, consumer: tuple[bytes, bytes]) -> None:
        if not self._consumers.renew(consumer):
            self._consumers.end(consumer)
            self._consumers.open(consumer, self._times.consumer)

    async def _look_after(self) -> None:
        times, collected, due = self._times, self._clock(), self._clock()
        pauses = iter(lambda: max(0.0, due - self._clock()), None)
        async for _ in Deadline().attempts(pauses):
            late = self._clock() - due
            if late > max(_LATE_SECONDS, min(times.worker, times.consumer) / 2):
                _logger.warning("The dispatcher was stalled for %.1f s", late)
                self._attendance.excuse()
                for consumer in self._consumers.expired():
                    self._shows_life(consumer)
            else:
                try:
                    await self._expire()
                    if self._clock() >= collected + times.check:
                        collected = self._clock()
                        await self._collect()
                except FedstackError as error:  # a disk error, which may be temporary
                    _logger.error("Maintenance of passes failed: %s", error)
            expiries = self._attendance.next_expiry(), self._consumers.next_expiry(), times.check
            due = self._clock() + min(times.worker, times.consumer, *(t for t in expiries if t is not None))

    async def _expire(self) -> None:
        for address in self._attendance.expire():
            _logger.warning("The data worker at %s is lost: no message for %g s", address, self._times.worker)
        if self._attendance.workers is not self._written:
            await self._workers_changed()
        for consumer in self._consumers.expired():
            await self._lose(*consumer)

    async def _lose(self, pass_id: bytes, consumer: bytes) -> None:
        if (pass_id, consumer) in self._consumers:  # the consumer has returned in the meantime
            return
        _logger.info("A consumer is lost: no message for %g s", self._times.consumer)
        lose = functools.partial(passes.lose_consumer, pass_id=pass_id, consumer=consumer, now=self._wall_clock())
        try:
            if await self._run(lose):
                self._wake(pass_id)
        except FedstackError as error:  # a disk error: the removal is retried after another lease
            _logger.error("A lost consumer could not be removed: %s", error)
            self._shows_life((pass_id, consumer))

    async def _collect(self) -> None:
        now, times = self._wall_clock(), self._times
        if await self._run(lambda tables: passes.collect(tables, now, times.idle, times.resume)):
            await self._on(self.threads, self._journal.compact)

    def started(self) -> None:
        """Starts the task that expires leases and deletes idle passes."""
        self._watching = start_apart(self._look_after())

    def drain(self) -> None:
        """Ends all waiting requests. Clients must retry after the dispatcher has been restarted."""
        self._draining = True
        self._wake()

    async def close(self) -> None:
        """Stops the dispatcher's tasks and closes the journal. Idempotent."""
        if self._closed:
            return
        self._draining = self._closed = True
        self._wake()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._on(self.threads, self._journal.close)
        self.threads.close()
        self._files.close()

    def __repr__(self) -> str:
        return f"<DispatchService with {len(self._attendance.workers)} workers, {self._journal!r}>"
