"""Opens channels, and defines the channel options on which clients and servers must agree.

gRPC sends pings to detect dead connections, and drops peers that ping too often. Clients must therefore stay within the
limits of servers:

| client | server |
| --- | --- |
| pings every 30 s, waits 20 s for the response | allows a ping every 10 s, does not penalize more frequent pings |
| pings even when no call is running | permits such pings |
| closes a connection after 240 s without a call | closes a connection after an hour without a call |
| sends at most two pings while it sends no data (gRPC's default) | |

The last row matters for gRPC servers other than fedstack's: during a long call, a client sends no data, and such a
server closes the connection at the third ping without data. fedstack's servers also send heartbeats. To detect dead
clients, they send pings at the same interval as clients.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

from fedstack.errors import InvalidValueError
from fedstack.transport.grpc.credential_files import why_unusable
from fedstack.transport.grpc.credentials import ClientCredentials, channel_credentials
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.wire.addresses import Target

if TYPE_CHECKING:
    import grpc
    import grpc.aio

# If an option occurs twice, gRPC uses the first occurrence.
Options: TypeAlias = tuple[tuple[str, int | str], ...]

KEEPALIVE_SECONDS = 30
KEEPALIVE_TIMEOUT_SECONDS = 20
MIN_PING_INTERVAL_SECONDS = 10
CLIENT_IDLE_SECONDS = 240
MAX_METADATA_BYTES = 64 * 1024
_FIRST_RECONNECT_SECONDS = 0.1
_LONGEST_RECONNECT_SECONDS = 5
_MAX_PENDING_REQUESTS = 100_000

# One bit per compression algorithm; the lowest bit stands for no compression. gRPC rejects messages with any other
# algorithm before decompressing them, since a megabyte may expand to a gigabyte.
COMPRESSION = "grpc.compression_enabled_algorithms_bitset"
NO_COMPRESSION = 1
ANY_COMPRESSION = 0b111

_BOTH: Options = (
    (COMPRESSION, NO_COMPRESSION),
    # gRPC does not limit message sizes. Frames, packers and services do, because they know the cost of a message.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
)

CLIENT_OPTIONS: Options = (
    *_BOTH,
    # Shorter than the server's limit, so that the client closes idle connections. A call that starts while the server
    # closes the connection may be lost; a call that starts while the client closes it is not.
    ("grpc.client_idle_timeout_ms", CLIENT_IDLE_SECONDS * 1000),
    # gRPC's default delay grows to two minutes, which is too long for a server that has just restarted.
    ("grpc.initial_reconnect_backoff_ms", int(_FIRST_RECONNECT_SECONDS * 1000)),
    ("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_SECONDS * 1000),
    # Otherwise channels to the same address share a connection, and a new channel inherits the failures of an old one.
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: Options = (
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_SECONDS * 1000),
    ("grpc.http2.max_ping_strikes", 0),
    # By default, gRPC rejects calls at random once 1000 calls are waiting. fedstack's own limits raise clear errors.
    ("grpc.server.max_pending_requests", _MAX_PENDING_REQUESTS),
    ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_REQUESTS),
    # Otherwise two servers could listen on the same port, and each would receive some of the calls.
    ("grpc.so_reuseport", 0),
)


class Channel(Protocol):
    """The methods of `grpc.Channel` that fedstack uses, for type annotations without importing gRPC."""

    def unary_unary(self, method: str) -> object:
        """Returns a callable for a method with one request and one response."""
        ...

    def stream_unary(self, method: str) -> object:
        """Returns a callable for a method with a stream of requests and one response."""
        ...

    def stream_stream(self, method: str) -> object:
        """Returns a callable for a method with a stream of requests and a stream of responses."""
        ...

    def subscribe(self, callback: Callable[[Any], None], try_to_connect: bool | None = False) -> None:
        """Calls `callback` with the current state and after each change; dials if `try_to_connect` is true."""
        ...

    def unsubscribe(self, callback: Callable[[Any], None]) -> None:
        """Stops calling `callback`."""
        ...


def is_channel(place: object) -> TypeGuard[Channel]:
    """Returns whether a target that a user passed is a channel. This check does not import gRPC."""
    return hasattr(place, "unary_unary")


def open_channel(
    target: Target,
    credentials: ClientCredentials | None = None,
    *,
    allow_plaintext_token: bool = False,
    plaintext_advice: str = "allow sending the token in plaintext with allow_plaintext_token=True",
    options: Options = (),
) -> "grpc.aio.Channel":
    """Opens a channel on the running event loop. The channel dials on first use.

    The channel does not send the token: pass `credentials.metadata` with each call. gRPC's own call credentials are not
    used, because they require TLS, which connections over a Unix socket or the loopback device do not need.

    Args:
      target: The server to dial.
      credentials: The client's credentials; `None` for plaintext without a token.
      allow_plaintext_token: Whether a token may be sent to another machine without TLS, where it can be intercepted.
      plaintext_advice: The alternative to TLS that the error suggests if a token would be sent in plaintext.
      options: Additional gRPC options, which override the defaults of this module.

    Raises:
      InvalidValueError: If certificates are given for a plaintext target or cannot be used, or if a token would be sent
        to another machine in plaintext.
    """
    from fedstack.transport.grpc.grpc_module import grpc  # local runs must not import gRPC

    advice = None if allow_plaintext_token else plaintext_advice
    secure, every_option = _to_dial(target, credentials, advice, options)
    if secure is None:
        return grpc.aio.insecure_channel(target.address, every_option)
    return grpc.aio.secure_channel(target.address, secure, every_option)


def open_blocking_channel(
    target: Target, credentials: ClientCredentials, *, plaintext_advice: str, options: Options = ()
) -> "grpc.Channel":
    """Opens a channel whose calls block the calling thread; see `open_channel`."""
    from fedstack.transport.grpc.grpc_module import grpc  # local runs must not import gRPC

    secure, every_option = _to_dial(target, credentials, plaintext_advice, options)
    if secure is None:
        return grpc.insecure_channel(target.address, every_option)
    return grpc.secure_channel(target.address, secure, every_option)


def _to_dial(
    target: Target, credentials: ClientCredentials | None, plaintext_advice: str | None, options: Options
) -> "tuple[grpc.ChannelCredentials | None, list[tuple[str, int | str]]]":
    """Returns gRPC's credentials for a target, or `None` for plaintext, and all channel options."""
    fork_guard.begin()
    credentials = credentials or ClientCredentials()
    secure = credentials.secures(target)
    if secure:
        check_certificates(credentials, f"for dialing {target}")
    else:
        _check_plaintext(target, credentials, plaintext_advice)
    every_option = [*options, *CLIENT_OPTIONS]
    if target.is_local:
        every_option.append(("grpc.enable_http_proxy", 0))  # a proxy cannot reach this machine's loopback device
    if not secure:
        return None, every_option
    if credentials.server_name is not None:
        every_option.append(("grpc.ssl_target_name_override", credentials.server_name))
    return channel_credentials(credentials), every_option


def check_certificates(credentials: ClientCredentials, where: str) -> None:
    """Checks that certificates and keys can be used, since gRPC would fail only when it dials, without a clear error.

    Args:
      credentials: The credentials with the certificates and keys.
      where: The text that ends the error message.

    Raises:
      InvalidValueError: If certificates or keys cannot be read, or do not match.
    """
    reason = why_unusable(credentials.certificate, credentials.private_key, credentials.root_certificates)
    if reason is not None:
        raise InvalidValueError(f"{reason}; {where}")


def _check_plaintext(target: Target, credentials: ClientCredentials, advice: str | None) -> None:
    if credentials.uses_tls:
        raise InvalidValueError(
            f"Expected a TLS target for {credentials!r}, found the plaintext target {target}; dial "
            f"grpcs://{target}, or remove the certificates"
        )
    if credentials.token is not None and not target.is_local and advice is not None:
        raise InvalidValueError(
            f"Expected a TLS target for sending a token to another machine, found the plaintext target {target}; dial "
            f"grpcs://{target}, or {advice}"
        )
