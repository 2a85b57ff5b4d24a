"""Makes calls of gRPC: reads and writes their streams, limits them, and turns their statuses into errors."""

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
from fedstack.transport.wire.heartbeat import held_up, silent
from fedstack.transport.wire.parcels import Piece
from fedstack.transport.wire.status import DETAILS_KEY, error_from_status

_HEALTH = "/grpc.health.v1.Health/Check"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
_NOT_SERVING = b"\x08\x02"  # HealthCheckResponse(status=NOT_SERVING)
_SERVICE_TAG = 1 << 3 | 2  # 2: a length and so many bytes
_ASK_SECONDS = 0.25
# The status details that gRPC makes up for a call that ends while a message is in flight, until it reads the peer's.
_MAKESHIFT = "Internal error from Core"
_STATUS_SECONDS = 0.25
_LOOK_SECONDS = 0.005


async def send(call: Any, frames: Iterable[bytes]) -> None:
    """Writes a stream to its end, or to the end of the call: the status tells what was wrong."""
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
    """Writes a stream to its end and returns the answer."""
    try:
        await send(call, frames)
        return await call
    finally:
        call.cancel()


@contextlib.asynccontextmanager
async def status_of_peer(call: Any) -> AsyncGenerator[None, None]:
    """Makes a stream that the peer has ended early fail with the peer's own status.

    A message that is in flight then fails, too, with a status that gRPC makes up. It may come before the peer's status,
    or after it and replace it.
    """
    noted: list[grpc.aio.AioRpcError] = []

    def note(_: object) -> None:
        failure = _failure_of(call)
        try:
            failure.send(None)  # the status is known, so this does not wait
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
        noted.clear()  # the error has frames, which refer to the call, which refers to this list


async def _status_after(
    failure: grpc.aio.AioRpcError, call: Any, noted: Sequence[grpc.aio.AioRpcError]
) -> grpc.aio.AioRpcError:
    """Returns what a peer says of a call that failed, which may take a moment to be there."""
    async for attempt in Deadline(_STATUS_SECONDS).attempts(itertools.repeat(_LOOK_SECONDS)):
        if attempt:
            failure = await _failure_of(call)
        if failure.details() != _MAKESHIFT:
            break
        if noted and noted[0].details() != _MAKESHIFT:
            return noted[0]
    return failure


async def _failure_of(call: Any) -> grpc.aio.AioRpcError:
    """Returns the error of a call that has failed."""
    metadata = await call.initial_metadata(), await call.trailing_metadata()
    return grpc.aio.AioRpcError(await call.code(), *metadata, await call.details())


async def raise_status(call: Any) -> None:
    """Raises the error of a call, if it has failed."""
    if await call.code() is not grpc.StatusCode.OK:
        raise await _failure_of(call)


async def failure_of_asking(connection: Connection) -> FedstackError | None:
    """Returns why an unready peer answers no call, which gRPC reports to calls only; `None` if it answers."""
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
    """Asks the health service of a peer; see `Connection.check_alive`.

    Args:
      connection: The way to the peer.
      seconds: How long it may take; `None` for any time.
      service: The full name of one of its services, of at most 127 letters; by default all of it is meant.
    """
    # The request has one field. Its generated class is for servers, which alone may import the package that has it.
    name = service.encode()
    request = bytes([_SERVICE_TAG, len(name)]) + name if name else b""
    try:
        await connection.unary(_HEALTH, request, seconds)
    except (DeadlineExceededError, WorkerUnavailableError):
        raise
    except FedstackError:
        return False  # the peer answers, and has no health service: gRPC's keep-alive has to suffice
    return True


async def until_not_serving(messages: AsyncGenerator[bytes, None]) -> None:
    """Watches a health service until it reports NOT_SERVING; see `until_draining`."""
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
    """Yields the content of a stream's frames, and closes the stream at the end."""
    async with contextlib.aclosing(frames):
        async for frame in frames:
            yield parse_frame(frame)


