"""Finds out whether a server can listen at an address, before gRPC tries and says little about it."""

import errno
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import Protocol, TypedDict

import attrs

from fedstack.errors import AddressError, InvalidValueError
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.wire.addresses import Target

# What every system takes for the path of a socket; Linux would take four bytes more.
_MAX_PATH_BYTES = 103


class Place(TypedDict):
    """Where a `GrpcServer` listens, as arguments of it."""

    host: str
    port: int
    unix_socket: Path | None


def place_of(address: Target) -> Place:
    """Returns where a server listens that is to have an address, whose port may be 0."""
    path = address.socket_path
    return Place(host=address.host or "localhost", port=address.port, unix_socket=Path(path) if path else None)


class Listener(Protocol):
    """An address to listen at."""

    @property
    def address(self) -> str:
        """The address, as gRPC wants it."""
        ...

    @property
    def is_private(self) -> bool:
        """Whether only processes of this machine can dial it."""
        ...

    def prepare(self) -> None:
        """Checks that it is free.

        Raises:
          AddressError: If it is not.
        """
        ...

    def target(self, port: int) -> str:
        """Returns what clients on this machine dial, given the port that gRPC reports; called once it is bound."""
        ...


@attrs.frozen
class TcpListener:
    """A host name or an address of this machine, and a port; port 0 is any that is free."""

    host: str
    port: int

    @property
    def address(self) -> str:
        return _joined(self.host, self.port)

    @property
    def is_private(self) -> bool:
        address = _ip_address(self.host)
        return self.host == "localhost" if address is None else address.is_loopback

    @property
    def is_everywhere(self) -> bool:
        """Whether it stands for all addresses of this machine, and so cannot be dialled from another one."""
        address = _ip_address(self.host)
        return address is not None and address.is_unspecified

    def prepare(self) -> None:
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except socket.gaierror as error:
            raise AddressError(
                f"Expected a name or an address of this machine, found {self.host!r}: {error.strerror}; 127.0.0.1 is "
                "for this machine alone, 0.0.0.0 for every network it is in"
            ) from error
        if self.host == "localhost" or self.is_everywhere:
            # There gRPC listens at addresses of both kinds, whatever the system makes of the name.
            both = "::1" if self.host == "localhost" else "::"
            found += socket.getaddrinfo(both, self.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        failures: list[OSError] = []
        for family, kind, protocol, _, address in found:
            try:
                _try_to_bind(family, kind, protocol, address)
            except OSError as error:
                failures.append(error)
        in_use = [failure for failure in failures if failure.errno == errno.EADDRINUSE]
        # A name may stand for addresses that this machine does not have, if it has one of them.
        if in_use or len(failures) == len(found):
            error = (in_use or failures)[0]
            raise AddressError(self._complaint(error)) from error

    def target(self, port: int) -> str:
        address = _ip_address(self.host)
        if address is not None and address.is_unspecified:
            return _joined("127.0.0.1" if address.version == 4 else "::1", port)
        return _joined(self.host, port)

    def _complaint(self, error: OSError) -> str:
        if error.errno == errno.EADDRINUSE:
            return (
                f"Port {self.port} of {self.host} is in use; stop what listens there, or "
                "choose another port (0 for any that is free)"
            )
        if error.errno == errno.EACCES:
            return f"Expected a port that this user may listen at, found {self.port}; choose one above 1023"
        return f"Expected an address of this machine, found {self.host}: {error.strerror}"


@attrs.frozen
class UnixListener:
    """The path of a socket, for this machine and this user alone. gRPC removes the file when it stops to listen."""

    path: Path

    @property
    def address(self) -> str:
        return f"unix:{self.path.absolute()}"

    @property
    def is_private(self) -> bool:
        return True

    def prepare(self) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise AddressError("Expected a system with Unix sockets, found one without; listen at a port of 127.0.0.1")
        path = self.path.absolute()
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

    def target(self, port: int) -> str:
        # Whoever may write to a socket may connect to it; without a umask that would be everybody.
        self.path.chmod(0o600)
        return self.address


def check_exposure(host: str, credentials: ServerCredentials, *, insecure: bool, runs_code: bool) -> None:
    """Checks that a server which other machines can reach proves who it is, and lets nobody unknown run code.

    Args:
      host: Where it listens.
      credentials: What it has and asks for.
      insecure: Whether it was asked to do without TLS.
      runs_code: Whether clients may bring code.

    Raises:
      InvalidValueError: If not.
    """
    if not (credentials.uses_tls or insecure):
        raise InvalidValueError(
            f"Expected TLS for an address that other machines can reach, found no certificate for {host}; give one in "
            "credentials (--tls-cert and --tls-key of `fedstack serve`), listen at 127.0.0.1, or say that you do "
            "without by insecure=True (--insecure)"
        )
    if runs_code and not credentials.client_root_certificates:
        raise InvalidValueError(
            f"Expected certificates of all who may run any code, found that {host} lets in others; give "
            "client_root_certificates in credentials (--tls-client-ca of `fedstack serve`), listen at 127.0.0.1, or "
            "allow less in the policy (leave out --allow-python-code, --allow-runtime, and --allow-module for '*' and "
            "for modules of Python itself and of others that run code; see SECURITY.md)"
        )


def _try_to_bind(family: int, kind: int, protocol: int, address: object) -> None:
    with socket.socket(family, kind, protocol) as attempt:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        attempt.bind(address)  # type: ignore[arg-type]


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


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
