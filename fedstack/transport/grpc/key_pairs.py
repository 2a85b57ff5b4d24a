"""Says what is wrong with certificates and keys, which gRPC tells late or not at all."""

import ssl
import tempfile
from pathlib import Path


def why_no_pair(certificate: bytes, private_key: bytes) -> str | None:
    """Returns the reason why a certificate and a key are of no use together, or `None` if they look right.

    Python's TLS reads them from files only, so they are in a folder of this user's for a moment.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        load_pair(context, certificate, private_key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return "Expected a certificate and its own key, found the key of another certificate"
        return "Expected a certificate and a key in PEM, the key without a password, found that they cannot be read"
    return None


def why_no_roots(certificates: bytes) -> str | None:
    """Returns the reason why certificates of authorities are of no use, or `None` if they look right."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates.decode("ascii", "replace"))
    except ssl.SSLError:
        return "Expected certificates of authorities in PEM, found that they cannot be read"
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
