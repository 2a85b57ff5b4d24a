"""Reads what comes in on a call and writes the answers: messages as they are, parcels as frames."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeAlias

from fedstack.errors import DeadlineExceededError, InvalidValueError
from fedstack.executors.concurrency.off_loop import LOOP_COPY_BYTES, sized
from fedstack.foundations.deadline import Deadline
from fedstack.service.limits.limits import option_of
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.methods import Answers
from fedstack.transport.wire.frames import data_of, heartbeat_frame, parse_frame
from fedstack.transport.wire.parcels import Incoming, Parcel, Piece, frames_of

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Task: TypeAlias = "asyncio.Task[object]"


class CallStream:
    """A call that runs, and its two directions; to iterate over it gives the messages that come in.

    Args:
      context: What gRPC knows of it.
      task: What runs it.
      method: What it is counted as when it ends.
      silent: Has the tasks of calls that have sent nothing yet, and since when, the longest first.
      seconds: How long the first message of a stream, and each one of a parcel, may take; `None` for any time, in which
        the call is silent.

    Attributes:
      task: What runs it.
      method: What it is counted as when it ends; `None` if another one goes on with it.
      begun: When it began, by `time.perf_counter`.
      bytes_received: How much has come in.
      bytes_sent: How much has gone out this way.
    """

    def __init__(
        self, context: Context, task: Task, method: str, silent: dict[Task, float], seconds: float | None
    ) -> None:
        self.task = task
        self.method: str | None = method
        self.begun = time.perf_counter()
        self._context = context
        self._silent = silent
        self._seconds = seconds
        self._pause_seconds: float | None = None
        self._has_read = False
        self.bytes_received = self.bytes_sent = 0

    async def only_message(self, name: str) -> bytes:
        """Returns the message of a call that has one.

        Args:
          name: The method, for messages.

        Raises:
          InvalidValueError: If there is none.
        """
        message = await self._read_silently()
        if message is None:
            raise InvalidValueError(f"Expected a message for {name}, found the end of the call")
        return message

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._has_read:
            seconds = self._pause_seconds
            message = await (self._read() if seconds is None else self._read_within(seconds, "next"))
        else:
            self._has_read = True
            seconds = self._seconds
            message = await (self._read_silently() if seconds is None else self._read_within(seconds, "first"))
        if message is None:
            raise StopAsyncIteration
        return message

    def incoming(self) -> Incoming:
        """Returns the parcel that comes in; a client that stops in the middle of one keeps what waits for the rest."""
        self._pause_seconds = self._seconds
        return Incoming(_Pieces(self), lambda size, work: sized(size, work, LOOP_COPY_BYTES))

    async def _read(self) -> bytes | None:
        message = await self._context.read()
        if message is grpc.aio.EOF:
            return None
        self.bytes_received += len(message)
        return message

    async def _write(self, message: bytes) -> None:
        self.bytes_sent += len(message)
        await self._context.write(message)

    async def _read_silently(self) -> bytes | None:
        self._silent[self.task] = time.monotonic()
        try:
            return await self._read()
        finally:
            self._silent.pop(self.task, None)

    async def _read_within(self, seconds: float, which: str) -> bytes | None:
        try:
            return await Deadline(seconds).wait(self._read())
        except asyncio.TimeoutError:
            raise too_slow(seconds, which) from None

    async def send(self, messages: AsyncIterator[bytes]) -> None:
        """Writes messages, each when it is there."""
        try:
            async for message in messages:
                await self._write(message)
        finally:
            await end_answers(messages)

    async def send_parcels(self, answers: Answers) -> None:
        """Writes heartbeats and parcels."""
        try:
            async for answer in answers:
                if isinstance(answer, Parcel):
                    await self._send_parcel(answer)
                else:
                    beat = heartbeat_frame(answer.done, answer.running, answer.failed, answer.work)
                    await self._write(beat)
        finally:
            await end_answers(answers)

    async def _send_parcel(self, parcel: Parcel) -> None:
        frames = frames_of(parcel)
        await self._write(await sized(len(parcel.header), lambda: next(frames), LOOP_COPY_BYTES))
        for frame in frames:
            await self._write(frame)


class _Pieces:
    """What is in the frames that come in on a call; those that take long to read are read on a thread."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        self._frames = frames

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        frame = await anext(self._frames)
        return data_of(frame) or await sized(len(frame), lambda: parse_frame(frame))


async def end_answers(answers: AsyncIterator[object]) -> None:
    """Ends a method whose client has gone away now, and not when the garbage collector finds it."""
    if isinstance(answers, AsyncGenerator):
        await answers.aclose()


def too_slow(seconds: float, which: str = "first") -> DeadlineExceededError:
    """Returns the error of a call that has sent nothing for so long."""
    return DeadlineExceededError(
        f"The {which} message of the call did not come within {seconds:g} seconds; send it, or start the worker "
        f"with a larger {option_of('header_seconds')}"
    )
