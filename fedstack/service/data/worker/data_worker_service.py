"""Serves elements of datasets. A client requests ranges of a dataset's splits, and receives the elements in blocks."""

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from fedstack.computations.codec.packing import Packer
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import Type
from fedstack.data.client_states.store_folders import ClientStateFolders
from fedstack.errors import FedstackError, InvalidValueError, WorkerUnavailableError
from fedstack.executors.concurrency.leaf_threads import LeafThreads, read_message
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.factories import local_executor_factory
from fedstack.executors.worker.receiving import receive
from fedstack.executors.worker.work import Work
from fedstack.foundations.caches import BoundedCache
from fedstack.foundations.draws import draw_id
from fedstack.foundations.error_text import with_place
from fedstack.proto.data_service_pb2 import ListClientsRequest, ListClientsResponse, ReadRequest, ReadResponse
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.service.data.reading.blocks import sized_blocks, without_first
from fedstack.service.data.reading.budget import BLOCK_BYTES, Ahead, Blocks, Budget, MadeAhead, size_in
from fedstack.service.data.reading.dataset_scope import reading
from fedstack.service.data.reading.local_reader import LocalReader
from fedstack.service.data.reading.readers import Range, readers_here
from fedstack.service.data.reading.state_stores import HeldStores
from fedstack.service.data.worker.attending import Attending
from fedstack.service.data.worker.client_groups import ClientGroups
from fedstack.service.data.worker.definition_cache import CachedDataset, DefinitionCache
from fedstack.service.data.worker.state_methods import StateMethods
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.host.calls.call_table import FairShares
from fedstack.service.host.limits import DataWorkerLimits, ServiceLimits, add_limits, exceeded
from fedstack.service.host.listening import is_local
from fedstack.transport.grpc.credential_files import Renewed
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.data_worker_stub import DATA_WORKER, HEARTBEAT_SECONDS
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.executor_stub import check_protocol, with_protocol
from fedstack.transport.peers.io_loop import result_of
from fedstack.transport.peers.methods import (
    Answers,
    DownloadMethod,
    ExchangeMethod,
    Method,
    ServerFacts,
    Service,
)
from fedstack.transport.wire.parcels import Incoming, Parcel

_PORT = "%port%"
# The maximum number of files whose first stamp in a pass is stored. The least recently opened files are removed first.
_MOST_FILES = 1 << 16
_MOST_ID_BYTES = 64


@attrs.frozen(eq=False)
class _Sent:
    """A block of elements in wire form, and its approximate size in bytes."""

    parcel: Parcel
    size: int


