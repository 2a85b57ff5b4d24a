"""Parses the addresses that users write, and resolves targets to addresses."""

import ipaddress
import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias, cast, runtime_checkable

import attrs

from fedstack.errors import InvalidValueError

FORMS = "host:port, grpc://host:port, grpcs://host:port or unix:/path"
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]/@]+\]|[^\s:\[\]/@?#,]+)(:(?P<port>[0-9]+))?")
_MAX_PORT = 65_535
_LOOPBACK = ("127.0.0.1", "::1")


@attrs.frozen
class Target:
    """The address of a server to dial.

    Attributes:
      address: The address in the form that gRPC accepts: `host:port` or `unix:/path`.
      secure: Whether to use TLS; `None` to use TLS if the credentials require it.
    """

    address: str
    secure: bool | None = None

    @property
    def host(self) -> str:
        """The host without brackets; empty for the path of a socket."""
        return "" if self.socket_path else self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port; 0 for the path of a socket, and for a server that is to listen on any free port."""
        return 0 if self.socket_path else int(self.address.rpartition(":")[2])

    @property
    def written(self) -> str:
        """The address in the form that `parse_target` reads, with the scheme that specifies whether to use TLS."""
        return self.address if self.secure is None else f"{'grpcs' if self.secure else 'grpc'}://{self.address}"

    def at_host(self, host: str) -> "Target":
        """Returns a target with the same port on another host."""
        return attrs.evolve(self, address=f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}")

    def at_port(self, port: int) -> "Target":
        """Returns a target with another port on the same host."""
        return attrs.evolve(self, address=f"{self.address.rpartition(':')[0]}:{port}")

    @property
    def socket_path(self) -> str:
        """The path of the Unix socket; empty if the address is a host and port."""
        return self.address.removeprefix("unix:") if self.address.startswith("unix:") else ""

    @property
    def identity(self) -> str:
        """A string that is equal for all spellings of the same address.

        `localhost`, `127.0.0.1` and `::1` are treated as equal, since a server at `localhost` listens on both loopback
        addresses.
        """
        if self.socket_path:
            return f"unix:{posixpath.normpath(self.socket_path)}"
        try:
            host = ipaddress.ip_address(self.host).compressed
        except ValueError:
            host = self.host.lower().removesuffix(".")
        return f"{'localhost' if host in _LOOPBACK else host} {self.port}"

    @property
    def has_any_port(self) -> bool:
        """Whether the port is 0, which stands for any free port of a server. Clients cannot dial such a target."""
        return self.port == 0 and not self.socket_path

    @property
    def is_everywhere(self) -> bool:
        """Whether the host stands for all addresses of a machine."""
        try:
            return self.host == "*" or ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def is_local(self) -> bool:
        """Whether traffic to the target does not leave this machine."""
        return self.address.startswith("unix:") or is_loopback(self.address)

    def __str__(self) -> str:
        return self.address


def parse_target(text: str, *, any_port: bool = False) -> Target:
    """Parses an address.

    Args:
      text: `host:port` or `[::1]:8000`, with the prefix `grpc://` for plaintext or `grpcs://` for TLS; or the path of a
        socket, `unix:/path` or `unix:///path`.
      any_port: Whether the port may be 0, as in the address of a server that is to listen on any free port.

    Raises:
      InvalidValueError: If the text has none of these forms.
    """
    stripped = text.strip()
    if stripped.startswith("unix:"):
        return _socket_target(stripped)
    scheme = _SCHEME.match(stripped)
    if scheme is None:
        return Target(_checked(stripped, text, any_port), None)
    name = scheme["scheme"].lower()
    if name not in ("grpc", "grpcs"):
        found = f"Expected {FORMS}, found {text!r}"
        if name in ("http", "https"):
            found += f"; replace the scheme with grpc{'s' * (name == 'https')}://"
        raise InvalidValueError(found)
    return Target(_checked(stripped[scheme.end() :].removesuffix("/"), text, any_port), name == "grpcs")


def is_loopback(address: str) -> bool:
    """Returns whether an address of the form `host:port` is on the loopback device of this machine."""
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        return False
    try:
        return ipaddress.ip_address(found["host"].strip("[]")).is_loopback
    except ValueError:
        return found["host"].lower() == "localhost"


def _socket_target(text: str) -> Target:
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/") or path == "/":
        raise InvalidValueError(f"Expected the absolute path of a socket, found {text!r}; write unix:/path")
    return Target(f"unix:{path}", None)


def _checked(address: str, text: str, any_port: bool) -> str:
    """Returns `address` if it has the form `host:port`; otherwise raises an error that quotes `text`."""
    if not address:
        raise InvalidValueError(f"Expected the address of a server, found {text!r}; write {FORMS}")
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        advice = f"write {FORMS}"
        host, _, port = address.rpartition(":")
        before = _HOST_AND_PORT.fullmatch(host)
        if port and before is not None and before["port"] is None:
            raise InvalidValueError(f"Expected a number as the port of {host}, found {port!r} in {text!r}")
        if "," in address:
            advice = "pass several addresses as a list"
        elif address.count(":") > 1 and "[" not in address:
            advice = "enclose an IPv6 address in brackets, as in [::1]:8000"
        raise InvalidValueError(f"Expected {FORMS}, found {text!r}; {advice}")
    if found["host"].startswith("["):
        try:
            ipaddress.IPv6Address(found["host"][1:-1])
        except ValueError as error:
            raise InvalidValueError(f"Expected an IPv6 address in brackets, found {text!r}: {error}") from error
    if found["port"] is None:
        # A number alone is most likely a port.
        example = f"localhost:{address}" if address.isdecimal() else f"{address}:8000"
        raise InvalidValueError(f"Expected an address with a port, found {text!r}; write, for example, {example}")
    least = 0 if any_port else 1
    if not least <= int(found["port"]) <= _MAX_PORT:
        raise InvalidValueError(
            f"Expected a port from {least} to {_MAX_PORT}, found {found['port']} in {text!r}; correct the port"
        )
    return address


@runtime_checkable
class TargetResolver(Protocol):
    """Determines the servers to dial. Each call of `resolve` may return different servers."""

    def resolve(self) -> Sequence[Target]:
        """Returns the current servers."""
        ...


Targets: TypeAlias = str | Target | TargetResolver | Sequence[str | Target]


def resolve_targets(targets: Targets) -> tuple[Target, ...]:
    """Returns the servers to dial.

    Args:
      targets: One or more addresses (see `parse_target`), or a resolver.

    Raises:
      InvalidValueError: If there are no addresses, or an address is not valid.
    """
    listed: object = targets
    if isinstance(targets, (str, Target)):
        listed = (targets,)
    elif isinstance(targets, TargetResolver):
        listed = targets.resolve()
    if not isinstance(listed, Iterable):  # `pathlib.Path` also has a `resolve` method
        raise _no_addresses(targets)
    found = tuple(_to_target(target) for target in cast("Iterable[object]", listed))
    if not found:
        raise InvalidValueError("Expected at least one address of a server, found none; pass an address")
    return found


def resolve_target(place: TargetResolver) -> Target:
    """Returns the only server of a resolver, such as a job with a single task.

    Raises:
      InvalidValueError: If the resolver returns no server or several servers.
    """
    found = resolve_targets(place)
    if len(found) != 1:
        raise InvalidValueError(
            f"Expected one server, found {len(found)}: {', '.join(map(str, found))}; pass the address of one of them"
        )
    return found[0]


def address_of(place: "str | TargetResolver") -> str:
    """Returns the address of the only server of a resolver. If given an address, returns it unchanged.

    Raises:
      InvalidValueError: If the resolver returns no server or several servers.
    """
    return resolve_target(place).written if isinstance(place, TargetResolver) else place


def _to_target(target: object) -> Target:
    if isinstance(target, str):
        return parse_target(target)
    if not isinstance(target, Target):
        raise _no_addresses(target)
    return target


def _no_addresses(found: object) -> InvalidValueError:
    return InvalidValueError(f"Expected addresses as text, found {found!r}; write {FORMS}")
