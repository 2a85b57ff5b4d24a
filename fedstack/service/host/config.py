"""The configuration of a server: its address, its credentials, and the limits for its clients."""

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
    """Returns a host without the brackets that surround an IPv6 address in front of a port."""
    is_bracketed = isinstance(cast(object, host), str) and host.startswith("[") and host.endswith("]")
    return host[1:-1] if is_bracketed else host


def _check_protocol(_: object, __: "attrs.Attribute[str]", protocol: object) -> None:
    if protocol not in (GRPC, LOCAL):
        raise InvalidValueError(
            f'Expected the protocol "{GRPC}", or "{LOCAL}" for clients in this process, found {protocol!r}'
        )


def _check_switch(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    check_bool(attribute.name, value)


@attrs.frozen(kw_only=True)
class HostConfig:
    """The configuration of a `Host` for any services.

    `ServerConfig`, `DispatcherConfig` and `WorkerConfig` share some of these fields, and have further fields for
    their services. `of` converts such a configuration to a `HostConfig`. The options of `fedstack serve` are
    generated from these fields and their descriptions.

    Attributes:
      host: The name or address of this machine to listen on. Addresses other than loopback require TLS.
      port: The port to listen on; 0 for any free port.
      unix_socket: The path of a Unix socket to listen on, instead of host and port.
      protocol: `"grpc"`, or `"grpc+local"` for this process only, without a socket.
      credentials: The certificate and key for TLS, and the credentials that clients have to present.
      token_file: A file of tokens, one per line; clients must send one of them. The server rereads the file when it
        changes.
      insecure: Whether other machines may reach the server without TLS.
      server_limits: The limits of the server itself.
      reflection: Whether tools can list the services.
      compression: Whether to accept compressed messages; a small message may expand to the maximum size.
      streams: Whether fedstack's own clients may use streams, which are faster than gRPC.
      stream_port: The port to accept streams on; 0 for any free port.
      grace_seconds: The default time limit for running calls when the server stops.

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
    compression: bool = attrs.field(default=False, validator=_check_switch)
    streams: bool = attrs.field(default=True, validator=_check_switch)
    stream_port: int = attrs.field(
        default=0, validator=whole_number_validator(0, MOST_PORT), metadata={"least": 0, "most": MOST_PORT}
    )
    grace_seconds: float = attrs.field(default=30.0, validator=number_validator(), metadata={"least": 0})

    @property
    def listens(self) -> Target:
        """The address that the server listens on. The port may be 0.

        Raises:
          InvalidValueError: If the host is empty.
        """
        if self.unix_socket is not None:
            return Target(f"unix:{self.unix_socket.absolute()}")
        if not self.host.strip():
            raise InvalidValueError(
                f"Expected host to be a name or an address of this machine, found {self.host!r}; use 127.0.0.1 for "
                "clients on this machine only, or 0.0.0.0 for all networks of this machine"
            )
        return Target(f"localhost:{self.port}").at_host(self.host)

    @classmethod
    def of(cls, config: attrs.AttrsInstance, at: Target | None = None) -> "HostConfig":
        """Returns the host configuration for a server that defines its own configuration class.

        Args:
          config: The server's configuration. Fields missing from it keep their defaults.
          at: The address to listen on, if the configuration has no address.
        """
        named = attrs.fields_dict(type(config)).keys() & attrs.fields_dict(cls).keys()
        given: dict[str, Any] = {name: getattr(config, name) for name in named}
        if at is not None:
            given |= {"host": at.host, "port": at.port, "unix_socket": at.socket_path or None}
        return cls(**given)

    def all_credentials(self) -> ServerCredentials:
        """Returns the credentials, including the tokens in `token_file`. With `grpc+local` there are no credentials.

        Raises:
          InvalidValueError: If `credentials` has the wrong type, if both `credentials` and `token_file` contain tokens,
            or if the file cannot be read.
        """
        if self.protocol == LOCAL:
            return ServerCredentials()
        credentials = self.credentials or ServerCredentials()
        if not isinstance(cast(object, credentials), ServerCredentials):
            raise InvalidValueError(
                f"Expected credentials of type fedstack.service.ServerCredentials, found {type(credentials).__name__}"
            )
        if self.token_file is None:
            return credentials
        if credentials.tokens:
            raise InvalidValueError(
                "Expected tokens in credentials or in token_file, found tokens in both; remove the tokens from one"
            )
        read = ServerCredentials.from_files(token_file=self.token_file)
        certificates = credentials.files and credentials.files.certificates
        files = read.files and attrs.evolve(read.files, certificates=certificates)
        return attrs.evolve(credentials, tokens=read.tokens, files=files)


def tokens_in(file: str | os.PathLike[str] | None) -> Renewed[tuple[str, ...]] | None:
    """Returns the tokens in a file, which are reread when the file changes; `None` without a file.

    Raises:
      InvalidValueError: If the file cannot be read or contains no tokens.
    """
    return None if file is None else ServerCredentials.from_files(token_file=file).renewed_tokens()


def check_exposure(host: str, credentials: ServerCredentials, *, insecure: bool, runs_code: bool) -> None:
    """Checks that a server reachable from other machines uses TLS, and that only clients with certificates run code.

    Args:
      host: The host that the server listens on.
      credentials: The server's own credentials, and those that it requires of clients.
      insecure: Whether the server may be reachable without TLS.
      runs_code: Whether clients may send code to run.

    Raises:
      InvalidValueError: If the server lacks TLS and `insecure` is not set, or if clients without certificates could run
        code.
    """
    if not (credentials.uses_tls or insecure):
        raise InvalidValueError(
            f"Expected TLS for an address that other machines can reach, found plaintext for {host}; pass a "
            "certificate in credentials (--tls-cert and --tls-key of `fedstack serve`), listen on 127.0.0.1, or allow "
            "plaintext with insecure=True (--insecure)"
        )
    if runs_code and not credentials.client_root_certificates:
        raise InvalidValueError(
            f"The server at {host} would run arbitrary code for clients without certificates; pass "
            "client_root_certificates in credentials (--tls-client-ca of `fedstack serve`), "
            "listen on 127.0.0.1, or restrict the policy (omit --allow-python-code, --allow-runtime, and "
            "--allow-module for '*' and for modules that can run code, such as Python's own; see SECURITY.md)"
        )
