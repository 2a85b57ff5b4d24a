"""Says what is wrong with certificates and keys, which gRPC tells late or not at all."""

import contextlib
import datetime
import ssl
import tempfile
from pathlib import Path


def why_unusable(certificate: bytes | None, private_key: bytes | None, roots: bytes | None) -> str | None:
    """Returns what is wrong with a certificate and its key, or with authorities, all in PEM; `None` if nothing is.

    Python's TLS reads the first two from files only, so they are in a folder of this user's for a moment.
    """
    try:
        if certificate is not None and private_key is not None:
            load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, private_key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return "Expected a certificate and its own key, found the key of another certificate"
        return "Expected a certificate and a key in PEM, the key without a password, found others"
    try:
        if roots is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=roots.decode("ascii", "replace"))
    except ssl.SSLError:
        return "Expected certificates of authorities in PEM, found others"
    return None


def load_pair(context: ssl.SSLContext, certificate: bytes, private_key: bytes) -> None:
    """Gives a context a certificate to show.

    Raises:
      ssl.SSLError: If they cannot be read, or do not fit each other.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        for path, content in zip(paths, (certificate, private_key)):
            path.write_bytes(content)
        # Without a password at hand, Python would ask for one at the terminal.
        context.load_cert_chain(*paths, password="-")


def why_not_valid(certificates: bytes, now: datetime.datetime | None = None) -> str | None:
    """Returns why a certificate cannot be used now: TLS tells that to the other side only.

    Args:
      certificates: The certificate in PEM, and those that lead to its authority.
      now: The time, with its zone; that of the clock by default.

    Returns:
      A few words on the first of them that is not valid, as in "it expired on 2026-01-31 12:00 UTC"; `None` if all are,
      if they cannot be read, or without the extra `certs`.
    """
    for position, fault in enumerate(_faults(certificates, now)):
        if fault is not None:
            return f"{'it' if position == 0 else 'one of those that lead to its authority'} {fault}"
    return None


def why_no_authority(certificates: bytes, now: datetime.datetime | None = None) -> str | None:
    """Returns why none of several certificates of authorities can be used now; `None` if one can."""
    faults = _faults(certificates, now)
    return f"it {faults[0]}" if faults and None not in faults else None


def _faults(certificates: bytes, now: datetime.datetime | None) -> list[str | None]:
    """Returns what is wrong with the dates of each certificate."""
    now = now or datetime.datetime.now(datetime.timezone.utc)
    faults: list[str | None] = []
    with contextlib.suppress(ModuleNotFoundError, ValueError):  # where one cannot be read, its user says so
        from cryptography import x509

        for certificate in x509.load_pem_x509_certificates(certificates):
            begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            if now > end:
                faults.append(f"expired on {end:%Y-%m-%d %H:%M} UTC")
            else:
                faults.append(f"is not valid before {begin:%Y-%m-%d %H:%M} UTC" if now < begin else None)
    return faults
