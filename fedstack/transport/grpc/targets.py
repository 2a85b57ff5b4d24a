"""Says whom to dial: addresses as users write them, or something that finds them."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import attrs

from fedstack.errors import InvalidValueError

_FORMS = "host:port, grpc://host:port, grpcs://host:port or unix:/path"
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]/@]+\]|[^\s:\[\]/@?#,]+)(:(?P<port>[0-9]+))?")
_MAX_PORT = 65_535


@attrs.frozen
class Target:
    """A server to dial.

    Attributes:
      address: Its address, as gRPC takes it: `host:port` or `unix:/path`.
      secure: Whether to use TLS; `None` to use it if the credentials are such.
    """

    address: str
    secure: bool | None = None

    @property
    def is_local(self) -> bool:
        """Whether what is sent there stays on this machine."""
        return self.address.startswith("unix:") or is_loopback(self.address)

    def __str__(self) -> str:
        return self.address


@runtime_checkable
class TargetResolver(Protocol):
    """Finds the servers to dial, anew each time it is asked."""

    def resolve(self) -> Sequence[Target]:
        """Returns the servers as they are now."""
        ...


Targets: TypeAlias = str | Target | TargetResolver | Sequence[str | Target]


def parse_target(text: str) -> Target:
    """Reads an address.

    Args:
      text: `host:port` or `[::1]:8000`, with `grpc://` before it for plaintext or `grpcs://` for TLS; or the path of a
        socket, `unix:/path` or `unix:///path`.

    Raises:
      InvalidValueError: If it is none of these.
    """
    stripped = text.strip()
    if stripped.startswith("unix:"):
        return _socket_target(stripped)
    scheme = _SCHEME.match(stripped)
    if scheme is None:
        return Target(_checked(stripped, text), None)
    name = scheme["scheme"].lower()
    if name not in ("grpc", "grpcs"):
        found = f"Expected {_FORMS}, found {text!r}"
        if name in ("http", "https"):
            found += f"; gRPC has its own schemes, write grpc{'s' * (name == 'https')}://"
        raise InvalidValueError(found)
    return Target(_checked(stripped[scheme.end() :].removesuffix("/"), text), name == "grpcs")


def resolve_targets(targets: Targets) -> tuple[Target, ...]:
    """Returns the servers to dial.

    Args:
      targets: One or several addresses (see `parse_target`), or what finds them.

    Raises:
      InvalidValueError: If there is none, or an address cannot be read.
    """
    if isinstance(targets, (str, Target)):
        targets = (targets,)
    elif isinstance(targets, TargetResolver):
        targets = targets.resolve()
    found = tuple(_to_target(target) for target in targets)
    if not found:
        raise InvalidValueError("Expected at least one address of a server, found none")
    return found


def is_loopback(address: str) -> bool:
    """Tells whether `host:port` is at this machine's loopback device."""
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        return False
    try:
        return ipaddress.ip_address(found["host"].strip("[]")).is_loopback
    except ValueError:
        return found["host"].lower() == "localhost"


def _to_target(target: object) -> Target:
    if isinstance(target, str):
        return parse_target(target)
    if not isinstance(target, Target):
        raise InvalidValueError(f"Expected addresses as text, found {target!r}; write {_FORMS}")
    return target


def _socket_target(text: str) -> Target:
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/") or path == "/":
        raise InvalidValueError(f"Expected the absolute path of a socket, found {text!r}; write unix:/path")
    return Target(f"unix:{path}", None)


def _checked(address: str, text: str) -> str:
    """Returns `host:port` if it is that."""
    if not address:
        raise InvalidValueError(f"Expected the address of a server, found {text!r}; write {_FORMS}")
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        advice = f"write {_FORMS}"
        if "," in address:
            advice = "give several addresses as a list"
        elif address.count(":") > 1 and "[" not in address:
            advice = "put an IPv6 address in brackets, as in [::1]:8000"
        raise InvalidValueError(f"Expected {_FORMS}, found {text!r}; {advice}")
    if found["host"].startswith("["):
        try:
            ipaddress.IPv6Address(found["host"][1:-1])
        except ValueError as error:
            raise InvalidValueError(f"Expected an IPv6 address in the brackets, found {text!r}; {error}") from error
    if found["port"] is None:
        raise InvalidValueError(f"Expected an address with a port, found {text!r}; write {address}:8000, for example")
    if not 1 <= int(found["port"]) <= _MAX_PORT:
        raise InvalidValueError(f"Expected a port from 1 to {_MAX_PORT}, found {found['port']} in {text!r}")
    return address
