"""Says how a server of a cluster serves."""

import ipaddress
import os
from collections.abc import Iterable
from typing import cast

import attrs

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.errors import InvalidValueError
from fedstack.foundations.value_text import describe
from fedstack.service.limits.limits import ServerLimits, ServiceLimits
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials, check_calls_with
from fedstack.transport.grpc.targets import TargetResolver, address_of
from fedstack.transport.peers.methods import Service


def _services(services: Iterable[Service]) -> tuple[Service, ...]:
    if not isinstance(cast(object, services), Iterable):
        raise InvalidValueError(f"Expected services in a list, found {describe(services)}; write [service] for one")
    return tuple(services)


def _host(host: str) -> str:
    """Returns a host without the brackets in which an IPv6 address stands before a port."""
    is_bracketed = isinstance(cast(object, host), str) and host.startswith("[") and host.endswith("]")
    return host[1:-1] if is_bracketed else host


def _addresses(addresses: "str | TargetResolver | Iterable[str | TargetResolver]") -> tuple[str, ...]:
    several = isinstance(cast(object, addresses), Iterable) and not isinstance(addresses, (str, TargetResolver))
    found = tuple(map(address_of, cast("Iterable[str]", addresses if several else (addresses,))))
    for address in found:
        if not isinstance(cast(object, address), str):
            raise InvalidValueError(f"Expected data_services as addresses of dispatchers, found {describe(address)}")
    return found


@attrs.frozen
class ServerConfig:
    """How a `Server` serves.

    Attributes:
      credentials: The certificate and key for TLS, and what is asked of clients.
      token_file: A file with tokens, one a line, of which clients must know one; it is read again when it changes.
      insecure: Whether other machines may reach the server without TLS.
      policy: Which leaf computations clients may bring: by default neither modules nor code.
      limits: How much clients may have of the executor service.
      services: More to serve; they belong to the one server that is given them, which closes them when it stops.
      server_limits: How much clients may have of the server itself.
      addresses_file: A file to which the server adds its address when it listens; see `wait_for_addresses`.
      calls_with: What functions that run here dial other servers with, such as the owner of a variable: their own
        certificate and token. By default nothing, also where `credentials` has a certificate.
      host: The name or address of this machine to listen at, where that is not what the cluster has for others to dial:
        such as 0.0.0.0 in a container. The port is that of the cluster.
      data_services: The dispatchers whose datasets clients' computations may refer to: they are dialled, and their
        data workers, with `calls_with`. Addresses, or jobs of a cluster with one task; by default none.
    """

    credentials: ServerCredentials | None = None
    token_file: str | os.PathLike[str] | None = None
    insecure: bool = False
    policy: CarrierPolicy = attrs.field(factory=CarrierPolicy)
    limits: ServiceLimits = attrs.field(factory=ServiceLimits)
    services: tuple[Service, ...] = attrs.field(default=(), converter=_services)
    server_limits: ServerLimits = attrs.field(factory=ServerLimits)
    addresses_file: str | os.PathLike[str] | None = None
    calls_with: ClientCredentials | None = None
    host: str = attrs.field(default="", converter=_host)
    data_services: tuple[str, ...] = attrs.field(default=(), converter=_addresses)

    def __attrs_post_init__(self) -> None:
        check_calls_with(self.calls_with)
        given = [("policy", self.policy, CarrierPolicy), ("limits", self.limits, ServiceLimits)]
        given += [("server_limits", self.server_limits, ServerLimits), ("host", self.host, str)]
        for name, value, kind in [*given, *(("services", service, Service) for service in self.services)]:
            if not isinstance(cast(object, value), kind):
                raise InvalidValueError(f"Expected {name} as {kind.__name__}, found {describe(value)}")
        if ":" in self.host and not _is_ipv6(self.host):
            raise InvalidValueError(
                f"Expected host as a name or an address without a port, found {self.host!r}; "
                "the port is that of the cluster"
            )

    def all_credentials(self) -> ServerCredentials:
        """Returns the credentials with the tokens of the file.

        Raises:
          InvalidValueError: If that cannot be read, or the credentials have tokens themselves.
        """
        return with_tokens(self.credentials, self.token_file)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def checked_config(config: object) -> ServerConfig:
    """Returns a configuration; that of a server which is given none by default.

    Raises:
      InvalidValueError: If it is something else.
    """
    if config is None:
        return ServerConfig()
    if not isinstance(config, ServerConfig):
        raise InvalidValueError(
            f"Expected config as fedstack.service.ServerConfig, found {describe(config)}; write ServerConfig(...)"
        )
    return config


def with_tokens(credentials: object, token_file: "str | os.PathLike[str] | None") -> ServerCredentials:
    """Returns the credentials of a server with the tokens of a file.

    Raises:
      InvalidValueError: If they are none, the file cannot be read, or they have tokens themselves.
    """
    credentials = ServerCredentials() if credentials is None else credentials
    if not isinstance(credentials, ServerCredentials):
        raise InvalidValueError(
            f"Expected credentials as fedstack.service.ServerCredentials, found {type(credentials).__name__}"
        )
    if token_file is None:
        return credentials
    if credentials.tokens:
        raise InvalidValueError("Expected tokens in credentials or in token_file, found both; give one of them")
    read = ServerCredentials.from_files(token_file=token_file)
    certificates = credentials.files and credentials.files.certificates
    files = read.files and attrs.evolve(read.files, certificates=certificates)
    return attrs.evolve(credentials, tokens=read.tokens, files=files)