class DataWorkerService(Service):
    """The service of a data worker, which reads datasets for clients.

    Args:
      dispatcher: The stub for calls to the dispatcher; closed together with the service.
      worker_address: The address at which clients reach the worker, with `%port%` for its port; by default the `target`
        of its server.
      attends_seconds: The interval between messages to the dispatcher, in seconds; by default the dispatcher sets the
        interval.
      worker_tokens: The tokens, of which the first authorizes the worker to register with the dispatcher.
      limits: The resource limits for clients of the worker.
      policy: The policy that determines which functions definitions may contain.
      data_roots: The folders below which files may be read.
      client_states: The folders with clients' states that clients may read and write.
      service_limits: The limits on the memory and time of a computation.
      client_credentials: The credentials for calls that functions make to other servers.

    Raises:
      InvalidValueError: If one of the `data_roots` is not a folder.

    Attributes:
      attending: Keeps the worker registered with the dispatcher.
      threads: The threads on which elements are prepared.
    """

    def __init__(
        self,
        dispatcher: DispatcherStub,
        *,
        worker_address: str | None = None,
        attends_seconds: float | None = None,
        worker_tokens: Renewed[tuple[str, ...]] | None = None,
        limits: DataWorkerLimits | None = None,
        policy: CarrierPolicy | None = None,
        data_roots: Sequence[str] = (),
        client_states: Sequence[Path] = (),
        service_limits: ServiceLimits | None = None,
        client_credentials: ClientCredentials | None = None,
    ) -> None:
        self._limits = limits or DataWorkerLimits()
        rules = service_limits or ServiceLimits()
        # Clients consider a worker lost if they receive no heartbeat for longer than this.
        self._rules = attrs.evolve(rules, heartbeat_seconds=min(rules.heartbeat_seconds, HEARTBEAT_SECONDS))
        self._core = core = ServiceCore(
            local_executor_factory(), self._rules, policy or CarrierPolicy(), client_credentials=client_credentials
        )
        roots = tuple(map(_real_folder, data_roots))
        self._gathered = Budget(self._limits.max_gathered_bytes, self._too_much_gathered)
        self._scope = reading(core.scope, data_roots=roots, take_room=self._gathered.take)
        self._definitions = DefinitionCache(dispatcher, self._scope, self._limits)
        self._streams: dict[Ahead[_Sent], bytes] = {}  # the id of each stream, for status
        self._counting = threading.Lock()
        self._read = (0, 0, 0)  # ranges, elements and bytes, for status
        self._places = FairShares(self._limits.max_streams)
        self._ahead = Budget(self._limits.max_ahead_bytes)
        self._clients = ClientGroups(self._limits)
        self._opened: BoundedCache[tuple[bytes, str], tuple[int, ...]] = BoundedCache(_MOST_FILES, _MOST_FILES)
        self._opening = threading.Lock()
        self._no_clients = ProgressCounts()
        self._server: ServerFacts | None = None
        self._worker_address = worker_address
        self._draining = False
        self.attending = Attending(dispatcher, attends_seconds, worker_tokens)
        self.threads = LeafThreads()
        stores = HeldStores(ClientStateFolders(client_states), self.threads, self._rules.max_value_bytes)
        self._states = StateMethods(stores, self._limits, self._rules)
        self._reader = LocalReader(self.find, self.list_clients, self.threads, stores)

    def _too_much_gathered(self, found: str) -> Exception:
        advice = "reduce the number of elements in the step or the size of its elements"
        return exceeded(self._limits, "max_gathered_bytes", found, advice)

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        """The methods of the gRPC service."""
        return {
            DATA_WORKER: {
                "Read": ExchangeMethod(self.read),
                "ListClients": DownloadMethod(self._list_clients),
                **self._states.methods,
            }
        }

    @property
    def sessions(self) -> Sequence[GetStatusResponse.Session]:
        return [GetStatusResponse.Session(id=id.hex()[:8]) for id in self._streams.values()]

    async def report(self, status: GetStatusResponse) -> None:
        read = status.data_worker
        read.attends, read.streams = self.attending.attends, len(self._streams)
        read.ranges, read.elements, read.bytes = self._read
        status.abandoned_threads += self._core.abandoned.count
        for limits in (self._limits, self._rules):
            add_limits(status, limits)

    @property
    def runs_code(self) -> bool:
        return self._core.policy.runs_anything

    def attach(self, server: ServerFacts) -> None:
        self._server = server
        self._core.attach(server)

    def started(self) -> None:
        target = self._server.target if self._server else ""
        readers_here[self.attending.worker] = self._reader
        if is_local(target):
            readers_here[target] = self._reader
        port = target.rpartition(":")[2]
        self.attending.start(target if self._worker_address is None else self._worker_address.replace(_PORT, port))

    async def read(self, incoming: Incoming) -> Answers:
        """Reads elements in blocks. At most two blocks are prepared ahead of the block that is sent."""
        received = await receive(incoming, ReadRequest)
        await received.end()
        check_protocol(received.message.protocol, received.message.version, "the client")
        opening = Work(self.find(received.message))
        async for beat in opening.beats(self._no_clients, self._rules.heartbeat_seconds):
            yield beat
        with self._open(received.message, opening.result()) as stream:
            is_last = False
            while not is_last:
                taken = stream.take()
                if not taken.done():
                    coming = Work(result_of(taken))
                    async for beat in coming.beats(self._no_clients, self._rules.heartbeat_seconds):
                        yield beat
                sent = taken.result()
                parcel = _NO_MORE if sent is None else sent.parcel
                is_last = parcel.is_last
                yield parcel

    @contextlib.contextmanager
    def _open(self, request: ReadRequest, found: Range) -> Generator[Ahead[_Sent], None, None]:
        limits, caller = self._limits, found.scope.caller
        if not self._places.take(caller):
            raise exceeded(limits, "max_streams", self._places.refused, "finish reading the open streams")
        most = max(1, min(request.block_bytes or BLOCK_BYTES, limits.max_block_bytes, self._rules.max_value_bytes))
        with found.scope.entered():
            made = self._sent(found, most)
            stream = MadeAhead(made, self.threads, size_of=lambda sent: sent.size, budget=self._ahead, is_last=_is_last)
        self._streams[stream] = draw_id()
        try:
            yield stream
        finally:
            stream.end()
            del self._streams[stream]
            self._places.give_back(caller)

    def _sent(self, found: Range, most: int) -> Iterator[_Sent]:
        """Yields blocks in wire form."""
        chunking, element = self._rules.chunking, found.element
        client_rows, bytes_of = found.client_rows, size_in(element)
        for number, (column, is_last) in enumerate(sized_blocks(found.blocks, element, most)):
            size = bytes_of(column)
            if size > self._rules.max_value_bytes:
                raise exceeded(self._rules, "max_value_bytes", f"an element of about {size}")
            packer = Packer(chunking.large_bytes)
            response = ReadResponse(rows=len(column), is_last=is_last, client_rows=client_rows, block=number)
            if not number:
                with_protocol(response)
            client_rows = ()
            packer.pack_elements(response.elements, column, element, "elements")
            yield _Sent(Parcel(response.SerializeToString(), packer.segments, chunking.chunk_bytes, is_last), size)

    def _counted(self, blocks: Blocks, element: Type) -> Blocks:
        """Yields blocks and counts them for the status. Blocks for consumers in this process are counted too."""
        bytes_of = size_in(element)
        for column in blocks:
            self._count_read(0, len(column), bytes_of(column))
            yield column
        self._count_read(1, 0, 0)

    def _count_read(self, ranges: int, elements: int, size: int) -> None:
        with self._counting:
            before = self._read
            self._read = (before[0] + ranges, before[1] + elements, before[2] + size)

    def _check_goes_on(self) -> None:
        if self._draining:
            raise WorkerUnavailableError("This data worker is stopping; read from another data worker")

    async def find(self, request: ReadRequest) -> Range:
        """Returns the requested range of elements.

        Raises:
          InvalidValueError: If the range is not in the dataset.
          FedstackError: If the definition of the dataset is unavailable or refused.
        """
        self._check_goes_on()
        known = await self._definitions.find(request.digest, request.commit)
        scope = current_scope()
        # If the dataset is read as a whole, it may repeat its files, and each repetition is then a separate pass.
        is_part = not (request.splits.whole or request.splits.shard)
        first_stamp = self._first_stamp(request.pass_id) if is_part else None
        ours = self._scope.replace(caller=scope.caller, origin=scope.origin, span=scope.span)
        scope = reading(ours, first_stamp=first_stamp)
        place = f"of dataset {request.digest.hex()[:16]}, read by the data worker at {self.address}"
        if request.client:
            of = self._clients.read(request.digest, known.clients, request.client, request.first_element)
            blocks = self._counted(_placed(of.blocks, f"in clients {place}"), of.element)
            return Range(of.element, blocks, scope, of.rows)
        element, blocks, what = _elements(known, request)
        return Range(element, self._counted(_placed(blocks, f"in {what} {place}"), element), scope)

    def _first_stamp(self, pass_id: bytes) -> Callable[[str, tuple[int, ...]], tuple[int, ...]]:
        """Returns a function for `DatasetScope.first_stamp`, which looks up a file's first stamp in a pass.

        Args:
          pass_id: The id of the pass; empty for a pass that consists only of this range.

        Raises:
          InvalidValueError: If the id is too long.
        """
        if len(pass_id) > _MOST_ID_BYTES:
            raise InvalidValueError(f"Expected a pass id of at most {_MOST_ID_BYTES} bytes, found {len(pass_id)} bytes")
        if not pass_id:
            return dict[str, tuple[int, ...]]().setdefault

        def first_stamp(path: str, stamp: tuple[int, ...]) -> tuple[int, ...]:
            with self._opening:
                first = self._opened.get((pass_id, path)) or stamp
                self._opened.put((pass_id, path), first, 1)
                return first

        return first_stamp

    async def list_clients(self, request: ListClientsRequest) -> ListClientsResponse:
        """Lists the clients of a dataset.

        Raises:
          FedstackError: If the dataset is unavailable, cannot be read or is not registered by client.
        """
        self._check_goes_on()
        known = await self._definitions.find(request.digest)
        clients = known.clients
        caller, gone = current_scope(), threading.Event()
        ours = self._scope.replace(caller=caller.caller, origin=caller.origin)
        scope = reading(ours, is_wanted=lambda: not gone.is_set())
        try:
            with scope.entered():
                grouped = await self.threads.run(lambda: self._clients.find(request.digest, clients))
        finally:
            gone.set()
        return ListClientsResponse(client=grouped.rows, rows=grouped.rows.values())

    async def _list_clients(self, content: bytes) -> Answers:
        request = await read_message(ListClientsRequest, content)
        check_protocol(request.protocol, request.version, "the client")
        listing = Work(self.list_clients(request))
        async for beat in listing.beats(self._no_clients, self._rules.heartbeat_seconds):
            yield beat
        yield Parcel(with_protocol(listing.result()).SerializeToString())

    @property
    def address(self) -> str:
        """The address of the worker, for error messages."""
        return self._server.target if self._server and self._server.target else "this process"

    def drain(self) -> None:
        """Stops accepting new streams. Open streams continue."""
        self._draining = True
        self._reader.stop()
        self.attending.leave()

    async def close(self) -> None:
        """Ends all streams. Idempotent."""
        self._draining = True
        self._definitions.close()
        await self.attending.close()
        for stream in tuple(self._streams):
            stream.end()
        self._clients.clear()
        await self._core.close()
        self.threads.close()

    def __repr__(self) -> str:
        return f"<DataWorkerService with {len(self._streams)} open streams>"


