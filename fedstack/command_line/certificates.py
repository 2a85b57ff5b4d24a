"""Creates test certificates for TLS: one for a certificate authority, one for a server and one for a client.

The certificates are for tests and first steps. The authority's private key is discarded, so the authority can never
sign further certificates.
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
    raise ImportError('Creating certificates requires cryptography; run: pip install "fedstack[certs]"') from error

DEFAULT_NAMES = ("localhost", "127.0.0.1", "::1")
MAX_DAYS = 3650
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.IGNORECASE)
_MAX_NAME = 253
_CLOCKS_DIFFER_BY = datetime.timedelta(hours=1)
# One argument per key usage: only signing certificates and signing revocation lists are enabled.
_SIGNS_CERTIFICATES = x509.KeyUsage(*[False] * 5, *[True] * 2, *[False] * 2)
_CRITICAL = (ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE)


class CertificateFiles(NamedTuple):
    """The paths of the certificate and key files, which are in PEM format.

    Attributes:
      ca: The authority's certificate, with which clients verify the server and the server verifies its clients.
      server_cert: The server's certificate, which is valid for the requested names and addresses.
      server_key: The server's private key.
      client_cert: The client's certificate.
      client_key: The client's private key.
    """

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path

    @classmethod
    def in_folder(cls, folder: Path) -> "CertificateFiles":
        """Returns the files' paths in `folder`, whether or not the files exist."""
        return cls(*(folder / name for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")))


def make_test_certificates(
    folder: Path, names: Sequence[str] = DEFAULT_NAMES, *, days: int = 30, force: bool = False
) -> CertificateFiles:
    """Creates certificates for an authority, a server and a client, and writes them to `folder` with their keys.

    The private key of the authority is not written to a file.

    Args:
      folder: The folder to write to. It is created if it does not exist.
      names: The host names and IP addresses that clients will use to dial the server.
      days: The number of days for which the certificates are valid.
      force: Whether to overwrite existing files.

    Returns:
      The paths of the files.

    Raises:
      FileExistsError: If any of the files exists and `force` is false. Nothing is written in this case.
      InvalidValueError: If a name is not a valid host name or IP address, `days` is out of range, or the folder cannot
        be written to.
    """
    if not 0 <= days <= MAX_DAYS:
        raise InvalidValueError(f"Expected days to be between 0 and {MAX_DAYS}, found {days}")
    files = CertificateFiles.in_folder(folder)
    try:
        there = [path.name for path in files if os.path.lexists(path)]
    except OSError as error:
        raise _unusable(folder, error) from error
    if there and not force:
        raise FileExistsError(
            f"Expected a folder without certificates, found {', '.join(there)} in {folder}; choose another folder, or "
            "overwrite the files with --force"
        )
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    contents = _contents(alternatives, datetime.timedelta(days=days))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(files, contents):
            path.unlink(missing_ok=True)  # opening an existing file would keep its mode
            mode = 0o600 if path.suffix == ".key" else 0o644
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
                file.write(content)
    except OSError as error:
        raise _unusable(folder, error) from error
    return files


def _unusable(folder: Path, error: OSError) -> InvalidValueError:
    where = f" ({error.filename})" if error.filename and Path(error.filename) != folder else ""
    return InvalidValueError(
        f"Cannot write certificates to {folder}{where}: {error.strerror or error}; choose another folder"
    )


def _contents(alternatives: x509.SubjectAlternativeName, validity: datetime.timedelta) -> Sequence[bytes]:
    """Returns the contents of the files, in the order of the fields of `CertificateFiles`."""
    now = datetime.datetime.now(datetime.timezone.utc)
    ca_key, server_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    issuer = _name("fedstack test authority")
    # Verifiers that follow RFC 5280 strictly, such as Python 3.13 and later, require both key identifiers.
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
            f"Expected a host name or an IP address, found {name!r}; use the name that clients will dial, without a "
            "port"
        )
    return x509.DNSName(encoded)
