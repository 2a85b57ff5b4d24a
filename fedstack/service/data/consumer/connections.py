"""Keeps the ways to a dispatcher and its workers, for all passes over a dataset."""

import weakref
from collections.abc import Callable

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.errors import CarrierError
from fedstack.service.data.worker.readers import Reader, is_here, reader_at
from fedstack.service.host.local_servers import connect
from fedstack.transport.grpc.channels import Channel
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.io_loop import IoLoop, start_apart
from fedstack.transport.wire.addresses import Target


class Connections:
    """The ways to one dispatcher and to its workers. They are closed when nothing refers to this any more.

    Args:
      service: The dispatcher's address, or a channel to it.
      credentials: Certificates and the token.
      only_local: Whether only workers in this process are for us.

    Attributes:
      dispatcher: Calls the dispatcher.

    Raises:
      InvalidValueError: If the address is none.
    """

    def __init__(
        self, service: str | Target | Channel, credentials: ClientCredentials | None = None, only_local: bool = False
    ) -> None:
        self.dispatcher = DispatcherStub(connect(service, credentials))
        self._service = service
        self._credentials = credentials
        self._only_local = only_local
        self._readers: dict[str, tuple[bytes, Reader]] = {}
        weakref.finalize(self, _drop, self.dispatcher, self._readers).atexit = False

    @property
    def io(self) -> IoLoop:
        """The loop on which all of them are used."""
        return self.dispatcher.io

    def may_ask(self, worker: bytes, address: str) -> bool:
        """Returns whether a worker is for us."""
        return not self._only_local or is_here(address, worker)

    def reader(self, worker: bytes, address: str) -> Reader:
        """Returns what reads at a worker. Called on the loop."""
        known, reader = self._readers.get(address, (b"", None))
        if reader is None or known != worker:
            if reader is not None:  # another one is at that address now
                start_apart(reader.close())
            reader = reader_at(address, self._credentials, worker, self.dispatcher.address)
            self._readers[address] = worker, reader
        return reader

    def __reduce__(self) -> tuple[Callable[[str | Target, bool], "Connections"], tuple[str | Target, bool]]:
        """Says how to write it: functions take a dataset along to other processes.

        Raises:
          CarrierError: If it is a channel of the user's own.
        """
        if not isinstance(self._service, (str, Target)):
            raise CarrierError(
                "Expected a dispatcher's address in what is sent to another process, found a channel; give distribute "
                "the address, or give a function that makes the dataset there"
            )
        return _connected_there, (self._service, self._only_local)

    def __repr__(self) -> str:
        return f"<Connections to {self.dispatcher.address} and {len(self._readers)} workers>"


def _connected_there(service: str | Target, only_local: bool) -> Connections:
    """Returns the ways from this process. Keys and tokens do not travel: functions dial with what their server has."""
    return Connections(service, current_scope().client_credentials, only_local)


def _drop(dispatcher: DispatcherStub, readers: dict[str, tuple[bytes, Reader]]) -> None:
    """Closes connections that nobody has any more: a finalizer."""

    async def close() -> None:
        await dispatcher.close()
        for _, reader in readers.values():
            await reader.close()

    dispatcher.io.call_soon(lambda: start_apart(close()))
