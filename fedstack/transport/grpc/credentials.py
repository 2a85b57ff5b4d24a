"""Defines the credentials of clients and servers: certificates, keys and tokens.

A token is sent in the metadata of each call, as `authorization: Bearer ...`. Tokens and keys never appear in a `repr`
or an error message.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar, cast

import attrs

from fedstack.errors import InvalidValueError
from fedstack.foundations.value_text import describe
from fedstack.transport.grpc.credential_files import (
    METADATA_KEY,
    File,
    FileWatch,
    Renewed,
    check_token,
    read_file,
    read_tokens,
    why_unusable,
)
from fedstack.transport.wire.addresses import Target

if TYPE_CHECKING:
    import grpc

_T = TypeVar("_T")
_BEGIN = rb"-----BEGIN [A-Z ]*%b-----"


@attrs.frozen
class CredentialFiles:
    """The files from which credentials were read.

    Attributes:
      certificates: The files with a server's certificate and key and, if given, with its clients' authorities.
      tokens: The file with the tokens.
    """

    certificates: FileWatch | None = None
    tokens: FileWatch | None = None


@attrs.frozen(kw_only=True, repr=False)
class ClientCredentials:
    """The credentials of a client, and the authorities that the client trusts.

    The client dials with TLS if root certificates, a certificate or a server name are given, or if the target requires
    TLS (`grpcs://`). A token alone does not enable TLS.

    Attributes:
      root_certificates: The certificates of the authorities that the client trusts (PEM); by default gRPC's own list.
      certificate: The client's certificate (PEM), for servers that require one.
      private_key: The private key of the client's certificate (PEM).
      token: The token to send with each call.
      server_name: The expected name in the server's certificate, if it differs from the host that is dialed.
      files: The token file, which is read again when it changes.
    """

    root_certificates: bytes | None = None
    certificate: bytes | None = None
    private_key: bytes | None = None
    token: str | None = None
    server_name: str | None = None
    files: CredentialFiles | None = attrs.field(default=None, eq=False)

    def __attrs_post_init__(self) -> None:
        _check_pem("root certificates", self.root_certificates, "CERTIFICATE")
        _check_pair(self.certificate, self.private_key)
        if self.token is not None:
            check_token(self.token)
        name = cast(object, self.server_name)
        if not (name is None or (isinstance(name, str) and name.strip())):
            raise InvalidValueError(f"Expected server_name to be a host name as text, found {describe(name)}")

    @classmethod
    def from_files(
        cls,
        *,
        root_certificates: File | None = None,
        certificate: File | None = None,
        private_key: File | None = None,
        token: str | None = None,
        token_file: File | None = None,
        server_name: str | None = None,
    ) -> "ClientCredentials":
        """Reads credentials from files.

        A token file is read again when it changes. Certificates are not; to use new certificates, create a new context.

        Args:
          root_certificates: The file with the certificates of the authorities that the client trusts (PEM).
          certificate: The file with the client's certificate (PEM).
          private_key: The file with the private key of the client's certificate (PEM).
          token: The token to send with each call, as text.
          token_file: The file with the token to send with each call. If it contains several tokens, the first is used.
          server_name: The expected name in the server's certificate, if it differs from the host that is dialed.

        Raises:
          InvalidValueError: If a file cannot be read or has invalid content, or if the key does not belong to the
            certificate; the message names the files. Also if both a token and a token file are given.
        """
        if token is not None and token_file is not None:
            raise InvalidValueError("Expected either token or token_file, found both; pass only one of them")
        # The watch records the state of the file before it is read, so that no change is missed.
        files = None if token_file is None else CredentialFiles(tokens=FileWatch([token_file]))
        pair = _read_pair(certificate, private_key)
        return cls(
            root_certificates=_read_pem(root_certificates, "CERTIFICATE"),
            certificate=pair[0],
            private_key=pair[1],
            token=token if token_file is None else read_tokens(token_file)[0],
            server_name=server_name,
            files=files,
        )

    @property
    def uses_tls(self) -> bool:
        """Whether these credentials require TLS."""
        return any(part is not None for part in (self.root_certificates, self.certificate, self.server_name))

    def secures(self, target: Target) -> bool:
        """Returns whether a target is dialed with TLS: the target decides, or else these credentials."""
        return self.uses_tls if target.secure is None else target.secure

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata to send with each call: the token if there is one, otherwise empty."""
        return () if self.token is None else ((METADATA_KEY, f"Bearer {self.token}"),)

    def for_named(self, target: Target) -> "ClientCredentials":
        """Returns the credentials for dialing a server whose address a peer has sent.

        The token is omitted if the connection does not use TLS.
        """
        if self.token is None or self.secures(target):
            return self
        return attrs.evolve(self, token=None, files=None)

    def renewed_metadata(self) -> Renewed[tuple[tuple[str, str], ...]]:
        """Returns the metadata to send with each call. It is updated when the token file changes."""
        return self._renewed(lambda credentials: credentials.metadata)

    def renewed_token(self) -> Renewed[str | None]:
        """Returns the token. It is updated when the token file changes."""
        return self._renewed(lambda credentials: credentials.token)

    def _renewed(self, read: "Callable[[ClientCredentials], _T]") -> Renewed[_T]:
        watch = self.files.tokens if self.files is not None else None
        return Renewed(read(self), watch, lambda: read(self.from_files(token_file=watch.files[0]) if watch else self))

    def __repr__(self) -> str:
        return _describe(
            self,
            {
                "root certificates": self.root_certificates,
                "certificate and key": self.certificate,
                "token": self.token,
                f"server name {self.server_name}": self.server_name,
            },
        )


