"""Opens channels, and keeps the options that the two sides of a connection must agree on in one place.

gRPC pings to find dead connections, and drops peers that ping more often than it likes. So what clients do (left) must
be within what servers permit (right):

| client | server |
| --- | --- |
| pings every 30 s, waits 20 s for the answer | takes a ping every 10 s, and never counts those that come too early |
| pings without calls | permits it |
| closes a connection after 240 s without a call | does so after an hour |
| at most two pings while it sends nothing (gRPC's default) | |

The last row is for servers of other origin, which hang up at the third: in a long call the client only listens. From
our own, heartbeats tell more. Servers ping as clients do, to notice clients that are gone.
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

# A bit for each way of compressing, the first for none. gRPC refuses what is compressed in another way, and does not
# unfold it: a megabyte may be a gigabyte then.
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
    # Shorter than what servers allow: a call that is made just when a server closes an idle connection may be lost. One
    # that is made when the client does is not.
    ("grpc.client_idle_timeout_ms", CLIENT_IDLE_SECONDS * 1000),
    # gRPC's own goes up to two minutes: too long for a server that was only started anew.
    ("grpc.initial_reconnect_backoff_ms", int(_FIRST_RECONNECT_SECONDS * 1000)),
    ("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_SECONDS * 1000),
    # Else channels to one address share a connection, and what is wrong with it: a new one begins with an old failure.
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: Options = (
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_SECONDS * 1000),
    ("grpc.http2.max_ping_strikes", 0),
    # gRPC refuses calls at random from 1000 that wait. Servers have limits of their own, and say so.
    ("grpc.server.max_pending_requests", _MAX_PENDING_REQUESTS),
    ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_REQUESTS),
    # Else two servers may have the same port, and each gets some of the calls.
    ("grpc.so_reuseport", 0),
)


class Channel(Protocol):
    """What is used of a `grpc.Channel`, so that others can speak of one without importing gRPC."""

    def unary_unary(self, method: str) -> object:
        """Returns what calls a method with one message there and one back."""
        ...

    def stream_unary(self, method: str) -> object:
        """Returns what calls a method with a stream there and one message back."""
        ...

    def stream_stream(self, method: str) -> object:
        """Returns what calls a method with a stream there and one back."""
        ...

    def subscribe(self, callback: Callable[[Any], None], try_to_connect: bool | None = False) -> None:
        """Calls back with the state of the channel as it is and whenever it changes, and may ask it to dial."""
        ...

    def unsubscribe(self, callback: Callable[[Any], None]) -> None:
        """Calls back no more."""
        ...


def is_channel(place: object) -> TypeGuard[Channel]:
    """Returns whether what a user names as a place to run is a channel, without importing gRPC."""
    return hasattr(place, "unary_unary")


def open_channel(
    target: Target,
    credentials: ClientCredentials | None = None,
    *,
    allow_plaintext_token: bool = False,
    plaintext_advice: str = "let others read the token with allow_plaintext_token=True",
    options: Options = (),
) -> "grpc.aio.Channel":
    """Opens a channel on the running event loop. It dials when it is first used.

    The token is not part of the channel: send `credentials.metadata` with each call. gRPC's own way of doing so wants
    TLS, and a socket or the loopback device needs none.

    Args:
      target: Whom to dial.
      credentials: What to prove oneself with; none for plaintext without a token.
      allow_plaintext_token: Whether a token may leave this machine without TLS, for everyone on the way to read.
      plaintext_advice: What else to do, beside dialling with TLS, about a token that would.
      options: More options for gRPC, which count before those here.

    Raises:
      InvalidValueError: If a token or a certificate would be of no use, or be seen by others.
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
    """Opens a channel whose calls block the threads that make them; see `open_channel`."""
    from fedstack.transport.grpc.grpc_module import grpc  # a local run needs none

    secure, every_option = _to_dial(target, credentials, plaintext_advice, options)
    if secure is None:
        return grpc.insecure_channel(target.address, every_option)
    return grpc.secure_channel(target.address, secure, every_option)


def _to_dial(
    target: Target, credentials: ClientCredentials | None, plaintext_advice: str | None, options: Options
) -> "tuple[grpc.ChannelCredentials | None, list[tuple[str, int | str]]]":
    """Returns what to dial with: gRPC's credentials, `None` for plaintext, and all options."""
    fork_guard.begin()
    credentials = credentials or ClientCredentials()
    secure = credentials.uses_tls if target.secure is None else target.secure
    if secure:
        check_certificates(credentials, f"for dialling {target}")
    else:
        _check_plaintext(target, credentials, plaintext_advice)
    every_option = [*options, *CLIENT_OPTIONS]
    if target.is_local:
        every_option.append(("grpc.enable_http_proxy", 0))  # no proxy can reach this machine's own loopback device
    if not secure:
        return None, every_option
    if credentials.server_name is not None:
        every_option.append(("grpc.ssl_target_name_override", credentials.server_name))
    return channel_credentials(credentials), every_option


def check_certificates(credentials: ClientCredentials, where: str) -> None:
    """Checks here what gRPC would find out when it dials, and not tell.

    Raises:
      InvalidValueError: If certificates or keys cannot be read, or do not fit each other; the message ends in `where`.
    """
    reason = why_unusable(credentials.certificate, credentials.private_key, credentials.root_certificates)
    if reason is not None:
        raise InvalidValueError(f"{reason}; {where}")


def _check_plaintext(target: Target, credentials: ClientCredentials, advice: str | None) -> None:
    if credentials.uses_tls:
        raise InvalidValueError(
            f"Expected a target with TLS for {credentials!r}, found plaintext asked for {target}; dial "
            f"grpcs://{target}, or leave the certificates out"
        )
    if credentials.token is not None and not target.is_local and advice is not None:
        raise InvalidValueError(
            f"Expected TLS where a token leaves this machine, found plaintext for {target}; dial grpcs://{target}, or "
            f"{advice}"
        )
