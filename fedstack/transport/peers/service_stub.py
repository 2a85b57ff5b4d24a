"""Defines the base class of stubs, which calls methods of any service of a peer."""

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
from fedstack.transport.wire.parcels import Incoming, Parcel, ParcelFile, Piece, incoming_of

CONTROL_SECONDS = 10.0
_UPLOAD_SECONDS = 60.0
# A transfer rate that even slow networks exceed.
_LEAST_BYTES_PER_SECOND = 1e6
# The number of heartbeat intervals without a message after which the peer is considered dead.
_MISSED_BEATS = 4
_GOODBYE_SECONDS = 5.0
_LONGEST_SECONDS = 3600.0

_M = TypeVar("_M", bound=Message)


class ServiceStub:
    """A stub that calls services of a peer. Its coroutines run on the transport's loop.

    Subclasses add typed calls, with one Python method per method of the service, as in `ExecutorStub`.

    Args:
      connection: The connection to the peer. The stub closes it.
      control_seconds: The time limit, in seconds, of a control call, which only transfers data.
      chunking: The sizes at which data is sent in chunks.

    Attributes:
      is_reached: Whether the peer was reachable during the last call; `None` before the first call.
    """

    _PEER = "the server"  # the kind of peer in error messages

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
        """The address of the peer."""
        return self.connection.address

    @property
    def io(self) -> IoLoop:
        """The loop on which the coroutines of the stub run."""
        return self.connection.io

    @functools.cached_property
    def who(self) -> str:
        """The name of the peer in error messages."""
        return f"{self._PEER} at {self.address}"

    def loss(self) -> FedstackError | None:
        """Returns the error to raise if the peer is known to have ended; `None` if it may be alive."""
        return self.connection.loss()

    @property
    def is_gone(self) -> bool:
        """Whether the peer is known to have ended permanently."""
        loss = self.loss()
        return loss is not None and not (isinstance(loss, WorkerUnavailableError) and loss.comes_back)

    async def call(self, path: str, request: Message, response: type[_M], seconds: float | None = None) -> _M:
        """Calls a method that accepts one message and returns one message.

        Args:
          path: The path of the method, such as `/package.Service/Method`.
          request: The request message.
          response: The type of the response message.
          seconds: The time limit; by default that of a control call.

        Raises:
          DeadlineExceededError: If the peer does not answer in time.
          InvalidValueError: If the response is not a message of the type `response`.
        """
        content = request.SerializeToString()
        # Plain peers receive large messages, which take longer.
        timeout = (seconds or self._control_seconds) + len(content) / _LEAST_BYTES_PER_SECOND
        return self._parsed(await self.connection.unary(path, content, timeout), response, path)

    async def call_while_alive(self, path: str, request: Message, response: type[_M]) -> _M:
        """Like `call`, but without a time limit while the peer is alive.

        Raises:
          DeadlineExceededError: If the peer stops answering health checks.
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
        """Raises an error once the peer is silent or unreachable."""
        async for attempt in Deadline().attempts(itertools.repeat(self._control_seconds)):
            if attempt and not await self.connection.check_alive(self._control_seconds):
                await asyncio.Event().wait()  # the peer has no health service, so only the transport detects its loss

    async def upload(self, path: str, request: Message, segments: Sequence[Segment], response: type[_M]) -> _M:
        """Calls a method that accepts a parcel and returns one message."""
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
        """Calls a method that accepts one message and returns a parcel. Leaving the context ends the call.

        Args:
          path: The path of the method.
          request: The request message.
          heartbeat_seconds: The interval at which the peer sends heartbeats.
          on_heartbeat: A function that is called with each heartbeat.

        Raises:
          DeadlineExceededError: If the peer is silent for several heartbeat intervals.
        """
        content = request.SerializeToString()
        # The peer sends nothing until it has received the whole request.
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
        sent: Callable[[], None] = lambda: None,
        file: ParcelFile | None = None,
    ) -> AsyncGenerator[Incoming, None]:
        """Calls a method that accepts a parcel and returns a parcel; see `download`.

        Args:
          path: The path of the method.
          request: The request message.
          segments: The segments to send with the message.
          heartbeat_seconds: The interval at which the peer sends heartbeats.
          on_heartbeat: A function that is called with each heartbeat.
          soon_seconds: The time limit for the first heartbeat; by default the same as for later heartbeats.
          sent: Called on any thread after the request has been sent.
          file: A file with some of the segments, if the connection passes files.
        """
        answer = await self.ask(path, request, segments, heartbeat_seconds, on_heartbeat, soon_seconds, sent, file)
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
        sent: Callable[[], None] = lambda: None,
        file: ParcelFile | None = None,
    ) -> Parcel | contextlib.AbstractAsyncContextManager[Incoming]:
        """Like `exchange`, but returns a response directly if it was received as a single message."""
        soon = min(soon_seconds or _silence(heartbeat_seconds), _LONGEST_SECONDS)
        answer = await self.connection.ask(path, self._parcel(request, segments, sent, file), soon, self.who)
        if isinstance(answer, Parcel):
            return answer
        return self._answer(answer, heartbeat_seconds, 0.0, on_heartbeat)

    def ask_blocking(
        self, path: str, request: Message, segments: Sequence[Segment], heartbeat_seconds: float, soon_seconds: float
    ) -> Parcel | contextlib.AbstractAsyncContextManager[Incoming] | None:
        """Like `ask`, but blocks the calling thread. Returns `None` if the caller has to use `ask` instead."""
        soon = min(soon_seconds, _LONGEST_SECONDS)
        answer = self.connection.ask_blocking(path, self._parcel(request, segments), soon, self.who)
        if answer is None or isinstance(answer, Parcel):
            return answer
        return self._answer(answer, heartbeat_seconds, 0.0, lambda beat: None)

    def _parcel(
        self,
        request: Message,
        segments: Sequence[Segment],
        sent: Callable[[], None] = lambda: None,
        file: ParcelFile | None = None,
    ) -> Parcel:
        return Parcel(request.SerializeToString(), segments, self.chunking.chunk_bytes, sent=sent, file=file)

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
                f"Expected a {response.DESCRIPTOR.name} from {self.address} in response to {path}, found "
                f"{len(content)} bytes that cannot be decoded; check that the address is that of the intended server"
            ) from error

    def before_closing(self, task: "asyncio.Task[Any]") -> None:
        """Registers a task, such as a last call to the peer, that `close` awaits before it closes the connection."""
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    async def close(self) -> None:
        """Closes the connection. Idempotent."""
        if goodbyes := self._goodbyes - {asyncio.current_task()}:
            await asyncio.wait(goodbyes, timeout=_GOODBYE_SECONDS)
        await self.connection.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.address}>"


def _silence(heartbeat_seconds: float) -> float:
    """Returns how many seconds a peer with this heartbeat interval may be silent."""
    return _MISSED_BEATS * max(0.1, heartbeat_seconds)  # in this order, `max` returns 0.1 for a NaN
