"""Says what is wrong with a server's certificates when gRPC has refused them, which it does without a reason."""

import ssl
import tempfile
from pathlib import Path

from fedstack.transport.credentials import ServerCredentials


def why_unusable(credentials: ServerCredentials) -> str | None:
    """Returns the reason why a server cannot use its certificates, or `None` if they look right.

    Python's TLS reads them from files only, so they are in a folder of this user's for a moment.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        certificate.write_bytes(credentials.certificate or b"")
        key.write_bytes(credentials.private_key or b"")
        try:
            # Without a password at hand, Python would ask for one at the terminal.
            context.load_cert_chain(certificate, key, password="-")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                return "Expected a certificate and its own key, found the key of another certificate"
            return "Expected a certificate and a key in PEM, the key without a password, found that they cannot be read"
    if credentials.client_root_certificates is not None:
        try:
            context.load_verify_locations(cadata=credentials.client_root_certificates.decode("ascii", "replace"))
        except ssl.SSLError:
            return "Expected certificates of the clients' authorities in PEM, found that they cannot be read"
    return None