def _real_folder(root: str) -> str:
    found = os.path.realpath(root)
    if not os.path.isdir(found):
        raise InvalidValueError(f"The data root {root} is not a folder; correct data_roots (--data-root)")
    return found


_NO_MORE = Parcel(with_protocol(ReadResponse(is_last=True)).SerializeToString())


def _elements(known: CachedDataset, request: ReadRequest) -> tuple[Type, Blocks, str]:
    """Returns the type of the requested elements, their blocks, and a description of the elements for messages."""
    splits, start = request.splits, request.first_element
    if splits.shard:
        blocks = known.dataset.shard(splits.last, splits.first).blocks()
        return known.dataset.element_type, without_first(blocks, start), f"shard {splits.first} of {splits.last}"
    if splits.whole:
        return known.dataset.element_type, without_first(known.dataset.blocks(), start), "all"
    pipeline = known.division.split
    if request.num_splits != pipeline.num_splits:
        raise InvalidValueError(
            f"Expected a dataset of {request.num_splits} splits, as on the dispatcher, found {pipeline.num_splits} "
            "splits on this worker; install the same release of fedstack on both"
        )
    if not splits.first <= splits.last <= pipeline.num_splits:
        raise InvalidValueError(
            f"Expected a range within the {pipeline.num_splits} splits, found {splits.first} to {splits.last}"
        )
    what = f"splits {splits.first} to {splits.last}"
    return pipeline.element_type, pipeline.read(splits.first, splits.last, start), what


def _is_last(sent: _Sent) -> bool:
    return sent.parcel.is_last


def _placed(blocks: Blocks, place: str) -> Blocks:
    """Yields blocks. Adds the place to the message of any error that preparing the blocks raises."""
    try:
        yield from blocks
    except FedstackError as error:
        raise with_place(error, place) from error.__cause__
