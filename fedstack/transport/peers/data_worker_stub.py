"""Defines the stub that calls the service of a data worker."""

import contextlib
from collections.abc import AsyncGenerator, Sequence

from fedstack.errors import RemoteError
from fedstack.foundations.segments import Segment
from fedstack.proto.data_service_pb2 import (
    ListClientsRequest,
    ReadRequest,
    ReadStatesRequest,
    WriteStatesRequest,
)
from fedstack.proto.extensions_pb2 import FindStoresRequest, FindStoresResponse
from fedstack.transport.peers.executor_stub import SOON_SECONDS, Answer, with_protocol
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.parcels import Incoming

DATA_WORKER = "fedstack.v1.DataWorker"
# The interval at which a data worker sends heartbeats.
HEARTBEAT_SECONDS = 2.0


class DataWorkerStub(ServiceStub):
    """A stub for a data worker. Its coroutines run on the transport's loop."""

    _PEER = "the data worker"

    @contextlib.asynccontextmanager
    async def read(self, request: ReadRequest, *, is_large: bool = False) -> AsyncGenerator[Incoming, None]:
        """Reads elements of a dataset. Each block of the response is a `ReadResponse` header, followed by its bytes.

        Args:
          request: The message that selects the elements.
          is_large: Whether the elements are known not to fit into one message.

        Raises:
          RemoteError: If the peer is not a data worker. The address is then likely to be that of another server.
        """
        with_protocol(request)
        soon = self._control_seconds + SOON_SECONDS
        path = f"/{DATA_WORKER}/Read"
        if is_large:
            pieces = self.connection.exchange(path, self._parcel(request, ()))
            answer = self._answer(pieces, HEARTBEAT_SECONDS, 0.0, lambda beat: None)
        else:
            answer = self.exchange(path, request, (), HEARTBEAT_SECONDS, soon_seconds=soon)
        async with self._known(answer) as incoming:
            yield incoming

    @contextlib.asynccontextmanager
    async def list_clients(self, request: ListClientsRequest) -> AsyncGenerator[Incoming, None]:
        """Lists the clients of a dataset. The header of the response is a `ListClientsResponse`."""
        with_protocol(request)
        async with self._known(self.download(f"/{DATA_WORKER}/ListClients", request, HEARTBEAT_SECONDS)) as incoming:
            yield incoming

    async def find_stores(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns those of some ids that stores of the worker have."""
        response = await self.call(f"/{DATA_WORKER}/FindStores", FindStoresRequest(id=ids), FindStoresResponse)
        return response.id

    @contextlib.asynccontextmanager
    async def read_states(self, request: ReadStatesRequest) -> AsyncGenerator[Incoming, None]:
        """Reads clients' states. The header of the response is a `ReadStatesResponse`, and the records follow."""
        with_protocol(request)
        async with self.download(f"/{DATA_WORKER}/ReadStates", request, HEARTBEAT_SECONDS) as incoming:
            yield incoming

    @contextlib.asynccontextmanager
    async def write_states(self, request: WriteStatesRequest, records: Segment) -> AsyncGenerator[Incoming, None]:
        """Writes clients' states, whose records follow the request. The response is a `WriteStatesResponse`."""
        with_protocol(request)
        path = f"/{DATA_WORKER}/WriteStates"
        async with self.exchange(path, request, [records], HEARTBEAT_SECONDS) as incoming:
            yield incoming

    @contextlib.asynccontextmanager
    async def _known(self, answer: Answer) -> AsyncGenerator[Incoming, None]:
        try:
            async with answer as incoming:
                yield incoming
        except RemoteError as error:
            if error.code != "UNIMPLEMENTED":
                raise
            raise RemoteError(
                f"Expected a data worker at {self.address}, found a server of another kind; correct the host and port, "
                "or start a data worker there (fedstack serve --data-worker)",
                code=error.code,
            ) from error
