"""Connects to a peer over a `grpc.Channel` of the user."""

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
    """A connection over a channel of the user. Closing it leaves the channel open.

    Such a channel has threads of its own, so its answers are passed to the transport's loop.

    Args:
      channel: A channel of `grpc`. One of `grpc.aio` belongs to the event loop that it was made on, and cannot be used
        here: give its address instead.
      address: The name of the peer in messages; a channel does not have it.

    Raises:
      InvalidValueError: If it is a channel of `grpc.aio`.
    """

    sends_wholes = True

    def __init__(self, channel: Channel, address: str = "the peer of a channel") -> None:
        if isinstance(channel, grpc.aio.Channel):
            raise InvalidValueError(
                "Expected a channel of grpc, found one of grpc.aio, which belongs to the event loop that it was made "
                "on; give the address of the worker instead"
            )
        super().__init__()
        fork_guard.begin()
        self._channel = channel
        self._address = address
        self._calls = asyncio.Semaphore(_MAX_CALLS)
        self._closed = False

    @property
    def address(self) -> str:
        """The name of the peer in messages."""
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
        """Returns when the channel is ready; raises if waiting is pointless."""
        if await self._answers():  # this makes the channel dial, and finds out whether its owner has closed it
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
        """Returns whether the peer answers; raises if waiting is pointless."""
        error = await failure_of_asking(self)
        is_closed = error is not None and isinstance(error.__cause__, ValueError)
        if error is not None and (is_closed or not isinstance(error, RetryableError)):
            raise error
        return error is None

    @property
    def can_look(self) -> bool:
        """Always false: gRPC decides when the channel dials, later after each failure."""
        return False

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                f"The connection to {self._address} is closed; create a new context, client or coordinator"
            )

    @contextlib.contextmanager
    def _errors(self) -> Generator[None, None, None]:
        """Raises the error that a failed call means."""
        self._check_open()
        try:
            yield
        except grpc.RpcError as failure:
            error = error_of_call(failure, self._address)
            try:
                raise error from error.__cause__  # with the peer's traceback instead of ours
            finally:
                del error
        except ValueError as failure:  # raised by a channel that its owner has closed
            raise WorkerUnavailableError(f"The channel to {self._address} is not usable: {failure}") from failure

    async def close(self) -> None:
        self._closed = True

    def __repr__(self) -> str:
        return f"<ChannelConnection to {self._address}{' closed' if self._closed else ''}>"


class _Messages:
    """The messages of a call that can only be read blockingly, on a thread for each of such calls.

    The thread is a daemon, so a silent peer does not keep the process from ending.
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
        """Returns the next message, and `None` after the last one."""
        found = await self._arrived.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Ends the call and its thread."""
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
            with contextlib.suppress(RuntimeError):  # the loop may be gone at exit
                asyncio.run_coroutine_threadsafe(self._arrived.put(found), self._loop).result()


class _States:
    """The states of a channel from now on; until `close`, the channel is asked to dial.

    `grpc.channel_ready_future` is not enough: it asks once, and breaks when it is cancelled twice.
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
        if state is idle and self._last not in (None, idle):  # the channel has given up: ask again
            self._channel.unsubscribe(self._on_state)
            self._channel.subscribe(self._on_state, try_to_connect=True)
        self._last = state
        return state

    def close(self) -> None:
        """Stops asking the channel to dial."""
        self._channel.unsubscribe(self._on_state)

    def _on_state(self, state: grpc.ChannelConnectivity) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be gone at exit
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, state)


async def _result(call: Any) -> bytes:
    """Awaits a call that another thread completes; cancelling the caller cancels the call."""
    try:
        await arrival(call)
    except asyncio.CancelledError:
        call.cancel()
        raise
    return call.result()
