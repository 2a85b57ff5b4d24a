"""Tracks the data workers of a dispatcher, and chooses the worker to read a client's elements from."""

import asyncio
import hashlib
import itertools
import logging
from collections.abc import Callable, Collection, Sequence

from fedstack.errors import DeadlineExceededError, FedstackError, RemoteError, StaleSessionError, WorkerUnavailableError
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.traceback_filter import consume_exception
from fedstack.membership.reaching import WaitNotice, answered
from fedstack.proto.data_service_pb2 import DatasetDescription, DescribeDatasetRequest, ListWorkersResponse
from fedstack.service.data.reading.readers import Reader, reader_at
from fedstack.service.host.listening import connect
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.io_loop import IoLoop, start_apart

# The errors after which another worker may succeed.
LOSSES = (WorkerUnavailableError, DeadlineExceededError, StaleSessionError)

_logger = logging.getLogger(__name__)
# The maximum age of the list of workers, after which it is refreshed in the background.
_FRESH_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
_DISPATCHER_SECONDS = 10.0


class LostWorkers:
    """Data workers that no longer answer. Each is removed when it answers again. Used only on the transport's loop.

    Args:
      on_back: Called with the id of a worker that answers again.
    """

    def __init__(self, on_back: Callable[[bytes], None] = lambda worker: None) -> None:
        self._on_back = on_back
        self._waits: dict[bytes, asyncio.Task[None]] = {}

    def __contains__(self, worker: bytes) -> bool:
        return worker in self._waits

    def add(self, worker: bytes, reader: Reader) -> None:
        """Adds a worker, and waits until it answers again. `reader` reads from the worker."""
        if worker not in self._waits:
            self._waits[worker] = start_apart(self._wait_for(worker, reader))

    async def _wait_for(self, worker: bytes, reader: Reader) -> None:
        try:
            await reader.back()
        except FedstackError as error:  # the worker remains lost for as long as the dispatcher lists it
            _logger.debug("Stopped waiting for the data worker of %r: %s", reader, error)
            return
        del self._waits[worker]
        self._on_back(worker)

    def keep(self, listed: Collection[bytes]) -> None:
        """Removes all workers that the dispatcher no longer lists."""
        for worker in self._waits.keys() - listed:
            self._waits.pop(worker).cancel()

    async def close(self) -> None:
        """Removes all workers, and returns once all tasks that waited for them have ended. Idempotent."""
        tasks = list(self._waits.values())
        self.keep(())
        await asyncio.gather(*tasks, return_exceptions=True)


