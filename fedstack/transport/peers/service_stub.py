"""Calls the methods of a peer's services: messages in and messages out, whatever the services are."""

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from fedstack.errors import FedstackError, InvalidValueError, WorkerUnavailableError
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.segments import Segment
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.io_loop import IoLoop
from fedstack.transport.wire.frames import Chunking, Heartbeat
from fedstack.transport.wire.heartbeat import watch
from fedstack.transport.wire.parcels import Incoming, Parcel, Piece, incoming_of

CONTROL_SECONDS = 10.0
_UPLOAD_SECONDS = 60.0
# A rate that is slow for any network.
_LEAST_BYTES_PER_SECOND = 1e6
# How many heartbeats may be missed before the peer counts as dead.
_MISSED_BEATS = 4
_GOODBYE_SECONDS = 5.0
_LONGEST_SECONDS = 3600.0

_M = TypeVar("_M", bound=Message)


class ServiceStub:
    """Calls services of one peer. Its coroutines run on the transport's loop.

    Derived classes add typed calls, a method for each method of the service, as in `ExecutorStub`.

    Args:
      connection: The connection to the peer. It is closed with this.
      control_seconds: How long a control call, which only hands data over, may take, in seconds.
      chunking: Decides what is sent in chunks.

    Attributes:
      is_reached: Whether the peer was reachable at the last call; `None` before the first.
    """

    _PEER = "the server"  # its name in errors

    def __init__(
        self,
        connection: Connection,
        *,
        control_seconds: float = CONTROL_SECONDS,
        chunking: Chunking | None = None,
    ) -> None:
        self.connection = connection
        self.chunking = chunking or Chunking()
        self._control_seconds = control_seconds
        self.is_reached: bool | None = None
        self._goodbyes: set[asyncio.Task[Any]] = set()

    @property
    def address(self) -> str:
        """The peer's address."""
        return self.connection.address

    @property
    def io(self) -> IoLoop:
        """The loop that its coroutines run on."""
        return self.connection.io

    @functools.cached_property
    def who(self) -> str:
        """The peer's name in errors."""
        return f"{self._PEER} at {self.address}"

    def loss(self) -> FedstackError | None:
        """Returns the error to raise for a peer that is known to have ended; `None` for a peer that may be alive."""
        return self.connection.loss()

    @property
    def is_gone(self) -> bool:
        """Whether the peer is known to have ended permanently."""
        loss = self.loss()
        return loss is not None and not (isinstance(loss, WorkerUnavailableError) and loss.comes_back)

    async def call(self, path: str, request: Message, response: type[_M], seconds: float | None = None) -> _M:
        """Calls a method that takes one message and returns one message.

        Args:
          path: The method, as in `/package.Service/Method`.
          request: The message.
          response: The type of the answer.
          seconds: How long it may take; by default as long as a control call.

        Raises:
          DeadlineExceededError: If it does not answer in time.
          InvalidValueError: If the answer is not of that type.
        """
        content = request.SerializeToString()
        # Large messages, as for plain peers, take longer.
        timeout = (seconds or self._control_seconds) + len(content) / _LEAST_BYTES_PER_SECOND
        return self._parsed(await self.connection.unary(path, content, timeout), response, path)

    async def call_while_alive(self, path: str, request: Message, response: type[_M]) -> _M:
        """Does the same as `call`, however long it takes, as long as the peer is alive.

        Raises:
          DeadlineExceededError: If it stops answering.
        """
        call = asyncio.ensure_future(self.connection.unary(path, request.SerializeToString(), None))
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait([call, watching], return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                watching.result()
            return self._parsed(await call, response, path)
        finally:
            call.cancel()
            watching.cancel()
            await asyncio.gather(call, watching, return_exceptions=True)

    async def _watch(self) -> None:
        """Raises once the peer is silent or unreachable."""
        async for attempt in Deadline().attempts(itertools.repeat(self._control_seconds)):
            if attempt and not await self.connection.check_alive(self._control_seconds):
                await asyncio.Event().wait()  # the peer cannot be asked: rely on the transport

    async def upload(self, path: str, request: Message, segments: Sequence[Segment], response: type[_M]) -> _M:
        """Calls a method that takes a parcel and returns one message."""
        timeout = _UPLOAD_SECONDS + sum(map(len, segments)) / _LEAST_BYTES_PER_SECOND
        return self._parsed(
            await self.connection.upload(path, self._parcel(request, segments), timeout), response, path
        )

    def download(
        self,
        path: str,
        request: Message,
        heartbeat_seconds: float,
        on_heartbeat: Callable[[Heartbeat], None] = lambda beat: None,
    ) -> contextlib.AbstractAsyncContextManager[Incoming]:
        """Calls a method that takes one message and returns a parcel; leaving the context ends the call.

        Args:
          path: The method.
          request: The message.
          heartbeat_seconds: How often the peer sends a heartbeat.
          on_heartbeat: Called with each heartbeat.

        Raises:
          DeadlineExceededError: If the peer is silent for too long.
        """
        content = request.SerializeToString()
        # The peer is silent until it has the whole request.
        spare_seconds = len(content) / _LEAST_BYTES_PER_SECOND
        return self._answer(self.connection.download(path, content), heartbeat_seconds, spare_seconds, on_heartbeat)

    @contextlib.asynccontextmanager
    async def exchange(
        self,
        path: str,
        request: Message,
        segments: Sequence[Segment],
        heartbeat_seconds: float,
        on_heartbeat: Callable[[Heartbeat], None] = lambda beat: None,
        soon_seconds: float | None = None,
    ) -> AsyncGenerator[Incoming, None]:
        """Calls a method that takes a parcel and returns a parcel; see `download`.

        Args:
          path: The method.
          request: The message.
          segments: The segments sent with it.
          heartbeat_seconds: How often the peer sends a heartbeat.
          on_heartbeat: Called with each heartbeat.
          soon_seconds: How long the first heartbeat may take; by default as long as later heartbeats.
        """
        answer = await self.ask(path, request, segments, heartbeat_seconds, on_heartbeat, soon_seconds)
        if isinstance(answer, Parcel):
            yield incoming_of(answer)
            return
        async with answer as incoming:
            yield incoming

    async def ask(
        self,
        path: str,
        request: Message,
        segments: Sequence[Segment],
        heartbeat_seconds: float,
        on_heartbeat: Callable[[Heartbeat], None] = lambda beat: None,
        soon_seconds: float | None = None,
    ) -> Parcel | contextlib.AbstractAsyncContextManager[Incoming]:
        """Does the same as `exchange`, but returns an answer that came in one message directly."""
        soon = min(soon_seconds or _silence(heartbeat_seconds), _LONGEST_SECONDS)
        answer = await self.connection.ask(path, self._parcel(request, segments), soon, self.who)
        if isinstance(answer, Parcel):
            return answer
        return self._answer(answer, heartbeat_seconds, 0.0, on_heartbeat)

    def ask_blocking(
        self, path: str, request: Message, segments: Sequence[Segment], heartbeat_seconds: float, soon_seconds: float
    ) -> Parcel | contextlib.AbstractAsyncContextManager[Incoming] | None:
        """Does the same as `ask` on the caller's thread; returns `None` if only `ask` works."""
        soon = min(soon_seconds, _LONGEST_SECONDS)
        answer = self.connection.ask_blocking(path, self._parcel(request, segments), soon, self.who)
        if answer is None or isinstance(answer, Parcel):
            return answer
        return self._answer(answer, heartbeat_seconds, 0.0, lambda beat: None)

    def _parcel(self, request: Message, segments: Sequence[Segment]) -> Parcel:
        return Parcel(request.SerializeToString(), segments, self.chunking.chunk_bytes)

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        pieces: AsyncGenerator[Piece, None],
        heartbeat_seconds: float,
        spare_seconds: float,
        on_heartbeat: Callable[[Heartbeat], None],
    ) -> AsyncGenerator[Incoming, None]:
        watched = watch(pieces, spare_seconds + _silence(heartbeat_seconds), who=self.who)
        try:
            yield Incoming(watched, on_heartbeat=on_heartbeat)
        finally:
            await watched.aclose()
            await pieces.aclose()

    def _parsed(self, content: bytes, response: type[_M], path: str) -> _M:
        try:
            return response.FromString(content)
        except DecodeError as error:
            raise InvalidValueError(
                f"Expected a {response.DESCRIPTOR.name} from {self.address}, found {len(content)} other bytes; in "
                f"answer to {path}; check that it is the server that was meant"
            ) from error

    def before_closing(self, task: "asyncio.Task[Any]") -> None:
        """Lets a task, such as one that says goodbye to the peer, finish before the connection is closed."""
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    async def close(self) -> None:
        """Ends the connection. Idempotent."""
        if goodbyes := self._goodbyes - {asyncio.current_task()}:
            await asyncio.wait(goodbyes, timeout=_GOODBYE_SECONDS)
        await self.connection.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.address}>"


def _silence(heartbeat_seconds: float) -> float:
    """Returns how long a peer with this heartbeat interval may be silent, in seconds."""
    return _MISSED_BEATS * max(0.1, heartbeat_seconds)  # in this order a NaN counts as 0.1
