"""Connects to a peer over gRPC. The channel is opened on first use, and gRPC statuses are converted to errors."""

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
from fedstack.transport.wire.connection_errors import ARGUMENTS, TOKEN_REFUSED, Words, never_arrived
from fedstack.transport.wire.heartbeat import answered
from fedstack.transport.wire.parcels import Parcel, Piece, frames_of
from fedstack.transport.wire.status import RemoteTraceback

# Servers limit the number of waiting calls, and reject calls beyond the limit with the status CANCELLED.
_MAX_CALLS = 256
_MAX_STREAMS = 4096
# How many seconds a wait may exceed its limit in order to finish a diagnosis.
_EXPLAIN_SECONDS = 1.0
# gRPC itself reports these codes for unanswered calls. All other codes are sent by the peer.
_UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
# The time limit for the calls that still run on a replaced channel.
_OLD_CALLS_SECONDS = 600.0
_TUNNEL = "dial localhost through a tunnel (ssh -L)"


class GrpcConnection(Connection):
    """A gRPC connection to a peer. Its coroutines run on the transport's loop.

    Args:
      target: The address of the peer.
      credentials: The client's credentials; `None` for plaintext.
      max_calls: The maximum number of calls in flight. Further calls wait in this process.
      words: The names that error messages use for the parts of the credentials.
      patience: The time limits of a diagnosis.
      loss: A function that returns the error to raise if the peer is known to have ended, otherwise `None`.
      compression: Whether to accept compressed messages. Some peers compress messages even if compression is not
        accepted.
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
        self._plaintext_advice = f"pass {words.authority}, or {_TUNNEL}"
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
            raise ClosedError(
                f"The connection to {self.address} is closed; create a new context, client or coordinator"
            )

    def _open(self) -> grpc.aio.Channel:
        self._check_open()
        if self._channel is None:
            # gRPC keeps the context in which the first channel of a process is created forever, so use an empty one.
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
        """Returns a callable for a method. It is cached, since creating a callable takes as long as a call."""
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
        """Sends a stream of messages and yields the responses. Each message is produced just before it is sent."""
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
        """Waits until the channel is ready; raises an error if waiting cannot help."""
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
        """Checks whether the peer can be reached, and replaces the channel if it can but the channel has failed.

        After a failure, a channel waits for seconds before it dials again, and fails all calls in the meantime.
        """
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
        """Returns an error that explains why the peer cannot be reached, or `error` itself if nothing explains it."""
        away = isinstance(error, (WorkerUnavailableError, DeadlineExceededError, AuthenticationError))
        if not away or isinstance(error.__cause__, RemoteTraceback) or self._closed:
            return error
        if isinstance(error, AuthenticationError) and error.causes == self._token_refused.causes:
            return error
        if self._explanation is None or self._failure != str(error):  # reused while gRPC reports the same error
            self._failure = str(error)
            self._explanation = asyncio.ensure_future(self.diagnosis())
        return await asyncio.shield(self._explanation) or error

    async def diagnosis(self) -> FedstackError | None:
        """Returns an error that describes why the peer cannot be reached; `None` if no problem is found."""
        return await diagnosis_of(self._target, self._credentials, self._words, self._patience)

    @property
    def _token_refused(self) -> FedstackError:
        return token_refused(self._target, self._credentials, self._words)

    def raise_for(self, failure: BaseException) -> None:
        """Raises the fedstack error that corresponds to the failure of a call, if there is one."""
        if isinstance(failure, asyncio.CancelledError):
            # gRPC cancels the calls of a closed channel, so a waiting caller cannot see the reason.
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
                raise error from error.__cause__  # shows the peer's traceback instead of ours
            finally:
                del error, failure

    def _closed_during_call(self) -> ClosedError:
        return ClosedError(
            f"The connection to {self.address} was closed during a call; close contexts and stubs only after their "
            "calls have ended"
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
    """Converts the gRPC error of a call in the block to a fedstack error."""

    # A class, since a generator-based context manager takes four times as long, and every call enters one.
    __slots__ = ("_connection",)

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, failure: BaseException | None, traceback: object) -> None:
        if failure is not None:
            self._connection.raise_for(failure)


def _is_cancelled() -> bool:
    """Returns whether the current task is being cancelled. Python before 3.11 cannot tell; the result is then false."""
    task = asyncio.current_task()
    return task is not None and bool(getattr(task, "cancelling", int)())


async def _end_old(channel: grpc.aio.Channel) -> None:
    """Closes a channel once its calls have ended, or immediately if this coroutine is cancelled."""
    try:
        await channel.close(_OLD_CALLS_SECONDS)
    except asyncio.CancelledError:
        await channel.close()
        raise