def _tokens(tokens: Iterable[str]) -> tuple[str, ...]:
    # A str is itself a sequence of str, so each of its characters would become a token.
    if isinstance(tokens, (str, bytes)) or not isinstance(cast(object, tokens), Iterable):
        raise InvalidValueError(f"Expected a list of tokens, found {type(tokens).__name__}; pass [token]")
    return tuple(tokens)


@attrs.frozen(kw_only=True, repr=False)
class ServerCredentials:
    """The credentials of a server, and the credentials that the server requires of its clients.

    Attributes:
      certificate: The server's certificate (PEM), with the chain that leads to its authority; `None` for plaintext.
      private_key: The private key of the server's certificate (PEM).
      client_root_certificates: The certificates of the authorities that the server trusts (PEM). If they are given,
        every client must present a certificate that one of these authorities has signed.
      tokens: The accepted tokens. If there are none, calls do not need a token.
      files: The files of the certificates, keys and tokens. A server reads the files again when they change.
    """

    certificate: bytes | None = None
    private_key: bytes | None = None
    client_root_certificates: bytes | None = None
    tokens: tuple[str, ...] = attrs.field(default=(), converter=_tokens)
    files: CredentialFiles | None = attrs.field(default=None, eq=False)

    def __attrs_post_init__(self) -> None:
        _check_pair(self.certificate, self.private_key)
        _check_pem("client root certificates", self.client_root_certificates, "CERTIFICATE")
        if self.client_root_certificates is not None and self.certificate is None:
            raise InvalidValueError(
                "Expected a server certificate together with client_root_certificates, found none; pass certificate "
                "and private_key, since clients can present certificates only over TLS"
            )
        for token in self.tokens:
            check_token(token)

    @classmethod
    def from_files(
        cls,
        *,
        certificate: File | None = None,
        private_key: File | None = None,
        client_root_certificates: File | None = None,
        token_file: File | None = None,
    ) -> "ServerCredentials":
        """Reads credentials from files.

        Args:
          certificate: The file with the server's certificate (PEM).
          private_key: The file with the private key of the server's certificate (PEM).
          client_root_certificates: The file with the certificates of the authorities that must have signed the
            certificates of clients (PEM).
          token_file: The file with the accepted tokens.

        Raises:
          InvalidValueError: If a file cannot be read or has invalid content, or if the key does not belong to the
            certificate. The message names the files.
        """
        pem = [file for file in (certificate, private_key, client_root_certificates) if file is not None]
        # The watches record the state of the files before they are read, so that no change is missed.
        files = CredentialFiles(
            certificates=FileWatch(pem) if pem else None,
            tokens=None if token_file is None else FileWatch([token_file]),
        )
        pair = _read_pair(certificate, private_key)
        return cls(
            certificate=pair[0],
            private_key=pair[1],
            client_root_certificates=_read_pem(client_root_certificates, "CERTIFICATE"),
            tokens=() if token_file is None else read_tokens(token_file),
            files=files,
        )

    def renewed_tokens(self) -> Renewed[tuple[str, ...]]:
        """Returns the accepted tokens. They are updated when the token file changes."""
        watch = self.files.tokens if self.files is not None else None
        return Renewed(self.tokens, watch, lambda: read_tokens(watch.files[0] if watch is not None else ""))

    def renewed_certificates(self, run: Callable[[Callable[[], None]], object]) -> "Renewed[ServerCredentials]":
        """Returns credentials without tokens, whose certificates and key are updated when the files change.

        New content is used only if the certificate and the key match. Until all files have been replaced, the previous
        content is kept.

        Args:
          run: Runs the function that logs a change, on a thread that Python created.
        """
        watch = self.files.certificates if self.files is not None else None

        def read() -> ServerCredentials:
            certificate, key, *roots = watch.files if watch is not None else ("", "")
            found = ServerCredentials.from_files(
                certificate=certificate, private_key=key, client_root_certificates=roots[0] if roots else None
            )
            reason = found.why_unusable()
            if reason is not None:
                raise InvalidValueError(reason)
            return found

        return Renewed(attrs.evolve(self, tokens=()), watch, read, run)

    def why_unusable(self) -> str | None:
        """Returns why the certificates or keys cannot be used; `None` if they can.

        gRPC would reject such certificates or keys without stating a reason.
        """
        return why_unusable(self.certificate, self.private_key, self.client_root_certificates)

    @property
    def uses_tls(self) -> bool:
        """Whether the server uses TLS."""
        return self.certificate is not None

    def __repr__(self) -> str:
        return _describe(
            self,
            {
                "certificate and key": self.certificate,
                "client root certificates": self.client_root_certificates,
                f"{len(self.tokens)} token{'s' if len(self.tokens) > 1 else ''}": self.tokens,
            },
        )


