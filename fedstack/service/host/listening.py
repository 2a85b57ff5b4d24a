"""Checks an address before a server listens on it, and keeps a table of this process's local servers.

gRPC reports little about an address that it cannot use, and provides no access to its sockets. This module therefore
finds the sockets by their address.
"""

import contextlib
import errno
import itertools
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import attrs

from fedstack.errors import AddressError, WorkerUnavailableError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.transport.grpc.channels import Channel
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Connection, Transport, check_transport
from fedstack.transport.peers.local_connection import LocalConnection, methods_by_path
from fedstack.transport.peers.methods import Method, Service
from fedstack.transport.wire.addresses import Target, resolve_targets
from fedstack.transport.wire.connection_errors import ARGUMENTS

# The maximum length that all systems accept for the path of a socket. Linux accepts four bytes more.
_MAX_PATH_BYTES = 103
_OWN_DESCRIPTORS = "/dev/fd"  # exists on Linux and macOS; elsewhere, the sockets stay open


def check_free(address: Target) -> None:
    """Checks that a server can listen on an address. Removes a socket file that a killed server has left behind.

    Raises:
      AddressError: If a server cannot listen on the address.
    """
    if address.socket_path:
        _check_path(Path(address.socket_path))
    else:
        _check_port(address.host, address.port, is_everywhere=address.is_everywhere)


def dialled(address: Target, port: int) -> str:
    """Returns the address that clients on this machine dial.

    Args:
      address: The address that a server listens on.
      port: The port that gRPC has bound.
    """
    if address.socket_path:
        # Write permission allows connecting. Without a restrictive umask, all users would have it.
        Path(address.socket_path).chmod(0o600)
        return address.address
    if address.is_everywhere:
        address = address.at_host("::1" if ":" in address.host else "127.0.0.1")
    return address.at_port(port).address


def _check_port(host: str, port: int, *, is_everywhere: bool) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise AddressError(
            f"Expected a name or an address of this machine, found {host!r}: {error.strerror}; use 127.0.0.1 for "
            "clients on this machine only, or 0.0.0.0 for all networks of this machine"
        ) from error
    if host == "localhost" or is_everywhere:
        # gRPC then listens on an IPv4 and an IPv6 address, however the system resolves the name.
        both = "::1" if host == "localhost" else "::"
        found += socket.getaddrinfo(both, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    failures: list[OSError] = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as attempt:
                if os.name == "posix":  # on other systems the option would let two servers share a port
                    attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                attempt.bind(address)
        except OSError as error:
            failures.append(error)
    in_use = [failure for failure in failures if failure.errno == errno.EADDRINUSE]
    # A name may also resolve to addresses of other machines, but at least one address must be of this machine.
    if not in_use and len(failures) < len(found):
        return
    error = (in_use or failures)[0]
    complaint = (
        f"Expected an address of this machine, found {host}: {error.strerror}; choose an address of this machine"
    )
    if error.errno == errno.EADDRINUSE:
        complaint = (
            f"Port {port} of {host} is in use; stop the process that listens on it, or choose another port (0 for any "
            "free port)"
        )
    elif error.errno == errno.EACCES:
        complaint = f"Expected a port that this user may listen on, found {port}; choose a port above 1023"
    raise AddressError(complaint) from error


def _check_path(path: Path) -> None:
    if not hasattr(socket, "AF_UNIX"):
        raise AddressError("Unix sockets are not available on this system; listen on a port of 127.0.0.1 instead")
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise AddressError(
            f"Expected a path of at most {_MAX_PATH_BYTES} bytes for a socket, found one of {len(os.fsencode(path))} "
            f"bytes: {path}; choose a shorter path"
        )
    if not path.parent.is_dir():
        raise AddressError(f"Expected a folder for the socket, found none at {path.parent}; create it first")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"Expected a free path for the socket, found a file at {path}; choose another path")
    if _is_listened_at(path):
        raise AddressError(f"The socket {path} is in use; stop the process that listens on it, or choose another path")
    path.unlink()  # left behind by a server that was killed


def _is_listened_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(1.0)
        try:
            attempt.connect(str(path))
        except TimeoutError:
            return True  # the listener's queue is full
        except OSError:
            return False
        return True


