"""Reaches a peer over a `grpc.Channel` that somebody else has made, and keeps."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Generator, Iterable
from typing import Any, cast

from fedstack.errors import ClosedError, InvalidValueError, WorkerUnavailableError
from fedstack.transport.connection import Channel
from fedstack.transport.forks import grpc_use
from fedstack.transport.grpc_connection import error_of_call
from fedstack.transport.grpc_module import grpc

_MAX_CALLS = 256
_MAX_UNREAD = 2


class ChannelConnection:
    """A connection over a channel of the user's own. Closing it leaves the channel open.

    Such a channel has threads of its own, so its answers are brought to the transport's loop.

    Args:
      channel: A channel of `grpc`. One of `grpc.aio` belongs to the event loop that it was made on, and cannot be used
        here: give its address instead.
      address: What the peer is called in messages; a channel does not tell.

    Raises:
      InvalidValueError: If it is a channel of `grpc.aio`.
    """

    def __init__(self, channel: Channel, address: str = "the peer of a channel") -> None:
        if isinstance(channel, grpc.aio.Channel):
            raise InvalidValueError(
                "Expected a channel of grpc, found one of grpc.aio, which belongs to the event loop that it was made "
                "on; give the address of the worker instead"
            )
        grpc_use.begin()
        self._channel = channel
        self._address = address
        self._calls = asyncio.Semaphore(_MAX_CALLS)
        self._closed = False

    @property
    def address(self) -> str:
        """What the peer is called in messages."""
        return self._address

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        with self._errors():
            async with self._calls if timeout is not None else contextlib.nullcontext():
                method = cast(Any, self._channel.unary_unary(path))
                return await _result(method.future(request, timeout=timeout))

    async def upload(self, path: str, frames: Iterable[bytes], timeout: float | None) -> bytes:
        with self._errors():
            method = cast(Any, self._channel.stream_unary(path))
            return await _result(method.future(iter(frames), timeout=timeout))

    async def exchange(self, path: str, frames: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
        with self._errors():
            call = cast(Any, self._channel.stream_stream(path))(iter(frames))
            messages = _Messages(call)
            try:
                while (message := await messages.next()) is not None:
                    yield message
            finally:
                messages.close()

    async def wait_ready(self, timeout: float) -> None:
        self._check_open()
        ready = grpc.channel_ready_future(cast("grpc.Channel", self._channel))
        try:
            await asyncio.wait_for(_result(ready), timeout)
        except asyncio.TimeoutError:
            raise WorkerUnavailableError(
                f"Expected a server behind the channel of {self._address}, found none within {timeout:g} s"
            ) from None
        finally:
            ready.cancel()

    async def redial(self, timeout: float) -> bool:
        """Returns that it cannot: when the channel dials is for its owner to say."""
        return False

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"Expected an open connection to {self._address}, found it closed; make a new context")

    @contextlib.contextmanager
    def _errors(self) -> Generator[None, None, None]:
        """Raises what a failed call stands for."""
        self._check_open()
        try:
            yield
        except grpc.RpcError as failure:
            error = error_of_call(failure, self._address)
            raise error from error.__cause__  # the peer's traceback, and not ours
        except ValueError as failure:  # how a channel says that its owner has closed it
            raise WorkerUnavailableError(f"Expected an open channel to {self._address}, found: {failure}") from failure

    async def close(self) -> None:
        self._closed = True

    def __repr__(self) -> str:
        return f"<ChannelConnection to {self._address}{' closed' if self._closed else ''}>"


class _Messages:
    """The messages of a call that can only be waited for: on a thread of its own, for there may be many such calls.

    It is a daemon, and so a peer that says nothing does not keep the process from ending.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(_MAX_UNREAD)
        self._closed = False
        threading.Thread(target=self._read, name="fedstack-channel", daemon=True).start()

    async def next(self) -> bytes | None:
        """Returns the next message, and `None` after the last one."""
        found = await self._arrived.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """Ends the call, and with it the thread."""
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


async def _result(call: Any) -> bytes:
    """Awaits a call that another thread finishes; cancelling the caller cancels it."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def on_done(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be gone at exit
            loop.call_soon_threadsafe(wake)

    call.add_done_callback(on_done)
    try:
        await waiter
    except asyncio.CancelledError:
        call.cancel()
        raise
    error = call.exception()
    if error is not None:
        raise error
    return call.result()