def channel_credentials(credentials: ClientCredentials) -> "grpc.ChannelCredentials":
    """Returns gRPC's credentials for dialing with TLS."""
    from fedstack.transport.grpc.grpc_module import grpc  # local runs must not import gRPC

    return grpc.ssl_channel_credentials(credentials.root_certificates, credentials.private_key, credentials.certificate)


def server_credentials(credentials: ServerCredentials) -> "grpc.ServerCredentials":
    """Returns gRPC's credentials for serving with TLS.

    If `credentials` contains root certificates for clients, clients must present a certificate. The function must be
    called on the server's event loop. gRPC checks for new certificates at each handshake, on its own threads.
    """
    from fedstack.transport.grpc.grpc_module import grpc  # local runs must not import gRPC

    if credentials.certificate is None or credentials.private_key is None:
        raise InvalidValueError("Expected a certificate and a private key for TLS, found neither; pass both")
    source = credentials.renewed_certificates(asyncio.get_running_loop().call_soon_threadsafe)
    known = source.get()

    def fetch() -> "grpc.ServerCertificateConfiguration | None":
        """Returns the new certificates for the next handshake; `None` if the certificates have not changed."""
        nonlocal known
        found = source.get()
        if found is known:
            return None
        known = found
        return configuration(found)

    def configuration(found: ServerCredentials) -> "grpc.ServerCertificateConfiguration":
        assert found.private_key is not None
        assert found.certificate is not None
        pairs = [(found.private_key, found.certificate)]
        return grpc.ssl_server_certificate_configuration(pairs, found.client_root_certificates)

    return grpc.dynamic_ssl_server_credentials(
        configuration(known),
        cast("Callable[[], grpc.ServerCertificateConfiguration]", fetch),  # the type stub does not allow None
        require_client_authentication=known.client_root_certificates is not None,
    )


def _check_pem(what: str, content: bytes | None, kind: str) -> None:
    if content is None:
        return
    if not isinstance(cast(object, content), bytes):
        raise InvalidValueError(
            f"Expected {what} in PEM as bytes, found {type(content).__name__}; use from_files() to read files"
        )
    # gRPC accepts any bytes. It detects mistakes only later, and does not report them to the caller.
    if not re.search(_BEGIN % kind.encode(), content):
        other = "PRIVATE KEY" if kind == "CERTIFICATE" else "CERTIFICATE"
        found = (
            f"a {other.lower()}; check that certificate and key are not swapped"
            if re.search(_BEGIN % other.encode(), content)
            else "no such line; convert the content to PEM"
        )
        raise InvalidValueError(f"Expected {what} in PEM, with a line -----BEGIN ... {kind}-----, found {found}")


def _check_pair(certificate: bytes | None, private_key: bytes | None) -> None:
    _check_pem("a certificate", certificate, "CERTIFICATE")
    _check_pem("a private key", private_key, "PRIVATE KEY")
    if private_key is not None and b"ENCRYPTED" in private_key:
        raise InvalidValueError("Expected an unencrypted private key, found an encrypted one; decrypt the key file")
    if (certificate is None) != (private_key is None):
        given, missing = (
            ("a certificate", "its private key") if private_key is None else ("a private key", "its certificate")
        )
        raise InvalidValueError(f"Expected a certificate and its private key, found only {given}; pass {missing} too")


def _read_pem(file: File | None, kind: str) -> bytes | None:
    if file is None:
        return None
    content = read_file(file)
    _check_pem(os.fspath(file), content, kind)
    return content


def _read_pair(certificate: File | None, private_key: File | None) -> tuple[bytes | None, bytes | None]:
    """Reads a certificate and its key, and checks that they belong together."""
    pair = _read_pem(certificate, "CERTIFICATE"), _read_pem(private_key, "PRIVATE KEY")
    _check_pair(*pair)
    reason = why_unusable(*pair, None)
    if reason is not None:
        raise InvalidValueError(f"{reason}: {certificate} and {private_key}; pass a matching pair")
    return pair


def check_client_credentials(given: object) -> None:
    """Checks the credentials with which a server dials other servers.

    Raises:
      InvalidValueError: If `given` is neither `None` nor a `ClientCredentials`, for example if it is the server's own
        credentials.
    """
    if not (given is None or isinstance(given, ClientCredentials)):
        raise InvalidValueError(
            f"Expected client_credentials to be a fedstack.ClientCredentials, found {type(given).__name__}; pass the "
            "server's own credentials as credentials"
        )


def _describe(credentials: object, parts: dict[str, object]) -> str:
    given = [name for name, value in parts.items() if value]
    return f"<{type(credentials).__name__}: {', '.join(given) or 'none'}>"
