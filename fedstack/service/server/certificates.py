"""Makes certificates to try TLS with: a certificate authority, a server and a client.

They are for tests and first steps. The authority's key is thrown away, so nobody can sign more with it.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from fedstack.errors import InvalidValueError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as error:
    raise ImportError('making certificates needs cryptography: pip install "fedstack[certs]"') from error

DEFAULT_NAMES = ("localhost", "127.0.0.1", "::1")
MAX_DAYS = 3650
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.IGNORECASE)
_MAX_NAME = 253
_CLOCKS_DIFFER_BY = datetime.timedelta(hours=1)


@attrs.frozen
class CertificateFiles:
    """Where the certificates and keys are, in PEM.

    Attributes:
      ca: The authority's certificate; both sides need it, the server to ask for the certificates of its clients.
      server_cert: The server's certificate, for the names and addresses it was made for.
      server_key: Its key.
      client_cert: The client's certificate.
      client_key: Its key.
    """

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path

    @classmethod
    def in_folder(cls, folder: Path) -> "CertificateFiles":
        """Returns the paths of the files that a folder has or will have."""
        return cls(
            ca=folder / "ca.pem",
            server_cert=folder / "server.pem",
            server_key=folder / "server.key",
            client_cert=folder / "client.pem",
            client_key=folder / "client.key",
        )

    def __iter__(self) -> Iterator[Path]:
        return iter((self.ca, self.server_cert, self.server_key, self.client_cert, self.client_key))


def make_test_certificates(
    folder: Path, names: Sequence[str] = DEFAULT_NAMES, *, days: int = 30, force: bool = False
) -> CertificateFiles:
    """Makes an authority, a server's and a client's certificate, and writes them with their keys into `folder`.

    Args:
      folder: Is made if it is not there.
      names: The names and IP addresses under which clients will dial the server.
      days: How long the certificates are valid.
      force: Whether files that are there are written over.

    Raises:
      FileExistsError: If there are files already and `force` is not given; nothing is written then.
      InvalidValueError: If a name is none that a certificate can have, the time is too long, or the folder cannot be
        written to.
    """
    if not 0 <= days <= MAX_DAYS:
        raise InvalidValueError(f"Expected from 0 to {MAX_DAYS} days, found {days}")
    files = CertificateFiles.in_folder(folder)
    try:
        there = [path.name for path in files if os.path.lexists(path)]
    except OSError as error:
        raise _unusable(folder, error) from error
    if there and not force:
        raise FileExistsError(
            f"Expected a folder without certificates, found {', '.join(there)} in {folder}; choose another one, or "
            "write over them with --force"
        )
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    authority = _Authority(datetime.timedelta(days=days))
    server = authority.issue("fedstack test server", ExtendedKeyUsageOID.SERVER_AUTH, alternatives)
    client = authority.issue("fedstack test client", ExtendedKeyUsageOID.CLIENT_AUTH, None)
    contents = (_pem(authority.certificate), _pem(server[0]), _key_pem(server[1]), _pem(client[0]), _key_pem(client[1]))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(files, contents):
            path.unlink(missing_ok=True)  # the mode of a file that is there would stay as it is
            mode = 0o600 if path.suffix == ".key" else 0o644
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
                file.write(content)
    except OSError as error:
        raise _unusable(folder, error) from error
    return files


def _unusable(folder: Path, error: OSError) -> InvalidValueError:
    where = f" with {error.filename}" if error.filename and Path(error.filename) != folder else ""
    return InvalidValueError(
        f"Expected a folder to write certificates to, found that {folder} is none{where}: {error.strerror or error}; "
        "choose another one, or clear what is in the way"
    )


class _Authority:
    """Signs certificates, as long as it is in memory."""

    def __init__(self, validity: datetime.timedelta) -> None:
        self._now = datetime.datetime.now(datetime.timezone.utc)
        self._validity = validity
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("fedstack test authority")
        self.certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def issue(
        self, name: str, usage: x509.ObjectIdentifier, alternatives: x509.SubjectAlternativeName | None
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """Returns a new certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._builder(_name(name), key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self._key, hashes.SHA256()), key

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        public = key.public_key()
        # Verifiers that go by RFC 5280 to the letter, as Python's does from 3.13 on, want both identifiers.
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _CLOCKS_DIFFER_BY)
            .not_valid_after(self._now + self._validity)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(authority, critical=False)
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        encoded = name.encode("idna").decode("ascii")
    except UnicodeError:
        encoded = ""
    if len(encoded) > _MAX_NAME or not _HOST_NAME.fullmatch(encoded):
        raise InvalidValueError(
            f"Expected a host name or an IP address, found {name!r}; give it as clients will dial it, without a port"
        )
    return x509.DNSName(encoded)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
