"""Reads ranges of elements from data workers over connections, and finds the readers of those in this process."""

import abc
import asyncio
import weakref
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from fedstack.computations.codec.payload_sizes import announced_bytes
from fedstack.computations.codec.unpacking import MOST_RESULT_BYTES, OWN_ROW_BYTES, Unpacker
from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.computations.types.language import SequenceType, Type
from fedstack.computations.types.type_structure import exact_bytes, tensor_leaves
from fedstack.computations.values.column_sequence import ColumnSequence
from fedstack.computations.values.columns import Column
from fedstack.errors import AuthenticationError, InvalidValueError
from fedstack.executors.concurrency.leaf_threads import LOOP_COPY_BYTES, sized
from fedstack.executors.worker.receiving import receive
from fedstack.foundations.segments import keep_freed_memory
from fedstack.membership.reaching import back, reach
from fedstack.proto.data_service_pb2 import ListClientsRequest, ListClientsResponse, ReadRequest, ReadResponse
from fedstack.service.data.reading.budget import AHEAD, SENT_BYTES, Ahead, Blocks
from fedstack.service.data.reading.state_stores import RemoteStores, StateStores
from fedstack.service.host.listening import connect, is_local
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Transport
from fedstack.transport.peers.data_worker_stub import DataWorkerStub
from fedstack.transport.peers.executor_stub import check_protocol
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.parcels import WHOLE_BYTES, Incoming

# The time limit for a worker's answer to a health check.
_ALIVE_SECONDS = 1.0


@attrs.frozen(eq=False)
class Range:
    """The elements in a requested range.

    Attributes:
      element: The type of an element.
      blocks: The blocks of elements. Error messages specify where the errors occurred.
      scope: The scope in which `blocks` runs.
      client_rows: The number of elements of each client, available after the first block; empty if the range does not
        consist of clients.
    """

    element: Type
    blocks: Blocks
    scope: WorkScope
    client_rows: Sequence[int] = ()


class Reading(abc.ABC):
    """A range of elements that is being read. The coroutines run on the transport's event loop, one at a time.

    Attributes:
      client_rows: The number of elements of each client, available after the first elements have been received; empty
        if the range does not consist of clients.
    """

    client_rows: Sequence[int] = ()

    @abc.abstractmethod
    async def next(self) -> Sequence[Column]:
        """Returns the next elements in blocks, or an empty sequence after the last elements.

        Raises:
          WorkerUnavailableError: If the worker is lost.
          DeadlineExceededError: If the worker has stopped responding.
          FedstackError: If the data is invalid, or a function that is applied to the elements fails.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Stops reading. Idempotent. Never raises an error."""


class Reader(abc.ABC):
    """Reads elements from one data worker."""

    @abc.abstractmethod
    def open(self, what: ReadRequest, element: Type, ahead: int = AHEAD) -> Reading:
        """Opens a range of elements, which is read on demand.

        Args:
          what: The request, which contains the dataset, the range, the number of splits, the first element and the
            block size.
          element: The type of the elements.
          ahead: The number of blocks to receive ahead of demand.
        """

    @abc.abstractmethod
    async def list_clients(self, request: ListClientsRequest) -> ListClientsResponse:
        """Returns the clients of a dataset."""

    @property
    @abc.abstractmethod
    def states(self) -> StateStores:
        """The stores of clients' states that the worker has."""

    @abc.abstractmethod
    async def reach(self, seconds: float) -> None:
        """Waits until the worker answers; see `membership.reaching`.

        Raises:
          FedstackError: If the worker does not answer within `seconds`.
        """

    @abc.abstractmethod
    async def back(self) -> None:
        """Waits until the lost worker answers again.

        Raises:
          FedstackError: If waiting does not help.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Closes the connection. Idempotent."""


def reader_at(
    address: str,
    credentials: ClientCredentials | None = None,
    worker: bytes = b"",
    dispatcher: str = "",
    transport: Transport = "auto",
) -> Reader:
    """Returns a reader for the data worker at an address. Workers in this process are read without a connection.

    Args:
      address: The address of the worker, as known to its dispatcher.
      credentials: The certificates and the token. If a dispatcher provided the address, the token is sent only over
        TLS.
      worker: The id under which the worker is registered with its dispatcher, if known.
      dispatcher: The address of the dispatcher that provided the worker's address; empty if the user provided it.
      transport: How to reach the worker; see `connect`.

    Raises:
      InvalidValueError: If the address is invalid.
    """
    here = readers_here.get(worker) or readers_here.get(address)
    if here is not None:
        return here
    dialled_with = credentials
    if credentials is not None and dispatcher and _place(address) != _place(dispatcher):
        dialled_with = credentials.for_named(parse_target(address))
    stub = DataWorkerStub(connect(address, dialled_with, "--data-worker DISPATCHER", transport))
    return RemoteReader(stub, withholds_token=dialled_with is not credentials)


def _place(address: str) -> str:
    return address.partition("://")[2] or address


def is_here(address: str, worker: bytes) -> bool:
    """Returns whether a data worker is in this process."""
    return worker in readers_here or is_local(address)


