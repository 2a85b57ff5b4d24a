"""Configures TLS where gRPC does not do it: for streams, and to find out why a server cannot be reached."""

import ssl

from fedstack.transport.grpc.credential_files import load_pair
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials


def client_context(credentials: ClientCredentials) -> ssl.SSLContext:
    """Returns the configuration for dialing with TLS.

    Raises:
      ssl.SSLError: If a certificate or the key cannot be read, or if they do not match.
    """
    context = ssl.create_default_context()
    if credentials.root_certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=credentials.root_certificates.decode("ascii", "replace"))
    if credentials.certificate is not None and credentials.private_key is not None:
        load_pair(context, credentials.certificate, credentials.private_key)
    return context


def server_context(credentials: ServerCredentials) -> ssl.SSLContext:
    """Returns the configuration for serving with TLS. Clients must present certificates if gRPC asks for them.

    Raises:
      ssl.SSLError: If a certificate or the key cannot be read, or if they do not match.
    """
    assert credentials.certificate is not None
    assert credentials.private_key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, credentials.certificate, credentials.private_key)
    if credentials.client_root_certificates is not None:
        context.load_verify_locations(cadata=credentials.client_root_certificates.decode("ascii", "replace"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context
