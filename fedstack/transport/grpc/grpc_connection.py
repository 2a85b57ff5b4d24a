"""Connects to a peer by gRPC: opens the channel on first use, and turns statuses into errors."""

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, cast

from fedstack.computations.types.language import RetryableError
from fedstack.errors import (
    AuthenticationError,
    ClosedError,
    DeadlineExceededError,
    FedstackError,
    WorkerUnavailableError,
)
from fedstack.foundations.deadline import Deadline
from fedstack.transport.grpc.channels import ANY_COMPRESSION, COMPRESSION, Options, open_blocking_channel, open_channel
from fedstack.transport.grpc.credential_files import TOKEN_REFUSED
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.grpc.diagnosis import DEFAULT_PATIENCE, Patience, diagnosis_of, token_refused
from fedstack.transport.grpc.grpc_calls import (
    HEALTH_WATCH,
    BlockingCalls,
    CallLimiter,
    asks_health,
    error_of_call,
    failure_of_asking,
    finish,
    parsed,
    raise_status,
    send,
    status_of_peer,
    until_not_serving,
)
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.connection import Connection
from fedstack.transport.wire.addresses import Target
from fedstack.transport.wire.connection_errors import ARGUMENTS, Words, never_arrived
from fedstack.transport.wire.heartbeat import answered
from fedstack.transport.wire.parcels import Parcel, Piece, frames_of
from fedstack.transport.wire.status import RemoteTraceback

# A server limits waiting calls, and rejects those beyond the limit as cancelled.
_MAX_CALLS = 256
_MAX_STREAMS = 4096
# How much longer a wait may take than its limit if it is about to find the fault.
_EXPLAIN_SECONDS = 1.0
# All other codes come from the peer.
_UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
# How long calls that still run over a replaced connection may take to end.
_OLD_CALLS_SECONDS = 600.0
_TUNNEL = "dial localhost where a tunnel (ssh -L) leads to it"