class DataWorkers:
    """The workers of one dispatcher. All methods except the constructor run on the transport's loop.

    While the dispatcher is unavailable, the known workers remain in use.

    Args:
      dispatcher: The address of the dispatcher.
      credentials: The credentials for calls to the dispatcher and the workers.
      patience: How long to wait for a worker, in seconds.
    """

    def __init__(self, dispatcher: str, credentials: ClientCredentials | None, patience: float) -> None:
        self.dispatcher = dispatcher
        self._credentials = credentials
        self._patience = patience
        self._stub = DispatcherStub(connect(dispatcher, credentials))
        self._addresses: dict[bytes, str] = {}
        self._readers: dict[bytes, Reader] = {}
        self._lost = LostWorkers()
        self._fresh_until = 0.0
        self._asking: asyncio.Task[None] | None = None

    @property
    def io(self) -> IoLoop:
        """The transport's loop."""
        return self._stub.io

    async def describe(self, request: DescribeDatasetRequest) -> DatasetDescription:
        """Returns the dispatcher's description of a registered dataset."""
        return await answered(self._stub, lambda: self._stub.describe(request), _DISPATCHER_SECONDS)

    async def preferred(self, key: bytes) -> bytes:
        """Returns the worker to read a key from. Callers that know the same workers choose the same worker for a key.

        Raises:
          RemoteError: If no worker becomes available in time.
        """
        return max(await self.there(), key=lambda worker: hashlib.blake2b(worker + key, digest_size=8).digest())

    def reader(self, worker: bytes) -> Reader:
        """Returns the reader for a worker."""
        found = self._readers.get(worker)
        if found is None:
            found = reader_at(self._addresses[worker], self._credentials, worker, self.dispatcher)
            self._readers[worker] = found
        return found

    async def lose(self, worker: bytes, error: FedstackError, since: float) -> None:
        """Avoids a worker until it answers again.

        Args:
          worker: The id of the worker.
          error: The error that revealed the loss.
          since: The time of the first attempt, with this or another worker, on the clock of `io`.

        Raises:
          RemoteError: If more than `patience` seconds have passed since then.
        """
        if self.io.time() - since > self._patience:
            raise RemoteError(
                f"Expected an answer from the data worker at {self._addresses.get(worker)}, found none within "
                f"{self._patience:g} s: {error}",
                code="UNAVAILABLE",
            )
        if worker in self._readers and worker not in self._lost:
            self._lost.add(worker, self._readers[worker])
            # Whoever keeps the record does not keep the frames of the error.
            _logger.warning("Continuing without the data worker at %s: %s", self._addresses.get(worker), str(error))
        self._fresh_until = 0.0

    @property
    def usable(self) -> Sequence[bytes]:
        """The known workers that are not lost."""
        return [worker for worker in self._addresses if worker not in self._lost]

    async def known(self) -> Sequence[bytes]:
        """Returns the usable workers of a list that is not old, without waiting for others.

        Raises:
          FedstackError: If no worker is known, and the dispatcher does not answer.
        """
        if self.io.time() >= self._fresh_until:
            try:
                await self._list(await self._stub.list_workers())
            except LOSSES:
                if not self._addresses:
                    raise
        return self.usable

    async def there(self) -> Sequence[bytes]:
        """Returns the usable workers; waits until at least one worker is usable.

        Raises:
          RemoteError: If no worker becomes available in time.
        """
        patience, dispatcher = self._patience, self.dispatcher
        notice = WaitNotice(f"a data worker of the dispatcher at {dispatcher}", patience, self.io.time)
        async for _ in Deadline(patience, self.io.time).attempts(itertools.repeat(_PAUSE_SECONDS)):
            if self.io.time() >= self._fresh_until and self._asking is None:
                self._asking = start_apart(self._ask())
                self._asking.add_done_callback(consume_exception)
            if there := self.usable:
                return there
            notice.waits("no data worker is available")
            if self._asking is not None and not self._addresses:
                await asyncio.shield(self._asking)
        raise RemoteError(
            f"Expected a reachable data worker of the dispatcher at {dispatcher}, found none within {patience:g} s; "
            f"start one with `fedstack serve --data-worker {dispatcher}`",
            code="UNAVAILABLE",
        )

    async def _ask(self) -> None:
        """Refreshes the list of workers. If the dispatcher is unavailable, the known workers remain listed."""
        try:
            response = await answered(self._stub, self._stub.list_workers, 0.0 if self._addresses else self._patience)
        except LOSSES as error:
            if not self._addresses:
                raise RemoteError(str(error), code="UNAVAILABLE") from None
        else:
            await self._list(response)
        finally:
            self._asking = None
            self._fresh_until = self.io.time() + (_FRESH_SECONDS if self._addresses else _PAUSE_SECONDS)

    async def _list(self, response: ListWorkersResponse) -> None:
        self._addresses = {one.worker: one.address for one in response.worker}
        self._fresh_until = self.io.time() + (_FRESH_SECONDS if self._addresses else _PAUSE_SECONDS)
        self._lost.keep(self._addresses)
        for worker in self._readers.keys() - self._addresses.keys():
            await self._readers.pop(worker).close()

    async def close(self) -> None:
        """Closes the connections. Idempotent."""
        await self._lost.close()
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.close()
        await self._stub.close()

    def __repr__(self) -> str:
        return f"<DataWorkers of {self.dispatcher}, {len(self._addresses)} known>"
