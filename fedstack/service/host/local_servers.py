"""Knows the servers that serve inside of this process only, and dials those and others."""

import itertools
from collections.abc import Mapping, Sequence

import attrs

from fedstack.errors import AddressError, WorkerUnavailableError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.transport.grpc.channels import Channel
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.grpc.targets import resolve_targets
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.local_connection import LocalConnection, methods_by_path
from fedstack.transport.peers.methods import Method, Service
from fedstack.transport.wire.addresses import Target
from fedstack.transport.wire.connection_errors import ARGUMENTS

GRPC, LOCAL = "grpc", "grpc+local"
_SCHEME = f"{LOCAL}://"


@attrs.frozen(eq=False)
class LocalServer:
    """What is served at an address of this process.

    Attributes:
      services: The services.
      methods: Their methods, by path.
    """

    services: Sequence[Service]
    methods: Mapping[str, Method]


class _ServersHere:
    """The servers of this process, by address: `grpc+local://localhost:` and a number in place of a port."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begins without servers: in a forked child their loop is not there."""
        self._servers: dict[str, LocalServer] = {}
        self._numbers = itertools.count(1)

    def add(self, services: Sequence[Service], port: int) -> str:
        """Serves from now on, and returns the address.

        Args:
          services: What is served.
          port: The number in the address; 0 for any that is free.

        Raises:
          AddressError: If another server has the number.
        """
        server = LocalServer(services, methods_by_path(services))
        for number in [port] if port else self._numbers:
            target = f"{_SCHEME}localhost:{number}"
            if self._servers.setdefault(target, server) is server:
                return target
        raise AddressError(
            f"{_SCHEME}localhost:{port} is in use in this process; stop the server that is there, or choose another "
            "port (0 for any that is free)"
        )

    def remove(self, target: str) -> None:
        """Serves at an address no longer."""
        self._servers.pop(target, None)

    def find(self, target: str) -> LocalServer | None:
        """Returns the server at an address, if there is one."""
        return self._servers.get(target)


servers_here = _ServersHere()


def is_local(target: str) -> bool:
    """Returns whether an address is one of a server in this process."""
    return target.startswith(_SCHEME)


def local_server(target: str) -> LocalServer:
    """Returns the server in this process that has an address.

    Raises:
      WorkerUnavailableError: If there is none.
    """
    found = servers_here.find(target)
    if found is None:
        raise WorkerUnavailableError(
            f"Expected a server of this process at {target}, found none; it has been stopped, or is in another "
            'process, where protocol "grpc" has to be chosen'
        )
    return found


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
