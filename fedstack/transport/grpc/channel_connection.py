"""Connects to a peer over a `grpc.Channel` that the user provides."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any, cast

from fedstack.computations.types.language import RetryableError
from fedstack.errors import ClosedError, InvalidValueError, WorkerUnavailableError
from fedstack.foundations.deadline import Deadline
from fedstack.transport.grpc.channels import Channel
from fedstack.transport.grpc.grpc_calls import (
    HEALTH_WATCH,
    asks_health,
    error_of_call,
    failure_of_asking,
    parsed,
    until_not_serving,
)
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.daemon_threads import start_daemon
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.peers.io_loop import arrival
from fedstack.transport.wire.heartbeat import answered
from fedstack.transport.wire.parcels import Parcel, Piece, frames_of

_MAX_CALLS = 256
_MAX_UNREAD = 2


class ChannelConnection(Connection):
    """A connection over a channel that the user provides. Closing the connection does not close the channel.

    The channel receives responses on its own threads, so the connection passes them to the transport's loop.

    Args:
      channel: A `grpc.Channel`. A `grpc.aio.Channel` is not accepted, because it is bound to the event loop on which
        it was created; pass the address of the peer instead.
      address: The name of the peer in error messages, as a channel does not expose its address.

    Raises:
      InvalidValueError: If `channel` is a `grpc.aio.Channel`.
    """

    sends_wholes = True

    def __init__(self, channel: Channel, address: str = "the peer of a channel") -> None:
        if isinstance(channel, grpc.aio.Channel):
            raise InvalidValueError(
                "Expected a grpc.Channel, found a grpc.aio.Channel, which is bound to the event loop that created it; "
                "pass the address of the worker instead"
            )
        super().__init__()
        fork_guard.begin()
        self._channel = channel
        self._address = address
        self._calls = asyncio.Semaphore(_MAX_CALLS)
        self._closed = False

    @property
    def address(self) -> str:
        """The name of the peer in error messages."""
        return self._address

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        with self._errors():
            async with self._calls if timeout is not None else contextlib.nullcontext():
                method = cast(Any, self._channel.unary_unary(path))
                return await _result(method.future(request, timeout=timeout))

    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        with self._errors():
            method = cast(Any, self._channel.stream_unary(path))
            return await _result(method.future(frames_of(parcel), timeout=timeout))

    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        return parsed(self._stream(path, iter([request])))

    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        return parsed(self._stream(path, frames_of(parcel)))

    async def _stream(self, path: str, messages: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
        with self._errors():
            call = cast(Any, self._channel.stream_stream(path))(messages)
            answers = _Messages(call)
            try:
                while (message := await answers.next()) is not None:
                    yield message
            finally:
                answers.close()

    async def unary_soon(self, path: str, request: bytes, seconds: float, who: str) -> bytes:
        with self._errors():
            return await answered(
                asyncio.ensure_future(_result(cast(Any, self._channel.unary_unary(path)).future(request))),
                seconds,
                who=who,
            )

    async def check_alive(self, seconds: float) -> bool:
        return await asks_health(self, seconds)

    async def until_draining(self) -> None:
        await until_not_serving(self._stream(HEALTH_WATCH, iter([b""])))

    async def wait_ready(self, seconds: float) -> None:
        self._check_open()
        try:
            await Deadline(seconds).wait(self._until_ready())
        except asyncio.TimeoutError:
            error = await failure_of_asking(self)
            if error is not None:
                raise error from None

    async def _until_ready(self) -> None:
        """Waits until the channel is ready; raises an error if waiting cannot help."""
        if await self._answers():  # makes the channel dial, and detects whether its owner has closed it
            return
        asked = False
        states = _States(self._channel)
        try:
            while (state := await states.next()) is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not asked:
                    asked = True
                    if await self._answers():
                        return
        finally:
            states.close()

    async def _answers(self) -> bool:
        """Returns whether the peer answers; raises an error if waiting cannot help."""
        error = await failure_of_asking(self)
        is_closed = error is not None and isinstance(error.__cause__, ValueError)
        if error is not None and (is_closed or not isinstance(error, RetryableError)):
            raise error
        return error is None

    @property
    def can_look(self) -> bool:
        """Always false, because gRPC alone decides when the channel dials again, with growing delays after failures."""
        return False

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                f"The connection to {self._address} is closed; create a new context, client or coordinator"
            )

    @contextlib.contextmanager
    def _errors(self) -> Generator[None, None, None]:
        """Converts gRPC errors that the block raises to fedstack errors."""
        self._check_open()
        try:
            yield
        except grpc.RpcError as failure:
            error = error_of_call(failure, self._address)
            try:
                raise error from error.__cause__  # shows the peer's traceback instead of ours
            finally:
                del error
        except ValueError as failure:  # raised by a channel that its owner has closed
            raise WorkerUnavailableError(f"The channel to {self._address} is not usable: {failure}") from failure

    async def close(self) -> None:
        self._closed = True

    def __repr__(self) -> str:
        return f"<ChannelConnection to {self._address}{' closed' if self._closed else ''}>"


class _Messages:
    """Reads the messages of a call that supports only blocking reads, on a thread per call.

    The thread is a daemon thread, so a silent peer does not prevent the process from exiting.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(_MAX_UNREAD)
        self._closed = False
        try:
            start_daemon(self._read, name="fedstack-channel")
        except BaseException:
            call.cancel()
            raise

    async def next(self) -> bytes | None:
        """Returns the next message, or `None` after the last message."""
        found = await self._arrived.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Cancels the call and ends its thread."""
        self._closed = True
        self._call.cancel()
        while not self._arrived.empty():
            self._arrived.get_nowait()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._hand_over(message)
            self._hand_over(None)
        except BaseException as error:
            self._hand_over(error)

    def _hand_over(self, found: bytes | BaseException | None) -> None:
        if not self._closed:
            with contextlib.suppress(RuntimeError):  # the loop may already be closed at exit
                asyncio.run_coroutine_threadsafe(self._arrived.put(found), self._loop).result()


class _States:
    """The connectivity states of a channel, starting with the current state. Until `close`, the channel keeps dialing.

    `grpc.channel_ready_future` is not sufficient: it makes the channel dial only once, and fails if it is cancelled
    twice.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[grpc.ChannelConnectivity] = asyncio.Queue()
        self._last: grpc.ChannelConnectivity | None = None
        channel.subscribe(self._on_state, try_to_connect=True)

    async def next(self) -> grpc.ChannelConnectivity:
        """Returns the next state."""
        state = await self._arrived.get()
        idle = grpc.ChannelConnectivity.IDLE
        if state is idle and self._last not in (None, idle):  # the channel has stopped dialing; make it dial again
            self._channel.unsubscribe(self._on_state)
            self._channel.subscribe(self._on_state, try_to_connect=True)
        self._last = state
        return state

    def close(self) -> None:
        """Stops making the channel dial."""
        self._channel.unsubscribe(self._on_state)

    def _on_state(self, state: grpc.ChannelConnectivity) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may already be closed at exit
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, state)


async def _result(call: Any) -> bytes:
    """Awaits the result of a call that another thread completes. Cancelling the caller cancels the call."""
    try:
        await arrival(call)
    except asyncio.CancelledError:
        call.cancel()
        raise
    return call.result()
