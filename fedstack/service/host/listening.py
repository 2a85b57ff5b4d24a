"""Checks addresses before servers listen there, and knows the servers of this process.

gRPC reports little about an address that it cannot use, and gives no access to its sockets; the address finds them.
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
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.local_connection import LocalConnection, methods_by_path
from fedstack.transport.peers.methods import Method, Service
from fedstack.transport.wire.addresses import Target, resolve_targets
from fedstack.transport.wire.connection_errors import ARGUMENTS

# What every system takes for the path of a socket; Linux would take four bytes more.
_MAX_PATH_BYTES = 103
_OWN_DESCRIPTORS = "/dev/fd"  # Linux and macOS; other systems cannot fork, or let the sockets be


def check_free(address: Target) -> None:
    """Checks that a server can listen at an address; a socket that a killed server has left behind is removed.

    Raises:
      AddressError: If it cannot.
    """
    if address.socket_path:
        _check_path(Path(address.socket_path))
    else:
        _check_port(address.host, address.port, is_everywhere=address.is_everywhere)


def dialled(address: Target, port: int) -> str:
    """Returns the address that clients on this machine dial.

    Args:
      address: The address that a server listens at.
      port: The port that gRPC has bound.
    """
    if address.socket_path:
        # Write permission is permission to connect; without a umask all users would have it.
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
            f"Expected a name or an address of this machine, found {host!r}: {error.strerror}; 127.0.0.1 is "
            "for this machine only, 0.0.0.0 for all its networks"
        ) from error
    if host == "localhost" or is_everywhere:
        # There gRPC listens at addresses of both kinds, whatever the system makes of the name.
        both = "::1" if host == "localhost" else "::"
        found += socket.getaddrinfo(both, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    failures: list[OSError] = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as attempt:
                if os.name == "posix":  # on other systems it would let two servers share a port
                    attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                attempt.bind(address)
        except OSError as error:
            failures.append(error)
    in_use = [failure for failure in failures if failure.errno == errno.EADDRINUSE]
    # A name may stand for addresses that this machine does not have, if it has one of them.
    if not in_use and len(failures) < len(found):
        return
    error = (in_use or failures)[0]
    complaint = f"Expected an address of this machine, found {host}: {error.strerror}"
    if error.errno == errno.EADDRINUSE:
        complaint = (
            f"Port {port} of {host} is in use; stop what listens there, or choose another port (0 for any that is free)"
        )
    elif error.errno == errno.EACCES:
        complaint = f"Expected a port that this user may listen at, found {port}; choose one above 1023"
    raise AddressError(complaint) from error


def _check_path(path: Path) -> None:
    if not hasattr(socket, "AF_UNIX"):
        raise AddressError("Expected a system with Unix sockets, found one without; listen at a port of 127.0.0.1")
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise AddressError(
            f"Expected a path of at most {_MAX_PATH_BYTES} bytes for a socket, found {len(os.fsencode(path))}: "
            f"{path}; choose a shorter one"
        )
    if not path.parent.is_dir():
        raise AddressError(f"Expected a folder for the socket, found none at {path.parent}; make it first")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"There is a file at {path}, where the socket would be; choose another path")
    if _is_listened_at(path):
        raise AddressError(f"The socket {path} is in use; stop what listens there, or choose another path")
    path.unlink()  # left behind by a server that was killed


def _is_listened_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(1.0)
        try:
            attempt.connect(str(path))
        except TimeoutError:
            return True  # its queue is full
        except OSError:
            return False
        return True


def let_go_of_sockets(target: str) -> None:
    """Replaces the sockets that listen at an address, and the connections accepted there, by the null device.

    For a forked child, which may outlive the server: as long as any process has its sockets, the address stays taken,
    clients that dial it get no answer, and clients of a killed server do not notice its end. The sockets are not
    closed: gRPC's memory still has the numbers of their descriptors, which nothing else should get.

    Args:
      target: The address, as in `127.0.0.1:8000` or `unix:/path`.
    """
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)  # with a default timeout, wrapping a socket changes it, in the parent too
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
    except OSError:  # not a socket, or the descriptor of the listing
        return False
    if isinstance(name, tuple):
        return target.endswith(f":{cast('tuple[object, ...]', name)[1]}")
    return target == f"unix:{name}"


GRPC, LOCAL = "grpc", "grpc+local"
_SCHEME = f"{LOCAL}://"


@attrs.frozen(eq=False)
class LocalServer:
    """The services at an address of this process.

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
        """Starts without servers: a forked child does not have their loop."""
        self._servers: dict[str, LocalServer] = {}
        self._numbers = itertools.count(1)

    def add(self, services: Sequence[Service], port: int) -> str:
        """Serves from now on, and returns the address.

        Args:
          services: The services.
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
      target: Its address, or a channel of the user.
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
