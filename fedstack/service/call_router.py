"""Brings calls that gRPC receives to the methods of services, and their outcomes back as statuses."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, NoReturn, TypeAlias, cast

from google.protobuf.message import DecodeError

from fedstack.errors import InvalidValueError, ResourceLimitError, WorkerUnavailableError
from fedstack.service.call_counts import CallCounts
from fedstack.service.refusal_log import RefusalLog
from fedstack.transport.credentials import TOKEN_REFUSED, bearer_token
from fedstack.transport.grpc_module import grpc
from fedstack.transport.methods import DownloadMethod, ExchangeMethod, Method, Service, UnaryMethod
from fedstack.transport.status import Code, StatusError, code_of, details_of, message_of

_logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Task: TypeAlias = "asyncio.Task[object]"
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

_DETAILS_KEY = "grpc-status-details-bin"
_OTHER_METHODS = "(other)"
_WATCHERS_SECONDS = 0.5
_STOPPING = "Expected a server that takes calls, found one that is stopping; dial another one, or this one later"
_CANCELLED = "Expected the method to come to its end, found it cancelled at the server"


class CallRouter(grpc.GenericRpcHandler):
    """Finds the method for a call, runs it and counts it.

    Args:
      services: Whose methods these are.
      is_allowed: Tells by a call's metadata whether it may go on; it is asked first, whatever the call wants.
      max_calls: The most calls at a time; one more is refused.
      background: More services, whose calls are not among those: a busy server still says that it is healthy, and one
        that stops does not wait for those who watch.
      public: Those services of all that anybody may call, who is allowed to go on or not.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        is_allowed: Callable[[Metadata], bool],
        max_calls: int,
        background: Sequence[Service] = (),
        public: Sequence[Service] = (),
    ) -> None:
        self.counts = CallCounts()
        self._refusals = RefusalLog()
        self._is_allowed = is_allowed
        self._max_calls = max_calls
        self._foreground: set[Task] = set()
        self._background: set[Task] = set()
        self._stopping = False
        self._handlers: dict[str, Handler] = {}
        for group, running in ((services, self._foreground), (background, self._background)):
            for service in group:
                for name, methods in service.methods.items():
                    for method_name, method in methods.items():
                        handler = self._handler(f"{name}/{method_name}", method, running)
                        self._handlers[f"/{name}/{method_name}"] = handler
        self._public = frozenset(f"/{n}/{m}" for service in public for n, ms in service.methods.items() for m in ms)
        self._known = f"services are {', '.join(sorted({path.split('/')[1] for path in self._handlers}))}"

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Returns what handles a call; gRPC asks for each."""
        path = handler_call_details.method
        metadata = cast("Metadata", handler_call_details.invocation_metadata or ())
        if path not in self._public and not self._is_allowed(metadata):
            had_token = bool(bearer_token(metadata))
            return self._refusal(
                Code.UNAUTHENTICATED, TOKEN_REFUSED, lambda peer: self._refusals.refused(peer, had_token=had_token)
            )
        return self._handlers.get(path) or self._refusal(Code.UNIMPLEMENTED, f"no method {path}; {self._known}")

    @property
    def running(self) -> int:
        """How many calls are running, those in the background aside."""
        return len(self._foreground)

    async def wait_idle(self) -> None:
        """Returns when no call is running, those in the background aside."""
        while self._foreground:
            await asyncio.wait(set(self._foreground))

    async def end_calls(self) -> None:
        """Ends all calls that are running or still come in as if the server could not be reached; returns when done.

        A client may try these again, elsewhere or later. gRPC itself would call them cancelled, and so nobody's fault.
        """
        self._stopping = True
        if self._background:  # those who watch for this moment are told of it, and leave
            await asyncio.wait(set(self._background), timeout=_WATCHERS_SECONDS)
        while running := self._foreground | self._background:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def _handler(self, name: str, method: Method, running: set[Task]) -> Handler:
        if isinstance(method, UnaryMethod):

            async def unary(request: bytes, context: Context) -> bytes:
                async with self._call(name, context, running):
                    return await method.handle(request)

            return grpc.unary_unary_rpc_method_handler(cast("Any", unary))
        if isinstance(method, DownloadMethod):

            async def download(request: bytes, context: Context) -> None:
                async with self._call(name, context, running):
                    await _send(method.handle(request), context)

            return grpc.unary_stream_rpc_method_handler(cast("Any", download))
        if isinstance(method, ExchangeMethod):

            async def exchange(_: object, context: Context) -> None:
                async with self._call(name, context, running):
                    await _send(method.handle(_Received(context)), context)

            return grpc.stream_stream_rpc_method_handler(cast("Any", exchange))

        async def upload(_: object, context: Context) -> bytes:
            async with self._call(name, context, running):
                return await method.handle(_Received(context))

        return grpc.stream_unary_rpc_method_handler(cast("Any", upload))

    def _refusal(self, code: Code, message: str, note: Callable[[str], None] = lambda peer: None) -> Handler:
        async def refuse(_: object, context: Context) -> None:
            self.counts.add(_OTHER_METHODS, code.name)
            note(context.peer())
            await context.abort(grpc.StatusCode[code.name], message)

        # The one kind that answers without waiting for a message, and so good for calls of every kind.
        return grpc.stream_stream_rpc_method_handler(cast("Any", refuse))

    @contextlib.asynccontextmanager
    async def _call(self, name: str, context: Context, running: set[Task]) -> AsyncGenerator[None, None]:
        """Surrounds the run of a method: counts it, and ends the call with a status if it raises."""
        task = cast("Task", asyncio.current_task())
        code = Code.UNKNOWN
        is_one_too_many = running is self._foreground and len(running) >= self._max_calls
        if not is_one_too_many:
            running.add(task)
            task.add_done_callback(running.discard)  # not before gRPC has sent the outcome
        try:
            if self._stopping:
                raise WorkerUnavailableError(_STOPPING)
            if is_one_too_many:
                raise ResourceLimitError(
                    f"Expected at most {self._max_calls} calls at a time, found one more; call again when others are "
                    "done, or raise the server's limit"
                )
            yield
            code = Code.OK
        except grpc.aio.BaseError:  # the client has gone away while a message went there or back; gRPC knows
            code = Code.CANCELLED
            raise
        except asyncio.CancelledError:
            # Nearly always the client is gone, and this goes nowhere. But without a status a client that is there would
            # wait for ever.
            error = WorkerUnavailableError(_STOPPING) if self._stopping else StatusError(Code.CANCELLED, _CANCELLED)
            code = code_of(error)
            await _fail(context, error)
        except Exception as error:
            known = _known_error(error, name)
            code = code_of(known)
            if code == Code.INTERNAL:
                _logger.error("%s failed with an error that is not foreseen", name, exc_info=error)
            else:
                _logger.debug("%s failed: %s", name, error)
            await _fail(context, known)
        finally:
            self.counts.add(name, code.name)


async def _fail(context: Context, error: Exception) -> NoReturn:
    code = grpc.StatusCode[code_of(error).name]
    await context.abort(code, message_of(error), ((_DETAILS_KEY, details_of(error)),))


def _known_error(error: Exception, name: str) -> Exception:
    if isinstance(error, DecodeError):
        return InvalidValueError(f"Expected a message for {name}, found bytes that are none: {error}")
    return error


class _Received:
    """The messages that come in on a call."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        message = await self._context.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


async def _send(messages: AsyncIterator[bytes], context: Context) -> None:
    try:
        async for message in messages:
            await context.write(message)
    finally:
        # A method whose client has gone away ends now, and not when the garbage collector finds it.
        if isinstance(messages, AsyncGenerator):
            await messages.aclose()
