"""Routes calls from gRPC to the methods of services, and returns their outcomes as statuses."""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

from google.protobuf.message import DecodeError

from fedstack.computations.leaves.work_scope import WorkScope, set_scope
from fedstack.errors import DeadlineExceededError, InvalidValueError, ResourceLimitError, WorkerUnavailableError
from fedstack.foundations.message_room import SMALL_BYTES, MessageRoom
from fedstack.foundations.traceback_filter import without_frames
from fedstack.observe.events import RpcEnded
from fedstack.observe.observers import observers
from fedstack.service.host.call_log import CallLog
from fedstack.service.host.call_stream import CallStream, Context, Task, WholeCalls, too_slow
from fedstack.service.host.call_table import CallCounts, CallTable
from fedstack.service.host.limits import ServerLimits, exceeded, option_of
from fedstack.transport.grpc.credential_files import TOKEN_REFUSED, bearer_token
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.methods import (
    DownloadMethod,
    ExchangeMethod,
    Method,
    Service,
    StreamMethod,
    UnaryMethod,
    UploadMethod,
)
from fedstack.transport.wire.parcels import JOIN, SUFFIX
from fedstack.transport.wire.status import DETAILS_KEY, Code, StatusError, code_of, details_of, message_of

_logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
_Work: TypeAlias = Callable[[CallStream], Awaitable[bytes | None]]
_Handle: TypeAlias = Callable[[bytes, CallStream], Awaitable[bytes]]

_OTHER_METHODS = "(other)"
_WATCHERS_SECONDS = 0.5
# How long a large message waits until the server has processed other messages.
_ROOM_SECONDS = 30.0
_STOPPING = "The server is stopping and accepts no calls; call another server, or retry later"
_CANCELLED = "The method was cancelled on the server"