def error_of_call(failure: grpc.RpcError, address: str, words: Words = ARGUMENTS) -> Exception:
    """Returns the error that a failed call means; its cause is the peer's traceback, if there is one."""
    call = cast("grpc.aio.AioRpcError", failure)
    details = None
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            details = value
    return error_from_status(int(call.code().value[0]), call.details() or "", details, address, words)


class CallLimiter:
    """Limits the calls to one peer.

    Calls may queue for any time in total. But a waiting call gives up when no other call was answered for the time that
    it may take itself: otherwise many calls to a silent peer would fail group by group, each after its own timeout.

    Args:
      at_once: The most calls at a time.
        clock: Returns the time in seconds.
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
        """Waits for a turn and holds it during the block.

        Args:
          seconds: How long the call may take once it has its turn.
          who: The peer, for error messages.

        Raises:
          DeadlineExceededError: If no call was answered for that long.
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
                if _has_got(acquiring):  # in the step in which the time ran out
                    return
            except asyncio.CancelledError:
                if _has_got(acquiring):
                    self._slots.release()
                raise
        raise DeadlineExceededError(
            f"{who} answered none of the calls before this one within {seconds:g} seconds; it hangs, or the "
            "connection to it is cut"
        )

    def __repr__(self) -> str:
        return f"<CallLimiter, {'all taken' if self._slots.locked() else 'some free'}>"


def _has_got(acquiring: "asyncio.Task[bool]") -> bool:
    return acquiring.done() and not acquiring.cancelled()


Metadata: TypeAlias = tuple[tuple[str, str], ...]


class BlockingCalls:
    """Blocking calls to one peer, with one message each way, on any thread but that of the transport's loop.

    They use a channel of their own and not the transport's loop: handing a small call to the loop, and the answer back,
    takes three thread switches. Without this class a blocking call of a method takes 1.3 to 1.4 times as long, one of
    64 kB too (`benchmarks --only methods`, the rows with one call at a time).

    Args:
      open_channel: Opens the channel, when it is first needed.
    """

    def __init__(self, open_channel: Callable[[], grpc.Channel]) -> None:
        self._open_channel = open_channel
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Starts without a channel: a forked child cannot use one of its parent."""
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._methods: dict[str, Any] = {}

    def call(self, path: str, request: bytes, seconds: float, metadata: Metadata, who: str) -> bytes:
        """Calls a method and returns its answer.

        Args:
          path: The method.
          request: The message.
          seconds: How long it may take.
          metadata: The metadata of the call.
          who: The name of the peer in errors.

        Raises:
          grpc.RpcError: If it fails.
          DeadlineExceededError: If the peer does not answer in time.
          ClosedError: If this is closed, also while the call runs.
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
            raise _held_up(late, who) if held_up(late, seconds) else silent(who, seconds) from None

    def _open(self, path: str, who: str) -> Any:
        """Returns a callable for a method; kept, since making one costs as much as a call."""
        with self._lock:
            if self._closed:
                raise _closed_error(who)
            if self._channel is None:
                # gRPC keeps the context variables in which the first channel is made for good.
                self._channel = contextvars.Context().run(self._open_channel)
            method = self._methods[path] = cast(Any, self._channel).unary_unary(path)
            return method

    def close(self) -> None:
        """Ends running calls. Idempotent."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
            self._methods.clear()
        if channel is not None:
            channel.close()

    def __repr__(self) -> str:
        return f"<BlockingCalls{' closed' if self._closed else ''}>"


def _closed_error(who: str) -> ClosedError:
    return ClosedError(f"The connection to {who} is closed; create a new one")


def _held_up(late: float, who: str) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"This process stood still for {late:.3g} seconds during a call of {who}, as under a debugger or on an "
        "overloaded machine, and the answer came too late; the call may have been done"
    )