def let_go_of_sockets(target: str) -> None:
    """Replaces the sockets that listen on an address, and the connections accepted there, with the null device.

    This is for a forked child, which may outlive the server. As long as any process has the server's sockets open, the
    address stays in use, clients that dial the address receive no answer, and clients of a killed server do not notice
    that it has ended. The descriptors are not closed, because gRPC's memory still contains their numbers, and the
    system must not assign these numbers to other files.

    Args:
      target: The address, as in `127.0.0.1:8000` or `unix:/path`.
    """
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)  # with a default timeout, wrapping a socket would also change the parent's socket
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        for name in os.listdir(_OWN_DESCRIPTORS):
            if _is_at(int(name), target):
                os.dup2(nothing, int(name), inheritable=False)
        os.close(nothing)
    socket.setdefaulttimeout(timeout)


def _is_at(descriptor: int, target: str) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.type != socket.SOCK_STREAM:
                return False
            name: object = copy.getsockname()
    except OSError:  # not a socket, or the descriptor that listed the folder
        return False
    if isinstance(name, tuple):
        return target.endswith(f":{cast('tuple[object, ...]', name)[1]}")
    return target == f"unix:{name}"


GRPC, LOCAL = "grpc", "grpc+local"
_SCHEME = f"{LOCAL}://"


@attrs.frozen(eq=False)
class LocalServer:
    """The services at a local address of this process.

    Attributes:
      services: The services.
      methods: The methods of the services, by path.
    """

    services: Sequence[Service]
    methods: Mapping[str, Method]


class _ServersHere:
    """The local servers of this process, by address. An address is `grpc+local://localhost:` followed by a number."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Clears the table. A forked child has no servers, because the servers' event loop does not run in it."""
        self._servers: dict[str, LocalServer] = {}
        self._numbers = itertools.count(1)

    def add(self, services: Sequence[Service], port: int) -> str:
        """Adds a server, and returns its address.

        Args:
          services: The services of the server.
          port: The number in the address; 0 for any free number.

        Raises:
          AddressError: If another server has the number.
        """
        server = LocalServer(services, methods_by_path(services))
        for number in [port] if port else self._numbers:
            target = f"{_SCHEME}localhost:{number}"
            if self._servers.setdefault(target, server) is server:
                return target
        raise AddressError(
            f"{_SCHEME}localhost:{port} is in use in this process; stop the server at this address, or choose another "
            "port (0 for any free port)"
        )

    def remove(self, target: str) -> None:
        """Removes the server at the given address, if there is one."""
        self._servers.pop(target, None)

    def find(self, target: str) -> LocalServer | None:
        """Returns the server at the given address, or `None`."""
        return self._servers.get(target)


servers_here = _ServersHere()


def is_local(target: str) -> bool:
    """Returns whether an address has the scheme of servers in this process."""
    return target.startswith(_SCHEME)


def local_server(target: str) -> LocalServer:
    """Returns the server at the given address in this process.

    Raises:
      WorkerUnavailableError: If no server in this process has the address.
    """
    found = servers_here.find(target)
    if found is None:
        raise WorkerUnavailableError(
            f'This process runs no server at {target}; start the server, or choose protocol "grpc" if it runs in '
            "another process"
        )
    return found


def connect(
    target: str | Target | Channel,
    credentials: ClientCredentials | None = None,
    role: str = "--data-dispatcher",
    transport: Transport = "auto",
) -> Connection:
    """Returns a connection to a server in this process or elsewhere.

    Args:
      target: The address of the server, or a channel that the user has created.
      credentials: The certificates and the token; ignored for a channel, which has its own credentials.
      role: The option of `fedstack serve` that starts such a server, for error messages.
      transport: How to reach an address: `"stream"`, `"grpc"`, or `"auto"` for a stream if there is one.

    Raises:
      InvalidValueError: If the target is not a valid address, or if there is no such transport.
    """
    check_transport(transport)
    if isinstance(target, str) and is_local(target):
        return LocalConnection(lambda: local_server(target).methods, target)
    # Imported here so that only processes that use gRPC import it.
    from fedstack.transport.grpc.channel_connection import ChannelConnection
    from fedstack.transport.stream.found_connection import FoundConnection

    if not isinstance(target, (str, Target)):
        return ChannelConnection(target)
    (resolved,) = resolve_targets(target)
    words = attrs.evolve(ARGUMENTS, serve=f"fedstack serve {role}")
    return FoundConnection(resolved, credentials, transport=transport, words=words)