class CallRouter(grpc.GenericRpcHandler):
    """Runs the methods that clients call, and counts the calls.

    Args:
      services: The services to route calls to.
      is_allowed: Returns whether a call with the given metadata is allowed. Called before the method is looked up.
      limits: The limits on the number, the size and the duration of calls.
      caller: Returns the name of a caller. Slots are shared fairly among callers.
      background: Services with separate limits for their calls. A busy server can therefore still report that it is
        healthy, and a stopping server does not wait for clients that watch its health.
      public: The services, including background services, that clients may call without permission.
      counts: The counts of ended calls; by default, new counts.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        is_allowed: Callable[[Metadata], bool],
        limits: ServerLimits,
        caller: Callable[[Context], str],
        background: Sequence[Service] = (),
        public: Sequence[Service] = (),
        counts: CallCounts | None = None,
    ) -> None:
        self.counts = counts or CallCounts()
        self._log = CallLog()
        self._is_allowed = is_allowed
        self._limits = limits
        self._caller = caller
        self._room = MessageRoom(limits.max_unary_bytes, _ROOM_SECONDS, limits.max_unary_bytes)
        self._foreground = CallTable(limits, "max_calls", limits.header_seconds)
        self._watches = CallTable(limits, "max_watches", 0.0)
        # Calls that join a running call. The running call already occupies a slot of the foreground table, so the
        # number of joining calls cannot exceed the number of foreground calls.
        self._joins = CallTable(limits, "max_calls", limits.header_seconds)
        self._wholes = WholeCalls(self._foreground.hand_over)
        self._checks = CallTable(limits, "max_watches", 0.0)  # separate, so that watches cannot block health checks
        self._stopping = False
        self._handlers: dict[str, Handler] = {}
        for in_background, group in ((False, services), (True, background)):
            for service in group:
                for name, methods in service.methods.items():
                    for method_name, method in methods.items():
                        path = f"{name}/{method_name}"
                        self._handlers[f"/{path}"] = self._handler(path, method, in_background=in_background)
                        if isinstance(method, ExchangeMethod):
                            self._handlers[f"/{path}{SUFFIX}"] = self._whole_handler(path, method)
                            self._handlers[f"/{name}/{JOIN}"] = self._join_handler(f"{name}/{JOIN}")
        self._public = frozenset(f"/{n}/{m}" for service in public for n, ms in service.methods.items() for m in ms)
        self._known = f"its services are {', '.join(sorted({path.split('/')[1] for path in self._handlers}))}"

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Returns the handler of a call. gRPC calls this method once per call."""
        path = handler_call_details.method
        metadata = cast("Metadata", handler_call_details.invocation_metadata or ())
        if path not in self._public and not self._is_allowed(metadata):
            had_token = bool(bearer_token(metadata))
            return self._refusal(
                Code.UNAUTHENTICATED, TOKEN_REFUSED, lambda peer: self._log.refused(peer, had_token=had_token)
            )
        return self._handlers.get(path) or self._refusal(
            Code.UNIMPLEMENTED, f"Expected a method of this server, found {path}; {self._known}"
        )

    @property
    def running(self) -> int:
        """The number of running calls, excluding calls of background services."""
        return len(self._foreground.running)

    async def wait_idle(self) -> None:
        """Waits until no call is running, except calls of background services."""
        while running := {*self._foreground.running, *self._joins.running}:
            await asyncio.wait(running)

    async def end_calls(self) -> None:
        """Ends all running and new calls with the status UNAVAILABLE, and waits until they have ended.

        Clients may retry these calls on another server or later. gRPC itself would report the calls as cancelled.
        """
        self._stopping = True
        watching = {*self._watches.running, *self._checks.running}
        if watching:  # let calls that watch the server's health end first
            await asyncio.wait(watching, timeout=_WATCHERS_SECONDS)
        tables = self._foreground, self._joins, self._watches, self._checks
        while running := {task for table in tables for task in table.running}:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    def _handler(self, name: str, method: Method, *, in_background: bool) -> Handler:
        # gRPC calls a handler of single messages only after the message has been received. All handlers here are
        # therefore stream handlers: a call counts from its start, can be refused before the client sends anything, and
        # its message can be freed early.
        if in_background:
            table = self._checks if isinstance(method, UnaryMethod) else self._watches
        else:
            table = self._foreground
        one_answer = isinstance(method, (UnaryMethod, UploadMethod))
        return self._served(
            name, table, self._work_of(name, method), one_answer=one_answer, in_background=in_background
        )

    def _work_of(self, name: str, method: Method) -> _Work:
        match method:
            case UnaryMethod(handle):
                answer: _Handle = lambda request, _: handle(request)  # noqa: E731
                return lambda call: self._answer(name, call, answer)
            case UploadMethod(handle):
                return lambda call: handle(call.incoming())
            case DownloadMethod(handle):

                async def download(call: CallStream) -> None:
                    await call.send_parcels(handle(await call.only_message(name)))

                return download
            case ExchangeMethod(handle):
                return lambda call: call.send_parcels(handle(call.incoming()))
            case StreamMethod(handle):
                return lambda call: call.send(handle(call))

    def _whole_handler(self, name: str, method: ExchangeMethod) -> Handler:
        answer = functools.partial(self._wholes.answer, method)
        return self._served(name, self._foreground, lambda call: self._answer(name, call, answer), one_answer=True)

    def _join_handler(self, name: str) -> Handler:
        async def join(call: CallStream) -> None:
            await call.send_parcels(self._wholes.join(await call.only_message(name), call))

        return self._served(name, self._joins, join, one_answer=False)

    def _served(
        self, name: str, table: CallTable, work: _Work, *, one_answer: bool, in_background: bool = False
    ) -> Handler:
        header_seconds = None if in_background else self._limits.header_seconds

        async def handle(_: object, context: Context) -> bytes | None:
            return await self._run(name, context, table, header_seconds, work)

        if one_answer:
            return grpc.stream_unary_rpc_method_handler(cast("Any", handle))
        return grpc.stream_stream_rpc_method_handler(cast("Any", handle))

    async def _answer(self, name: str, call: CallStream, handle: _Handle) -> bytes:
        """Waits for room for the request, runs the method, and returns the response once there is room for it."""
        request = await call.only_message(name)
        size = len(request)
        if size > SMALL_BYTES:
            await self._take_room(size)
        try:
            answer = handle(request, call)
            del request
            response = await answer
        finally:
            self._room.give_back(size)
        if len(response) > SMALL_BYTES:
            await self._take_room(len(response))
            give_back = functools.partial(self._room.give_back, len(response))
            call.task.add_done_callback(lambda _: give_back())  # after gRPC has sent the response
        return response

    async def _take_room(self, size: int) -> None:
        if not await self._room.take(size):
            raise exceeded(
                self._limits, "max_unary_bytes", f"no room for {size} more", "retry when other calls have ended"
            )

    def _refusal(self, code: Code, message: str, note: Callable[[str], None] = lambda peer: None) -> Handler:
        async def refuse(_: object, context: Context) -> None:
            self._ended(_OTHER_METHODS, code, 0.0, 0, 0)
            note(context.peer())
            await _abort(context, code, message)

        # Only this kind of handler answers without waiting for a message, so it can refuse calls of every kind.
        return grpc.stream_stream_rpc_method_handler(cast("Any", refuse))

    async def _run(
        self, name: str, context: Context, table: CallTable, header_seconds: float | None, work: _Work
    ) -> bytes | None:
        """Runs the work of a call in the call's task, counts the call, and ends it with a status if the work raises."""
        call = CallStream(context, cast("Task", asyncio.current_task()), name, table.silent, header_seconds)
        code, result = Code.UNKNOWN, None
        try:
            caller = self._caller(context)
            # Each call runs in its own task, so the scope affects no other call.
            set_scope(_scope_of(caller, context.peer()))
            table.add(call.task, caller)
            if self._stopping:
                raise WorkerUnavailableError(_STOPPING)
            result = await work(call)
            code = Code.OK
            return result
        except grpc.aio.BaseError as error:  # the client disconnected during a message; gRPC handles that
            code = Code.CANCELLED
            raise without_frames(error) from None
        except asyncio.CancelledError as cancelled:
            # Nearly always the client has disconnected, and the status is lost. But a client that is still connected
            # would wait forever without a status.
            error: Exception = StatusError(Code.CANCELLED, _CANCELLED)
            if self._stopping:
                error = WorkerUnavailableError(_STOPPING)
            elif table.gave_way(call.task):
                error = too_slow(self._limits.header_seconds) if table is self._foreground else _gave_way()
            code = code_of(error)
            await _fail(context, error, cancelled)
        except Exception as error:
            known = _known_error(error, name)
            code = code_of(known)
            if code == Code.INTERNAL:
                _logger.error("%s failed with an unexpected error", name, exc_info=error)
            else:
                _logger.debug("%s failed: %s", name, error)
                self._log.failed(context.peer(), call.method or name, known)
            await _fail(context, known, error)
        finally:
            if call.method is not None:
                sent = call.bytes_sent + len(result or b"")
                self._ended(call.method, code, time.perf_counter() - call.begun, call.bytes_received, sent)
        return None

    def _ended(self, name: str, code: Code, seconds: float, received: int, sent: int) -> None:
        """Counts an ended call and emits its event."""
        self.counts.add(name, code.name)
        if observers.present:
            observers.tell(
                RpcEnded(method=name, code=code.name, seconds=seconds, bytes_received=received, bytes_sent=sent)
            )


