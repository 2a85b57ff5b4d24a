"""Opens channels, and has in one place the options that the two sides of a connection must agree on.

gRPC pings to find dead connections, and drops peers that ping too often. So clients (left) must stay within the limits
of servers (right):

| client | server |
| --- | --- |
| pings every 30 s, waits 20 s for the answer | allows a ping every 10 s, and never counts earlier ones |
| pings without calls | permits it |
| closes a connection after 240 s without a call | does so after an hour |
| at most two pings while it sends nothing (gRPC's default) | |

The last row is for servers of other origin, which hang up at the third: in a long call the client only listens. Our own
servers also send heartbeats. Servers ping as clients do, to notice dead clients.
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

# Of two options of the same name, gRPC takes the first.
Options: TypeAlias = tuple[tuple[str, int | str], ...]

KEEPALIVE_SECONDS = 30
KEEPALIVE_TIMEOUT_SECONDS = 20
MIN_PING_INTERVAL_SECONDS = 10
CLIENT_IDLE_SECONDS = 240
MAX_METADATA_BYTES = 64 * 1024
_FIRST_RECONNECT_SECONDS = 0.1
_LONGEST_RECONNECT_SECONDS = 5
_MAX_PENDING_REQUESTS = 100_000

# A bit for each compression algorithm, the first for none. gRPC rejects messages with any other algorithm before it
# decompresses them: a megabyte may become a gigabyte.
COMPRESSION = "grpc.compression_enabled_algorithms_bitset"
NO_COMPRESSION = 1
ANY_COMPRESSION = 0b111

_BOTH: Options = (
    (COMPRESSION, NO_COMPRESSION),
    # Sizes are limited where their cost is known: by frames, packers and services.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
)

CLIENT_OPTIONS: Options = (
    *_BOTH,
    # Shorter than the servers' limit: a call that starts just when a server closes an idle connection may be lost. A
    # call that starts when the client closes it is not.
    ("grpc.client_idle_timeout_ms", CLIENT_IDLE_SECONDS * 1000),
    # gRPC's default goes up to two minutes: too long for a server that has only restarted.
    ("grpc.initial_reconnect_backoff_ms", int(_FIRST_RECONNECT_SECONDS * 1000)),
    ("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_SECONDS * 1000),
    # Otherwise channels to one address share a connection and its failures: a new channel starts with an old failure.
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: Options = (
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_SECONDS * 1000),
    ("grpc.http2.max_ping_strikes", 0),
    # By default gRPC rejects calls at random once 1000 wait. Servers have limits of their own, with clear errors.
    ("grpc.server.max_pending_requests", _MAX_PENDING_REQUESTS),
    ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_REQUESTS),
    # Otherwise two servers may share a port, and each gets some of the calls.
    ("grpc.so_reuseport", 0),
)


class Channel(Protocol):
    """The part of `grpc.Channel` that fedstack uses, for annotations without importing gRPC."""

    def unary_unary(self, method: str) -> object:
        """Returns a callable for a method with one request and one response."""
        ...

    def stream_unary(self, method: str) -> object:
        """Returns a callable for a method with a stream of requests and one response."""
        ...

    def stream_stream(self, method: str) -> object:
        """Returns a callable for a method with a stream of requests and one of responses."""
        ...

    def subscribe(self, callback: Callable[[Any], None], try_to_connect: bool | None = False) -> None:
        """Calls back with the state of the channel now and after each change, and may ask it to dial."""
        ...

    def unsubscribe(self, callback: Callable[[Any], None]) -> None:
        """Stops calling back."""
        ...


def is_channel(place: object) -> TypeGuard[Channel]:
    """Returns whether a target that a user has given is a channel, without importing gRPC."""
    return hasattr(place, "unary_unary")


def open_channel(
    target: Target,
    credentials: ClientCredentials | None = None,
    *,
    allow_plaintext_token: bool = False,
    plaintext_advice: str = "let others read the token with allow_plaintext_token=True",
    options: Options = (),
) -> "grpc.aio.Channel":
    """Opens a channel on the running event loop. It dials on first use.

    The token is not part of the channel: send `credentials.metadata` with each call. gRPC's own way of sending tokens
    requires TLS, which a socket or the loopback device does not need.

    Args:
      target: The server to dial.
      credentials: The client's credentials; none for plaintext without a token.
      allow_plaintext_token: Whether a token may leave this machine without TLS, readable for everyone on the way.
      plaintext_advice: What the error for such a token suggests besides TLS.
      options: More options for gRPC, which override those here.

    Raises:
      InvalidValueError: If a token or a certificate would have no use, or others could read a token.
    """
    from fedstack.transport.grpc.grpc_module import grpc  # a local run needs none

    advice = None if allow_plaintext_token else plaintext_advice
    secure, every_option = _to_dial(target, credentials, advice, options)
    if secure is None:
        return grpc.aio.insecure_channel(target.address, every_option)
    return grpc.aio.secure_channel(target.address, secure, every_option)


def open_blocking_channel(
    target: Target, credentials: ClientCredentials, *, plaintext_advice: str, options: Options = ()
) -> "grpc.Channel":
    """Opens a channel whose calls block their threads; see `open_channel`."""
    from fedstack.transport.grpc.grpc_module import grpc  # a local run needs none

    secure, every_option = _to_dial(target, credentials, plaintext_advice, options)
    if secure is None:
        return grpc.insecure_channel(target.address, every_option)
    return grpc.secure_channel(target.address, secure, every_option)


def _to_dial(
    target: Target, credentials: ClientCredentials | None, plaintext_advice: str | None, options: Options
) -> "tuple[grpc.ChannelCredentials | None, list[tuple[str, int | str]]]":
    """Returns gRPC's credentials for a target, `None` for plaintext, and all options."""
    fork_guard.begin()
    credentials = credentials or ClientCredentials()
    secure = credentials.uses_tls if target.secure is None else target.secure
    if secure:
        check_certificates(credentials, f"for dialling {target}")
    else:
        _check_plaintext(target, credentials, plaintext_advice)
    every_option = [*options, *CLIENT_OPTIONS]
    if target.is_local:
        every_option.append(("grpc.enable_http_proxy", 0))  # no proxy reaches this machine's loopback device
    if not secure:
        return None, every_option
    if credentials.server_name is not None:
        every_option.append(("grpc.ssl_target_name_override", credentials.server_name))
    return channel_credentials(credentials), every_option


def check_certificates(credentials: ClientCredentials, where: str) -> None:
    """Checks certificates early: gRPC finds mistakes when it dials, and does not report them.

    Raises:
      InvalidValueError: If certificates or keys cannot be read, or do not match; the message ends in `where`.
    """
    reason = why_unusable(credentials.certificate, credentials.private_key, credentials.root_certificates)
    if reason is not None:
        raise InvalidValueError(f"{reason}; {where}")


def _check_plaintext(target: Target, credentials: ClientCredentials, advice: str | None) -> None:
    if credentials.uses_tls:
        raise InvalidValueError(
            f"Expected a target with TLS for {credentials!r}, found plaintext for {target}; dial grpcs://{target}, or "
            "leave the certificates out"
        )
    if credentials.token is not None and not target.is_local and advice is not None:
        raise InvalidValueError(
            f"Expected TLS for a token that leaves this machine, found plaintext for {target}; dial "
            f"grpcs://{target}, or {advice}"
        )
