"""Helpers for gRPC calls: reading and writing streams, limiting calls, and converting statuses to errors."""

import asyncio
import contextlib
import contextvars
import itertools
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from fedstack.errors import (
    AuthenticationError,
    ClosedError,
    DeadlineExceededError,
    FedstackError,
    WorkerUnavailableError,
)
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.wire.connection_errors import ARGUMENTS, NO_ANSWER, Words
from fedstack.transport.wire.frames import parse_frame
from fedstack.transport.wire.heartbeat import held_up, silent, suspended
from fedstack.transport.wire.parcels import Piece
from fedstack.transport.wire.status import DETAILS_KEY, error_from_status

_HEALTH = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
_NOT_SERVING = b"\x08\x02"  # HealthCheckResponse(status=NOT_SERVING)
_SERVICE_TAG = 1 << 3 | 2  # field 1, wire type 2: a length, followed by that number of bytes
_ASK_SECONDS = 0.25
# gRPC's placeholder for the status details of a call that ends while a message is being sent. It is used until gRPC has
# read the status of the peer.
_MAKESHIFT = "Internal error from Core"
_STATUS_SECONDS = 0.25
_LOOK_SECONDS = 0.005


async def send(call: Any, frames: Iterable[bytes]) -> None:
    """Writes all frames to a call. Stops without an error if the call ends early: the status states the reason."""
    try:
        for frame in frames:
            await call.write(frame)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return
    except BaseException:
        call.cancel()
        raise


async def finish(call: Any, frames: Iterable[bytes]) -> bytes:
    """Writes all frames to a call, and returns the response."""
    try:
        await send(call, frames)
        return await call
    finally:
        call.cancel()


@contextlib.asynccontextmanager
async def status_of_peer(call: Any) -> AsyncGenerator[None, None]:
    """Raises the peer's own status if the peer ends the call during the block.

    If a message is being sent at that time, sending it fails as well, with a placeholder status that gRPC generates.
    The placeholder may be reported before the peer's status, or may replace the peer's status afterwards.
    """
    noted: list[grpc.aio.AioRpcError] = []

    def note(_: object) -> None:
        failure = _failure_of(call)
        try:
            failure.send(None)  # the status is already known, so the coroutine returns without waiting
        except StopIteration as found:
            noted.append(found.value)
        finally:
            failure.close()

    call.add_done_callback(note)
    try:
        yield
    except grpc.aio.AioRpcError as failure:
        raise await _status_after(failure, call, noted) from None
    finally:
        noted.clear()  # breaks a reference cycle: the frames of the error refer to the call, which refers to this list


async def _status_after(
    failure: grpc.aio.AioRpcError, call: Any, noted: Sequence[grpc.aio.AioRpcError]
) -> grpc.aio.AioRpcError:
    """Returns the peer's status of a failed call. gRPC may need a moment to read the status."""
    async for attempt in Deadline(_STATUS_SECONDS).attempts(itertools.repeat(_LOOK_SECONDS)):
        if attempt:
            failure = await _failure_of(call)
        if failure.details() != _MAKESHIFT:
            break
        if noted and noted[0].details() != _MAKESHIFT:
            return noted[0]
    return failure


async def _failure_of(call: Any) -> grpc.aio.AioRpcError:
    """Returns the gRPC error of a failed call."""
    metadata = await call.initial_metadata(), await call.trailing_metadata()
    return grpc.aio.AioRpcError(await call.code(), *metadata, await call.details())


async def raise_status(call: Any) -> None:
    """Raises the gRPC error of a call if the call has failed."""
    if await call.code() is not grpc.StatusCode.OK:
        raise await _failure_of(call)


async def failure_of_asking(connection: Connection) -> FedstackError | None:
    """Returns why a peer does not answer calls; `None` if it answers.

    The function makes a short call, because gRPC reports the reason only as the error of a call.
    """
    try:
        await connection.unary(_HEALTH, b"", _ASK_SECONDS)
    except DeadlineExceededError:
        return NO_ANSWER.error_at(connection.address)
    except (WorkerUnavailableError, AuthenticationError) as error:
        return error
    except FedstackError:
        return None
    return None


async def asks_health(connection: Connection, seconds: float | None, service: str = "") -> bool:
    """Calls the health service of a peer; see `Connection.check_alive`.

    Args:
      connection: The connection to the peer.
      seconds: The time limit in seconds; `None` for no limit.
      service: The full name of a service of the peer, of at most 127 bytes; by default the peer as a whole.

    Returns:
      Whether the health service answered without an error.
    """
    # The request has a single field, so it is encoded here: only servers may import the package with its class.
    name = service.encode()
    request = bytes([_SERVICE_TAG, len(name)]) + name if name else b""
    try:
        await connection.unary(_HEALTH, request, seconds)
    except (DeadlineExceededError, WorkerUnavailableError):
        raise
    except FedstackError:
        return False  # the peer answers but has no health service, so only gRPC's keepalive detects its loss
    return True


async def until_not_serving(messages: AsyncGenerator[bytes, None]) -> None:
    """Returns when a health service reports NOT_SERVING; see `Connection.until_draining`.

    Args:
      messages: The responses of the `Watch` method of the health service.
    """
    async with contextlib.aclosing(messages):
        try:
            async for message in messages:
                if message == _NOT_SERVING:
                    return
        except (DeadlineExceededError, WorkerUnavailableError):
            raise
        except FedstackError:  # the peer has no health service, or too many watchers
            pass
    await asyncio.Event().wait()


