"""Reads the requests of a call and writes its answers: messages unchanged, parcels as frames or as one message.

A client may send the request of an exchange in one message. If the method quickly yields a single small answer, the
server also returns the answer in one message. If the method yields a heartbeat, a large answer or several answers, the
server returns an id instead. The method then continues after the call has ended, and the client joins it by a second
call with the id. Both calls count as one call, and occupy one slot. If the client does not join within a time limit,
the method ends as if it had been cancelled.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeAlias

import attrs

from fedstack.errors import DeadlineExceededError, InvalidValueError, WorkerUnavailableError
from fedstack.executors.concurrency.leaf_threads import LOOP_COPY_BYTES, sized
from fedstack.foundations.deadline import Deadline
from fedstack.proto.extensions_pb2 import JoinRequest
from fedstack.service.host.limits import option_of
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.methods import Answers, ExchangeMethod
from fedstack.transport.wire.frames import Heartbeat, data_of, heartbeat_frame, parse_frame
from fedstack.transport.wire.parcels import (
    Incoming,
    Parcel,
    Piece,
    fits_whole,
    frames_of,
    incoming_of,
    read_whole,
    write_goes_on,
    write_whole,
)

_JOIN_SECONDS = 10.0

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Task: TypeAlias = "asyncio.Task[object]"


async def _copied(size: int, work: Callable[[], None]) -> None:
    await sized(size, work, LOOP_COPY_BYTES)


class CallStream:
    """A running call. Iterating over it yields the incoming messages.

    Args:
      context: gRPC's context of the call.
      task: The task that runs the call.
      method: The method under which the ended call is counted.
      silent: The tasks of calls that have sent nothing yet, with their start times, oldest first.
      seconds: The time limit for the first message of a stream, and for each message of a parcel. With `None` there is
        no limit, and the call counts as silent until its first message.

    Attributes:
      task: The task that runs the call.
      method: The method under which the ended call is counted; `None` if another call continues this call.
      begun: The start of the call, from `time.perf_counter`.
      bytes_received: The number of bytes received so far.
      bytes_sent: The number of bytes sent through this object so far.
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
        """Returns the only message of a call.

        Args:
          name: The name of the method, for error messages.

        Raises:
          InvalidValueError: If the client ends the call without a message.
        """
        message = await self._read_silently()
        if message is None:
            raise InvalidValueError(f"The call of {name} ended without a message; send one message")
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
        """Returns the incoming parcel. From now on, the time limit applies to each message.

        Without the limit, a client that stops sending in the middle of a parcel would occupy the server indefinitely.
        """
        self._pause_seconds = self._seconds
        return Incoming(_Pieces(self), _copied)

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
        """Writes each message as soon as the method yields it."""
        try:
            async for message in messages:
                await self._write(message)
        finally:
            await end_answers(messages)

    async def send_parcels(self, answers: Answers) -> None:
        """Writes the heartbeats and parcels that a method yields."""
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
    """The content of a call's incoming frames. Large frames are parsed on a thread."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        self._frames = frames

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        frame = await anext(self._frames)
        return data_of(frame) or await sized(len(frame), lambda: parse_frame(frame))


async def end_answers(answers: AsyncIterator[object]) -> None:
    """Closes a method's generator, so that the method ends now and not at garbage collection."""
    if isinstance(answers, AsyncGenerator):
        await answers.aclose()


def too_slow(seconds: float, which: str = "first") -> DeadlineExceededError:
    """Returns the error for a call that has sent nothing for `seconds` seconds."""
    return DeadlineExceededError(
        f"Expected the {which} message of the call within {seconds:g} seconds, found none; send it earlier, or start "
        f"the worker with a larger {option_of('header_seconds')}"
    )


@attrs.frozen(eq=False)
class _KeptCall:
    """A call that continues after its first answer."""

    method: str | None
    begun: float
    first: Heartbeat | Parcel
    answers: Answers
    ended: "asyncio.Future[None]"


class WholeCalls:
    """Runs exchanges whose request was sent in one message, and keeps those that continue after their first answer.

    Args:
      hand_over: Transfers the slot of a call to the task that continues the call.
    """

    def __init__(self, hand_over: Callable[[Task, Task], None]) -> None:
        self._hand_over = hand_over
        self._kept: dict[str, _KeptCall] = {}

    async def answer(self, method: ExchangeMethod, request: bytes, call: CallStream) -> bytes:
        """Runs a method, and returns its answer or the id under which it continues."""
        parcel = read_whole(request)
        if not isinstance(parcel, Parcel):
            raise InvalidValueError("Expected a request, found the id of a running call; join that call instead")
        del request
        answers = method.handle(incoming_of(parcel, _copied))
        del parcel
        try:
            first = await anext(answers)
            if isinstance(first, Parcel) and first.is_last and fits_whole(first):
                content = write_whole(first)
                del first
                await anext(answers, None)  # runs the method to its end
                return content
        except BaseException:
            await end_answers(answers)
            raise
        kept = _KeptCall(call.method, call.begun, first, answers, asyncio.get_running_loop().create_future())
        name = uuid.uuid4().hex
        self._kept[name] = kept
        self._hand_over(call.task, asyncio.ensure_future(self._keep(name, kept)))
        call.method = None
        return write_goes_on(name)

    async def _keep(self, name: str, kept: _KeptCall) -> None:
        """Waits for the end of a continued call, and ends the call if no client joins it in time."""
        try:
            await asyncio.wait([kept.ended], timeout=_JOIN_SECONDS)
            if name not in self._kept:
                await asyncio.wait([kept.ended])
        finally:
            if self._kept.pop(name, None) is not None:
                await end_answers(kept.answers)

    async def join(self, request: bytes, call: CallStream) -> Answers:
        """Yields the remaining answers of a continued call.

        Raises:
          WorkerUnavailableError: If no continued call has the requested id.
        """
        kept = self._kept.pop(JoinRequest.FromString(request).call, None)
        if kept is None:
            raise WorkerUnavailableError(
                "This server runs no call with the given id: the call has ended or was sent to another server; send "
                "the call again"
            )
        call.method, call.begun = kept.method, kept.begun
        try:
            yield kept.first
            async for answer in kept.answers:
                yield answer
        finally:
            await end_answers(kept.answers)
            kept.ended.set_result(None)

    def __repr__(self) -> str:
        return f"<WholeCalls, {len(self._kept)} wait to be joined>"
