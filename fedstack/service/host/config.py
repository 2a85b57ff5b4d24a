"""Defines how services are hosted: the address of their server, its credentials, and limits for clients."""

import os
from pathlib import Path
from typing import Any, cast

import attrs

from fedstack.errors import InvalidValueError
from fedstack.foundations.number_checks import check_bool, number_validator, whole_number_validator
from fedstack.service.host.limits import ServerLimits
from fedstack.service.host.listening import GRPC, LOCAL
from fedstack.transport.grpc.credential_files import Renewed
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.wire.addresses import Target

MOST_PORT = 65_535


def unbracketed(host: str) -> str:
    """Returns a host without the brackets in which an IPv6 address stands before a port."""
    is_bracketed = isinstance(cast(object, host), str) and host.startswith("[") and host.endswith("]")
    return host[1:-1] if is_bracketed else host


def _check_protocol(_: object, __: "attrs.Attribute[str]", protocol: object) -> None:
    if protocol not in (GRPC, LOCAL):
        raise InvalidValueError(f'Expected the protocol "{GRPC}", or "{LOCAL}" within one process, found {protocol!r}')


def _check_compression(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    check_bool(attribute.name, value)


@attrs.frozen(kw_only=True)
class HostConfig:
    """How a `Host` serves any services.

    `ServerConfig`, `DispatcherConfig` and `WorkerConfig` have some of these fields under the same names, besides those
    for their services; `of` converts them. The options of `fedstack serve` are generated from the fields and their
    descriptions here.

    Attributes:
      host: The name or address of this machine to listen at. Any but loopback needs TLS.
      port: The port to listen at; 0 for any free port.
      unix_socket: The path of a socket to listen at, instead of host and port.
      protocol: `"grpc"`, or `"grpc+local"` for this process only, without a socket.
      credentials: The certificate and key for TLS, and what clients have to show.
      token_file: A file of tokens, one a line; clients need one of them. It is read again when it changes.
      insecure: Whether other machines may reach the server without TLS.
      server_limits: The limits of the server itself.
      reflection: Whether tools can list the services.
      compression: Whether to accept compressed messages; a small one may expand to the largest message.
      grace_seconds: How long running calls may take by default when the server stops.

    Raises:
      InvalidValueError: If a number is out of range, or the protocol is unknown.
    """

    host: str = attrs.field(default="127.0.0.1", converter=unbracketed)
    port: int = attrs.field(
        default=0, validator=whole_number_validator(0, MOST_PORT), metadata={"least": 0, "most": MOST_PORT}
    )
    unix_socket: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))
    protocol: str = attrs.field(default=GRPC, validator=_check_protocol)
    credentials: ServerCredentials | None = None
    token_file: str | os.PathLike[str] | None = None
    insecure: bool = False
    server_limits: ServerLimits = attrs.field(factory=ServerLimits)
    reflection: bool = True
    compression: bool = attrs.field(default=False, validator=_check_compression)
    grace_seconds: float = attrs.field(default=30.0, validator=number_validator(), metadata={"least": 0})

    @property
    def listens(self) -> Target:
        """The address that the server listens at; the port may be 0.

        Raises:
          InvalidValueError: If there is no host.
        """
        if self.unix_socket is not None:
            return Target(f"unix:{self.unix_socket.absolute()}")
        if not self.host.strip():
            raise InvalidValueError(
                f"Expected a name or an address of this machine as host, found {self.host!r}; 127.0.0.1 is for this "
                "machine only, 0.0.0.0 for all its networks"
            )
        return Target(f"localhost:{self.port}").at_host(self.host)

    @classmethod
    def of(cls, config: attrs.AttrsInstance, at: Target | None = None) -> "HostConfig":
        """Returns the configuration of the host of a server with a configuration of its own.

        Args:
          config: The configuration. Fields that it lacks have their defaults.
          at: The address to listen at, if the configuration has none.
        """
        named = attrs.fields_dict(type(config)).keys() & attrs.fields_dict(cls).keys()
        given: dict[str, Any] = {name: getattr(config, name) for name in named}
        if at is not None:
            given |= {"host": at.host, "port": at.port, "unix_socket": at.socket_path or None}
        return cls(**given)

    def all_credentials(self) -> ServerCredentials:
        """Returns the credentials with the tokens of the file; `grpc+local` has none.

        Raises:
          InvalidValueError: If they are something else or have tokens besides the file's, or the file cannot be read.
        """
        if self.protocol == LOCAL:
            return ServerCredentials()
        credentials = self.credentials or ServerCredentials()
        if not isinstance(cast(object, credentials), ServerCredentials):
            raise InvalidValueError(
                f"Expected credentials as fedstack.service.ServerCredentials, found {type(credentials).__name__}"
            )
        if self.token_file is None:
            return credentials
        if credentials.tokens:
            raise InvalidValueError("Expected tokens in credentials or in token_file, found both; give one of them")
        read = ServerCredentials.from_files(token_file=self.token_file)
        certificates = credentials.files and credentials.files.certificates
        files = read.files and attrs.evolve(read.files, certificates=certificates)
        return attrs.evolve(credentials, tokens=read.tokens, files=files)


def tokens_in(file: str | os.PathLike[str] | None) -> Renewed[tuple[str, ...]] | None:
    """Returns the tokens in a file, which change when the file does; `None` without a file.

    Raises:
      InvalidValueError: If the file cannot be read, or has no tokens.
    """
    return None if file is None else ServerCredentials.from_files(token_file=file).renewed_tokens()


def check_exposure(host: str, credentials: ServerCredentials, *, insecure: bool, runs_code: bool) -> None:
    """Checks that a server that other machines can reach uses TLS, and that only clients with certificates run code.

    Args:
      host: The host that it listens at.
      credentials: The credentials of the server, and those that it requires.
      insecure: Whether TLS may be missing.
      runs_code: Whether clients may bring code.

    Raises:
      InvalidValueError: If one of these does not hold.
    """
    if not (credentials.uses_tls or insecure):
        raise InvalidValueError(
            f"Expected TLS for an address that other machines can reach, found no certificate for {host}; give one in "
            "credentials (--tls-cert and --tls-key of `fedstack serve`), listen at 127.0.0.1, or allow plaintext with "
            "insecure=True (--insecure)"
        )
    if runs_code and not credentials.client_root_certificates:
        raise InvalidValueError(
            f"Expected certificates of all clients that may run any code, found that {host} accepts others; give "
            "client_root_certificates in credentials (--tls-client-ca of `fedstack serve`), listen at 127.0.0.1, or "
            "allow less in the policy (leave out --allow-python-code, --allow-runtime, and --allow-module for '*' and "
            "for modules of Python itself and of others that run code; see SECURITY.md)"
        )
