"""Serves inside of one process, without a socket: servers with `grpc+local://` in front of their addresses."""

import asyncio
import itertools
from collections.abc import Sequence

import attrs

from fedstack.errors import AddressError, ClosedError, WorkerUnavailableError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.service.server.server_facts import ServerFacts
from fedstack.transport.grpc.channels import Channel
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.grpc.targets import resolve_targets
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.local_connection import LocalConnection, methods_by_path
from fedstack.transport.peers.methods import Service
from fedstack.transport.wire.addresses import Target
from fedstack.transport.wire.connection_errors import ARGUMENTS

GRPC, LOCAL = "grpc", "grpc+local"
_SCHEME = f"{LOCAL}://"


class LocalServer:
    """Serves whoever is in this process; it stands where a `GrpcServer` does.

    Args:
      services: What it serves. It closes them when it stops.
      port: The number in its address; 0 for any that is free.

    Attributes:
      services: What it serves.
    """

    def __init__(self, services: Sequence[Service], port: int = 0) -> None:
        self.services = tuple(services)
        self.methods = methods_by_path(services)
        self._port = port
        self._facts = ServerFacts(asks_for_token=False)
        self._stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        for service in services:
            service.attach(self._facts)

    @property
    def target(self) -> str:
        """Its address.

        Raises:
          ClosedError: If it has not been started.
        """
        if not self._facts.target:
            raise ClosedError("Expected a server that has been started, found one that has not; call start() first")
        return self._facts.target

    @property
    def has_stopped(self) -> bool:
        """Whether it has been told to stop, and has."""
        return self._stopped.is_set()

    async def start(self) -> None:
        """Returns when it can be called. Idempotent.

        Raises:
          AddressError: If another server of this process has the number.
          ClosedError: If it has been stopped.
        """
        if self._stopping is not None:
            raise ClosedError("Expected a server that has not been stopped, found one that has; make a new one")
        if not self._facts.target:
            self._facts.target = _servers.add(self, self._port)
            for service in self.services:
                service.started()

    async def wait(self) -> None:
        """Returns when it has stopped."""
        await self._stopped.wait()

    async def stop(self, grace: float | None = None) -> None:
        """Takes no new calls, and closes the services. Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        for service in self.services:
            service.drain()
        _servers.remove(self)
        for service in self.services:
            await service.close()
        self._stopped.set()

    def __repr__(self) -> str:
        return f"<LocalServer {self._facts.target or 'not started'}{', stopped' if self.has_stopped else ''}>"


class _LocalServers:
    """The servers of this process, by address."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begins without servers: in a forked child their loop is not there."""
        self._servers: dict[str, LocalServer] = {}
        self._numbers = itertools.count(1)

    def add(self, server: LocalServer, port: int) -> str:
        ports = [port] if port else self._numbers
        for number in ports:
            target = f"{_SCHEME}localhost:{number}"
            if self._servers.setdefault(target, server) is server:
                return target
        raise AddressError(
            f"{_SCHEME}localhost:{port} is in use in this process; stop the server that is there, or choose another "
            "port (0 for any that is free)"
        )

    def remove(self, server: LocalServer) -> None:
        self._servers = {target: found for target, found in self._servers.items() if found is not server}

    def find(self, target: str) -> LocalServer:
        found = self._servers.get(target)
        if found is None:
            raise WorkerUnavailableError(
                f"Expected a server of this process at {target}, found none; it has been stopped, or is in another "
                'process, where protocol "grpc" has to be chosen'
            )
        return found


_servers = _LocalServers()


def is_local(target: str) -> bool:
    """Returns whether an address is one of a server in this process."""
    return target.startswith(_SCHEME)


def local_server(target: str) -> LocalServer:
    """Returns the server in this process that has an address.

    Raises:
      WorkerUnavailableError: If there is none.
    """
    return _servers.find(target)


def connect(
    target: str | Target | Channel, credentials: ClientCredentials | None = None, role: str = "--data-dispatcher"
) -> Connection:
    """Returns the way to a server, in this process or elsewhere.

    Args:
      target: Its address, or a channel of the user's own.
      credentials: Certificates and the token; a channel has its own.
      role: What makes a server such a one: an option of `fedstack serve`.

    Raises:
      InvalidValueError: If the target is no address.
    """
    if isinstance(target, str) and is_local(target):
        return LocalConnection(lambda: local_server(target).methods, target)
    # gRPC is imported by those only who use it
    from fedstack.transport.grpc.channel_connection import ChannelConnection
    from fedstack.transport.grpc.grpc_connection import GrpcConnection

    if not isinstance(target, (str, Target)):
        return ChannelConnection(target)
    (resolved,) = resolve_targets(target)
    return GrpcConnection(resolved, credentials, words=attrs.evolve(ARGUMENTS, serve=f"fedstack serve {role}"))
