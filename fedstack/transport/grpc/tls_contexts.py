"""Configures TLS where gRPC does not do it: for streams, and to find out why a server cannot be reached."""

import socket
import ssl

from fedstack.transport.grpc.credential_files import load_pair
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
from fedstack.transport.wire.addresses import Target


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


def valid_until(target: Target, credentials: ClientCredentials, seconds: float) -> float | None:
    """Returns when the certificate of a server ends, in seconds since 1970, by dialing the server once more.

    Args:
      target: The server.
      credentials: The credentials to dial with.
      seconds: The timeout of each step.

    Returns:
      The time; `None` if the server does not use TLS, is at a path of a socket, or cannot be asked.
    """
    if not credentials.secures(target) or target.socket_path:
        return None
    try:
        context = client_context(credentials)
        context.set_alpn_protocols(["h2"])
        name = credentials.server_name or target.host
        with (
            socket.create_connection((target.host, target.port), seconds) as connection,
            context.wrap_socket(connection, server_hostname=name) as secured,
        ):
            return float(ssl.cert_time_to_seconds(str((secured.getpeercert() or {})["notAfter"])))
    except (OSError, KeyError, ValueError):
        return None