@functools.lru_cache(maxsize=1024)
def _scope_of(caller: str, origin: str) -> WorkScope:
    """Returns the scope of calls over one connection."""
    return WorkScope(caller=caller, origin=origin)


def _gave_way() -> DeadlineExceededError:
    return DeadlineExceededError(
        "The call had not sent its first message when another call needed its slot; send the first message "
        f"immediately, or start the worker with a larger {option_of('max_watches')}"
    )


async def _fail(context: Context, error: Exception, raised: BaseException) -> None:
    """Ends a call with the status of an error, and drops the error's frames."""
    code, message, details = code_of(error), message_of(error), details_of(error)
    without_frames(raised)
    await _abort(context, code, message, ((DETAILS_KEY, details),))


async def _abort(context: Context, code: Code, message: str, metadata: Metadata = ()) -> None:
    """Ends a call with a status. gRPC completes the call when its handler returns."""
    try:
        await context.abort(grpc.StatusCode[code.name], message, metadata)
    except grpc.aio.AbortError as error:
        # gRPC's context keeps the error, whose frames would keep the context and all data of the call alive.
        without_frames(error)


def _known_error(error: Exception, name: str) -> Exception:
    """Returns the error to report to the client, converting Python and protobuf errors to fedstack errors."""
    if isinstance(error, DecodeError):
        return InvalidValueError(f"Expected a message for {name}, found bytes that cannot be decoded: {error}")
    # The frames of the errors below refer to the excessive data, and the client does not need them.
    if isinstance(error, MemoryError):
        found = f": {error}" if str(error) else ""
        return ResourceLimitError(
            f"The server has too little memory for {name}{found}; send or request less data at a time, or retry "
            "when other calls have ended"
        )
    if isinstance(error, RecursionError):
        return ResourceLimitError(
            f"The values or computations for {name} are nested too deeply for Python's recursion limit; flatten them"
        )
    return error