class RemoteReader(Reader):
    """Reads from a data worker over a connection.

    Args:
      stub: The stub for calls to the worker; closed together with the reader.
      withholds_token: Whether the token is withheld from the worker.
    """

    def __init__(self, stub: DataWorkerStub, withholds_token: bool = False) -> None:
        self._stub = stub
        self._withholds_token = withholds_token
        self._states = RemoteStores(stub)

    @property
    def states(self) -> StateStores:
        return self._states

    def open(self, what: ReadRequest, element: Type, ahead: int = AHEAD) -> Reading:
        return _RemoteReading(self._stub, what, element, ahead, self._explained)

    async def list_clients(self, request: ListClientsRequest) -> ListClientsResponse:
        try:
            async with self._stub.list_clients(request) as incoming:
                received = await receive(incoming, ListClientsResponse)
                await received.end()
                response = received.message
                check_protocol(response.protocol, response.version, self._stub.address)
                return response
        except AuthenticationError as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        """Returns an error, with the reason added if authentication failed because the token was withheld."""
        if not (self._withholds_token and isinstance(error, AuthenticationError)):
            return error
        return AuthenticationError(
            f"{error}; the token was not sent, because it is sent only over TLS to data workers whose addresses a "
            "dispatcher provides: start the worker with a certificate, or without tokens"
        )

    async def reach(self, seconds: float) -> None:
        await reach(self._stub, seconds, self._check_alive)

    async def back(self) -> None:
        await back(self._stub, self._check_alive)

    async def _check_alive(self) -> bool:
        return await self._stub.connection.check_alive(_ALIVE_SECONDS)

    async def close(self) -> None:
        await self._stub.close()

    def __repr__(self) -> str:
        return f"<RemoteReader at {self._stub.address}>"


class _RemoteReading(Reading, Ahead[Column]):
    """A range that is received in a single call. A few blocks are received ahead of demand."""

    def __init__(
        self,
        stub: DataWorkerStub,
        what: ReadRequest,
        element: Type,
        ahead: int,
        explained: Callable[[Exception], Exception],
    ) -> None:
        super().__init__(ahead)
        self._stub = stub
        self._explained = explained
        self._request = ReadRequest()
        self._request.CopyFrom(what)
        self._request.block_bytes = what.block_bytes or SENT_BYTES
        self._element = element
        self._room = asyncio.Event()
        self._receiving: asyncio.Task[None] | None = None
        self._row_bytes = [exact_bytes(tensor) or 0 for _, tensor in tensor_leaves(element)]

    async def next(self) -> Sequence[Column]:
        coming = self.take()
        if not coming.done():
            arrived = asyncio.get_running_loop().create_future()
            coming.add_done_callback(lambda _: arrived.done() or arrived.set_result(None))  # also called on this loop
            await arrived
        found = coming.result()
        return () if found is None else (found,)

    def _start(self) -> None:
        self._room.set()
        self._receiving = self._receiving or asyncio.ensure_future(self._receive())

    async def _receive(self) -> None:
        each = exact_bytes(self._element) or 0
        if each >= OWN_ROW_BYTES:
            keep_freed_memory()
        try:
            async with self._stub.read(self._request, is_large=each > WHOLE_BYTES) as incoming:
                is_last, number = False, 0
                while not is_last:
                    column, is_last = await self._block(incoming, number)
                    number += 1
                    self._room.clear()
                    if column is not None and not self.put(column) and not is_last:
                        await self._room.wait()
                await incoming.read_into(())
            self.finish()
        except Exception as error:
            self.finish(self._explained(error))

    async def _block(self, incoming: Incoming, number: int) -> tuple[Column | None, bool]:
        received = await receive(incoming, ReadResponse)
        response = received.message
        if not number:
            check_protocol(response.protocol, response.version, self._stub.address)
        self.client_rows = self.client_rows or response.client_rows
        if not response.rows and response.is_last:
            return None, True
        size = await sized(received.size, lambda: announced_bytes(response.elements))
        pieces = await received.rest.pieces(size) if size <= MOST_RESULT_BYTES else []

        def unpack() -> object:
            unpacker = Unpacker([np.frombuffer(piece, np.uint8) for piece in pieces], for_results=True)
            unpacked = unpacker.unpack(response.elements, SequenceType(self._element), "elements")
            unpacker.finish()
            return unpacked

        # Large rows stay in the pieces in which they were received, unless a row is split across pieces. All other data
        # is copied.
        longest = max(map(len, pieces), default=0)
        whole = sum(one for one in self._row_bytes if OWN_ROW_BYTES <= one <= longest)
        copied = size - response.rows * whole
        elements = await sized(max(received.size, copied if copied > LOOP_COPY_BYTES else 0), unpack)
        if not isinstance(elements, ColumnSequence) or len(elements) != response.rows or response.block != number:
            raise InvalidValueError(
                f"Expected block {number} from {self._stub.address} to be a column of {response.rows} elements, found "
                "a different block or number of elements"
            )
        return elements.column, response.is_last

    async def close(self) -> None:
        self.end()
        if self._receiving is not None and not self._receiving.done():
            self._receiving.cancel()
            self._stub.before_closing(self._receiving)


# The readers of data workers in this process, by worker id and, if the address is local to this process, by address.
readers_here: "weakref.WeakValueDictionary[bytes | str, Reader]" = weakref.WeakValueDictionary()