async def parsed(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[Piece, None]:
    """Yields the parsed frames of a stream, and closes the stream at the end."""
    async with contextlib.aclosing(frames):
        async for frame in frames:
            yield parse_frame(frame)


def error_of_call(failure: grpc.RpcError, address: str, words: Words = ARGUMENTS) -> Exception:
    """Returns the fedstack error for a failed gRPC call. The cause of the error is the peer's traceback, if any."""
    call = cast("grpc.aio.AioRpcError", failure)
    details = None
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            details = value
    return error_from_status(int(call.code().value[0]), call.details() or "", details, address, words)


class CallLimiter:
    """Limits the number of concurrent calls to a peer.

    A call may wait for its turn for any length of time while other calls are answered. A waiting call fails if no other
    call has been answered for as long as the waiting call's own time limit. Without this rule, many calls to a silent
    peer would fail one batch after another, each after its own timeout.

    Args:
      at_once: The maximum number of concurrent calls.
      clock: A function that returns the time in seconds.
    """

    def __init__(self, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._clock = clock
        self._answered = clock()

    def answered(self) -> None:
        """Records that the peer has answered a call."""
        self._answered = self._clock()

    @contextlib.asynccontextmanager
    async def turn(self, seconds: float, who: str) -> AsyncGenerator[None, None]:
        """Waits until a call may run, and counts the block as a running call.

        Args:
          seconds: The time limit of the call, which starts when the call may run.
          who: The name of the peer in error messages.

        Raises:
          DeadlineExceededError: If no other call has been answered for `seconds`.
        """
        if self._slots.locked():
            await self._wait(seconds, who)
        else:
            await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    async def _wait(self, seconds: float, who: str) -> None:
        begun = self._clock()
        while (left := max(begun, self._answered) + seconds - self._clock()) > 0:
            acquiring = asyncio.ensure_future(self._slots.acquire())
            try:
                await Deadline(left).wait(acquiring)
                return
            except asyncio.TimeoutError:
                if _has_got(acquiring):  # the turn came at the moment of the timeout
                    return
            except asyncio.CancelledError:
                if _has_got(acquiring):
                    self._slots.release()
                raise
        raise DeadlineExceededError(
            f"{who} answered none of the preceding calls within {seconds:g} seconds; check whether the "
            "server has stalled or the connection has been lost"
        )

    def __repr__(self) -> str:
        return f"<CallLimiter, {'all taken' if self._slots.locked() else 'some free'}>"


def _has_got(acquiring: "asyncio.Task[bool]") -> bool:
    return acquiring.done() and not acquiring.cancelled()


Metadata: TypeAlias = tuple[tuple[str, str], ...]


class BlockingCalls:
    """Makes blocking unary calls to a peer, on any thread except the thread of the transport's loop.

    The calls use their own channel instead of the transport's loop, because passing a small call to the loop and its
    response back takes three thread switches. Without this class, a blocking call of a method takes 1.3 to 1.4 times as
    long, even with 64 kB (`benchmarks --only methods`, the rows with one call at a time).

    Args:
      open_channel: A function that opens the channel. It is called when the channel is first needed.
    """

    def __init__(self, open_channel: Callable[[], grpc.Channel]) -> None:
        self._open_channel = open_channel
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Starts without a channel. Also called after a fork, since a child cannot use the channel of its parent."""
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._methods: dict[str, Any] = {}

    def call(self, path: str, request: bytes, seconds: float, metadata: Metadata, who: str) -> bytes:
        """Calls a method and returns the response.

        Args:
          path: The path of the method.
          request: The request message.
          seconds: The time limit of the call.
          metadata: The metadata of the call.
          who: The name of the peer in error messages.

        Raises:
          grpc.RpcError: If the call fails.
          DeadlineExceededError: If the peer does not answer in time.
          ClosedError: If this object is closed before or during the call.
        """
        fork_guard.check()
        method, begun = self._methods.get(path) or self._open(path, who), time.monotonic()
        try:
            return cast(bytes, method(request, timeout=seconds, metadata=metadata))
        except ValueError as error:  # raised by closed channels
            if not self._closed:
                raise
            raise _closed_error(who) from error
        except grpc.RpcError as failure:
            call = cast("grpc.Call", failure)
            is_of_peer = any(key == DETAILS_KEY for key, _ in call.trailing_metadata() or ())
            if is_of_peer or call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            late = time.monotonic() - begun - seconds
            raise suspended(late, who) if held_up(late, seconds) else silent(who, seconds) from None

    def _open(self, path: str, who: str) -> Any:
        """Returns a callable for a method. It is cached, since creating a callable takes as long as a call."""
        with self._lock:
            if self._closed:
                raise _closed_error(who)
            if self._channel is None:
                # gRPC keeps the context in which the first channel is created forever, so an empty context is used.
                self._channel = contextvars.Context().run(self._open_channel)
            method = self._methods[path] = cast(Any, self._channel).unary_unary(path)
            return method

    def close(self) -> None:
        """Closes the channel, which ends running calls. Idempotent."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
            self._methods.clear()
        if channel is not None:
            channel.close()

    def __repr__(self) -> str:
        return f"<BlockingCalls{' closed' if self._closed else ''}>"


def _closed_error(who: str) -> ClosedError:
    return ClosedError(f"The connection to {who} is closed; create a new client")
