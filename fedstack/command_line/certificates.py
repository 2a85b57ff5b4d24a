"""Makes certificates to try TLS with: a certificate authority, a server and a client.

They are for tests and first steps. The authority's key is thrown away, so that no more can be signed with it.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedstack.errors import InvalidValueError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID
except ModuleNotFoundError as error:
    raise ImportError('making certificates needs cryptography: pip install "fedstack[certs]"') from error

DEFAULT_NAMES = ("localhost", "127.0.0.1", "::1")
MAX_DAYS = 3650
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.IGNORECASE)
_MAX_NAME = 253
_CLOCKS_DIFFER_BY = datetime.timedelta(hours=1)
# Of all key usages, in their order: signing certificates and revocation lists.
_SIGNS_CERTIFICATES = x509.KeyUsage(*[False] * 5, *[True] * 2, *[False] * 2)
_CRITICAL = (ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE)


class CertificateFiles(NamedTuple):
    """The files of certificates and keys, in PEM.

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
        return cls(*(folder / name for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")))


def make_test_certificates(
    folder: Path, names: Sequence[str] = DEFAULT_NAMES, *, days: int = 30, force: bool = False
) -> CertificateFiles:
    """Makes an authority, a server's and a client's certificate, and writes them with their keys into `folder`.

    Args:
      folder: The folder, which is created if needed.
      names: The names and IP addresses under which clients will dial the server.
      days: How long the certificates are valid.
      force: Whether to overwrite existing files.

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
            "overwrite them with --force"
        )
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    contents = _contents(alternatives, datetime.timedelta(days=days))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(files, contents):
            path.unlink(missing_ok=True)  # an existing file would keep its mode
            mode = 0o600 if path.suffix == ".key" else 0o644
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
                file.write(content)
    except OSError as error:
        raise _unusable(folder, error) from error
    return files


def _unusable(folder: Path, error: OSError) -> InvalidValueError:
    where = f" with {error.filename}" if error.filename and Path(error.filename) != folder else ""
    return InvalidValueError(
        f"Cannot write certificates to {folder}{where}: {error.strerror or error}; "
        "choose another one, or remove the obstacle"
    )


def _contents(alternatives: x509.SubjectAlternativeName, validity: datetime.timedelta) -> Sequence[bytes]:
    """Returns the contents of the files, in their order."""
    now = datetime.datetime.now(datetime.timezone.utc)
    ca_key, server_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    issuer = _name("fedstack test authority")
    # Strict verifiers of RFC 5280, such as Python's from 3.13 on, require both identifiers.
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())

    def signed(subject: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> bytes:
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        first, last = now - _CLOCKS_DIFFER_BY, now + validity
        serial_number = x509.random_serial_number()
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), serial_number, first, last)
        for extension in (*extensions, own, signer):
            builder = builder.add_extension(extension, critical=extension.oid in _CRITICAL)
        return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    no_authority = x509.BasicConstraints(ca=False, path_length=None)
    for_server, for_client = (
        x509.ExtendedKeyUsage([usage]) for usage in (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    )
    return (
        signed(issuer, ca_key, x509.BasicConstraints(ca=True, path_length=0), _SIGNS_CERTIFICATES),
        signed(_name("fedstack test server"), server_key, no_authority, for_server, alternatives),
        _pem(server_key),
        signed(_name("fedstack test client"), client_key, no_authority, for_client),
        _pem(client_key),
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


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
