"""Defines calls that a server runs, the routes that they take, and the time limits for their messages.

Each transport has its own subclass of `IncomingCall`. The limits on silent clients are the same for all of them.
"""

import abc
import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import ClassVar, TypeAlias

import attrs

from fedstack.errors import DeadlineExceededError, InvalidValueError
from fedstack.executors.concurrency.leaf_threads import LOOP_COPY_BYTES, sized
from fedstack.foundations.deadline import Deadline
from fedstack.service.host.calls.call_table import CallTable, Task
from fedstack.service.host.limits import option_of
from fedstack.transport.peers.methods import Answers
from fedstack.transport.wire.parcels import Incoming, Piece
from fedstack.transport.wire.status import Code

# Runs a call, and returns its answer if the call has exactly one. Otherwise the work sends the answers itself.
Work: TypeAlias = "Callable[[IncomingCall], Awaitable[bytes | None]]"


@attrs.frozen(eq=False)
class Route:
    """How a server runs the calls of one method.

    Attributes:
      name: The full name of the method, such as `grpc.health.v1.Health/Check`, under which its calls are counted.
      table: The table in which the calls get a slot.
      one_answer: Whether a call has exactly one answer, which `work` returns.
      header_seconds: The time limit for the first message of a stream, and for each message of a parcel. With `None`
        there is no limit, and a stream counts as silent until its first message.
      work: Runs a call.
    """

    name: str
    table: CallTable
    one_answer: bool
    header_seconds: float | None
    work: Work


class IncomingCall(abc.ABC):
    """A running call. Iterating over it yields the incoming messages.

    Args:
      route: The route of the call.
      task: The task that runs the call. It ends when the outcome has been sent, because its end frees the call's slot
        and the room of a large answer.
      peer: The caller in gRPC's notation, such as `ipv4:10.0.0.1:50000` or `unix:`.

    Attributes:
      disconnected: The errors that only the transport raises, when the client has disconnected. It handles them itself.
      task: The task that runs the call.
      peer: The caller in gRPC's notation.
      method: The method under which the ended call is counted; `None` if another call continues this call.
      begun: The start of the call, from `time.perf_counter`.
      bytes_received: The number of bytes received so far.
      bytes_sent: The number of bytes sent through this object so far, without an answer that the work returns.
    """

    disconnected: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, route: Route, task: Task, peer: str) -> None:
        self.task = task
        self.peer = peer
        self.method: str | None = route.name
        self.begun = time.perf_counter()
        self.bytes_received = self.bytes_sent = 0
        self._silent = route.table.silent
        self._seconds = route.header_seconds
        self._pause_seconds: float | None = None
        self._has_read = False

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
        return Incoming(self._pieces(), copied)

    async def send(self, messages: AsyncIterator[bytes]) -> None:
        """Writes each message as soon as the method yields it."""
        try:
            async for message in messages:
                await self._write(message)
        finally:
            await end_answers(messages)

    @abc.abstractmethod
    async def send_parcels(self, answers: Answers) -> None:
        """Writes the heartbeats and parcels that a method yields, and closes the method's generator."""

    @abc.abstractmethod
    async def fail(self, code: Code, message: str, details: bytes | None = None) -> None:
        """Ends the call with a status.

        Args:
          code: The status code.
          message: The message of the status.
          details: The serialized status details, if any.
        """

    @abc.abstractmethod
    async def _read(self) -> bytes | None:
        """Returns the next message and counts its bytes; `None` after the last message."""

    @abc.abstractmethod
    async def _write(self, message: bytes) -> None:
        """Writes a message and counts its bytes."""

    @abc.abstractmethod
    def _pieces(self) -> AsyncIterator[Piece]:
        """Returns the pieces of the incoming parcels. Reading a piece reads messages by iterating over the call."""

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


async def copied(size: int, work: Callable[[], None]) -> None:
    """Runs a function that copies received bytes: on a thread if there are many."""
    await sized(size, work, LOOP_COPY_BYTES)


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