class GrpcConnection(Connection):
    """A connection to one peer. Its coroutines run on the transport's loop.

    Args:
      target: The address of the peer.
      credentials: The client's credentials; `None` for plaintext.
      max_calls: The most calls in flight; more wait here.
      words: The names of the parts of the credentials in errors.
      patience: How long to look for a fault.
      loss: Returns the error to raise for a peer that is known to have ended.
      compression: Whether to accept compressed messages. Some peers compress although they know that it is not allowed.
    """

    sends_wholes = True

    def __init__(
        self,
        target: Target,
        credentials: ClientCredentials | None = None,
        *,
        max_calls: int = _MAX_CALLS,
        words: Words = ARGUMENTS,
        patience: Patience = DEFAULT_PATIENCE,
        loss: Callable[[], FedstackError | None] = lambda: None,
        compression: bool = False,
    ) -> None:
        self._target = target
        self._loss = loss
        self._options: Options = ((COMPRESSION, ANY_COMPRESSION),) if compression else ()
        self._credentials = credentials or ClientCredentials()
        self._metadata = self._credentials.renewed_metadata()
        self._words = words
        self._patience = patience
        self._failure = ""
        self._explanation: asyncio.Task[FedstackError | None] | None = None
        self._redialling: asyncio.Task[bool] | None = None
        self._old_channels: set[asyncio.Task[None]] = set()
        self._channel: grpc.aio.Channel | None = None
        self._plaintext_advice = f"give {words.authority}, or {_TUNNEL}"
        self._blocking = BlockingCalls(self._open_blocking)
        self._methods: dict[tuple[str, str], Any] = {}
        self._turns = CallLimiter(max_calls)
        self._streams = asyncio.Semaphore(_MAX_STREAMS)
        self._closed = False

    @property
    def address(self) -> str:
        """The peer's address."""
        return self._target.address

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"The connection to {self.address} is closed; make a new context, client or coordinator")

    def _open(self) -> grpc.aio.Channel:
        self._check_open()
        if self._channel is None:
            # gRPC keeps the context variables in which the first channel of a process is made for good.
            self._channel = contextvars.Context().run(
                open_channel,
                self._target,
                self._credentials,
                plaintext_advice=self._plaintext_advice,
                options=self._options,
            )
        return self._channel

    def _open_blocking(self) -> grpc.Channel:
        return open_blocking_channel(
            self._target, self._credentials, plaintext_advice=self._plaintext_advice, options=self._options
        )

    def _method(self, kind: str, path: str) -> Any:
        """Returns a callable for a method; kept, since making one costs as much as a call."""
        found = self._methods.get((kind, path))
        if found is None:
            found = self._methods[kind, path] = getattr(self._open(), kind)(path)
        return found

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        async with self._streams if timeout is None else self._turns.turn(timeout, self.address):
            with _Errors(self):
                answer = await self._method("unary_unary", path)(
                    request, timeout=timeout, metadata=self._metadata.get()
                )
                self._turns.answered()
                return answer

    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        async with self._streams:
            with _Errors(self):
                call = self._method("stream_unary", path)(timeout=timeout, metadata=self._metadata.get())
                async with status_of_peer(call):
                    return await finish(call, frames_of(parcel))

    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        return parsed(self.stream(path, [request]))

    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        return parsed(self.stream(path, frames_of(parcel)))

    async def stream(self, path: str, messages: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Sends a stream of messages, which are made as they are sent, and yields the answers."""
        async with self._streams:
            with _Errors(self):
                call = self._method("stream_stream", path)(metadata=self._metadata.get())
                sending = asyncio.ensure_future(send(call, messages))
                try:
                    async with status_of_peer(call):
                        while (message := await call.read()) is not grpc.aio.EOF:
                            yield cast(bytes, message)
                        await raise_status(call)
                    if sending.done():
                        sending.result()
                finally:
                    call.cancel()
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)

    async def unary_soon(self, path: str, request: bytes, seconds: float, who: str) -> bytes:
        async with self._streams:
            with _Errors(self):
                call = self._method("unary_unary", path)(request, metadata=self._metadata.get())
                answer = await answered(call, seconds, who=who)
                self._turns.answered()
                return answer

    def unary_blocking(self, path: str, request: bytes, seconds: float, who: str) -> bytes | None:
        self._check_open()
        try:
            with _Errors(self):
                answer = self._blocking.call(path, request, seconds, self._metadata.get(), who)
                self._turns.answered()
                return answer
        except WorkerUnavailableError as error:
            if not never_arrived(error):
                raise
            return None

    async def check_alive(self, seconds: float) -> bool:
        return await asks_health(self, seconds)

    async def until_draining(self) -> None:
        await until_not_serving(self.stream(HEALTH_WATCH, [b""]))

    async def wait_ready(self, seconds: float) -> None:
        channel = self._open()
        try:
            await Deadline(seconds).wait(self._until_ready(channel))
        except grpc.aio.UsageError:
            if channel is self._channel:
                raise
            await self.wait_ready(seconds)  # the channel was replaced, or the connection closed
        except asyncio.TimeoutError:
            error = await failure_of_asking(self)
            if error is None:
                return
            try:
                error = await Deadline(_EXPLAIN_SECONDS).wait(self.explained(error))
            except asyncio.TimeoutError:
                error = await failure_of_asking(self)
            if error is not None:
                raise error from None

    async def _until_ready(self, channel: grpc.aio.Channel) -> None:
        """Returns when the channel is ready; raises if waiting is pointless."""
        asked = False
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not asked:
                asked = True
                error = await failure_of_asking(self)
                if error is None:
                    return
                error = await self.explained(error)
                if not isinstance(error, RetryableError):
                    raise error
            else:
                await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)

    async def look(self, seconds: float) -> bool:
        if self._closed:
            return False
        if self._redialling is None or self._redialling.done():
            self._redialling = asyncio.ensure_future(self._redial())
        redialling = self._redialling
        await asyncio.wait([redialling], timeout=seconds)
        return redialling.done() and not redialling.cancelled() and redialling.result()

    async def _redial(self) -> bool:
        """Dials apart from the channel, which after failures waits for seconds until it dials, and fails meanwhile."""
        channel = self._channel
        if await diagnosis_of(self._target, self._credentials, self._words) is not None:
            return False
        waits = channel is not None and channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        if channel is not None and channel is self._channel and waits:
            self._channel = None
            self._methods.clear()
            self._failure, self._explanation = "", None
            ending = asyncio.ensure_future(_end_old(channel))
            self._old_channels.add(ending)
            ending.add_done_callback(self._old_channels.discard)
        return True

    def loss(self) -> FedstackError | None:
        return self._loss()

    async def explained(self, error: FedstackError) -> FedstackError:
        """Returns the fault on the way to the peer if it explains the error of a call; else the error."""
        away = isinstance(error, (WorkerUnavailableError, DeadlineExceededError, AuthenticationError))
        if not away or isinstance(error.__cause__, RemoteTraceback) or self._closed:
            return error
        if isinstance(error, AuthenticationError) and error.causes == self._token_refused.causes:
            return error
        if self._explanation is None or self._failure != str(error):  # reused while gRPC reports the same
            self._failure = str(error)
            self._explanation = asyncio.ensure_future(self.diagnosis())
        return await asyncio.shield(self._explanation) or error

    async def diagnosis(self) -> FedstackError | None:
        """Returns the fault on the way to the peer; `None` if none can be found from outside."""
        return await diagnosis_of(self._target, self._credentials, self._words, self._patience)

    @property
    def _token_refused(self) -> FedstackError:
        return token_refused(self._target, self._credentials, self._words)

    def raise_for(self, failure: BaseException) -> None:
        """Raises the error that the failure of a call means, if that is another one."""
        if isinstance(failure, asyncio.CancelledError):
            # gRPC cancels the calls of a closed channel, and their waiters cannot tell why.
            if self._closed and not _is_cancelled():
                raise self._closed_during_call() from None
        elif isinstance(failure, grpc.RpcError):
            call = cast("grpc.Call", failure)
            code = call.code()
            if self._closed and code is grpc.StatusCode.CANCELLED:
                raise self._closed_during_call() from None
            if code not in _UNANSWERED:
                self._turns.answered()
            if code is grpc.StatusCode.UNAUTHENTICATED and call.details() == TOKEN_REFUSED:
                raise self._token_refused from None
            error = error_of_call(failure, self.address, self._words)
            try:
                raise error from error.__cause__  # with the peer's traceback instead of ours
            finally:
                del error, failure

    def _closed_during_call(self) -> ClosedError:
        return ClosedError(
            f"The connection to {self.address} was closed during a call; close contexts and stubs when their calls "
            "have ended"
        )

    async def close(self) -> None:
        self._closed = True
        self._blocking.close()
        channel, self._channel = self._channel, None
        self._methods.clear()
        every = self._explanation, self._redialling, *self._old_channels
        rest: list[asyncio.Task[Any]] = [task for task in every if task is not None]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        if channel is not None:
            await channel.close()

    def __repr__(self) -> str:
        return f"<GrpcConnection to {self.address}{' closed' if self._closed else ''}>"


class _Errors:
    """Raises the error that a failed call in the block means."""

    __slots__ = ("_connection",)  # a generator would take four times as long, and each call enters one

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, failure: BaseException | None, traceback: object) -> None:
        if failure is not None:
            self._connection.raise_for(failure)


def _is_cancelled() -> bool:
    """Returns whether the current task is being cancelled, as far as this Python can tell."""
    task = asyncio.current_task()
    return task is not None and bool(getattr(task, "cancelling", int)())


async def _end_old(channel: grpc.aio.Channel) -> None:
    """Closes a channel once its calls have ended; at once when cancelled."""
    try:
        await channel.close(_OLD_CALLS_SECONDS)
    except asyncio.CancelledError:
        await channel.close()
        raise
