"""Routes calls to the methods of services, and returns their outcomes as statuses, regardless of the transport."""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import attrs
from google.protobuf.message import DecodeError

from fedstack.computations.leaves.work_scope import WorkScope, set_scope
from fedstack.errors import DeadlineExceededError, InvalidValueError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.survivors.tolerance import is_own
from fedstack.foundations.message_room import SMALL_BYTES, MessageRoom
from fedstack.foundations.traceback_filter import without_frames
from fedstack.observe.events import RpcEnded
from fedstack.observe.observers import observers
from fedstack.service.host.calls.call_log import CallLog
from fedstack.service.host.calls.call_table import CallCounts, CallTable, Task
from fedstack.service.host.calls.incoming_call import IncomingCall, Route, Work, too_slow
from fedstack.service.host.limits import ServerLimits, exceeded, option_of
from fedstack.transport.peers.methods import (
    DownloadMethod,
    ExchangeMethod,
    Method,
    Service,
    StreamMethod,
    UnaryMethod,
    UploadMethod,
)
from fedstack.transport.wire.connection_errors import TOKEN_REFUSED
from fedstack.transport.wire.status import Code, StatusError, code_of, details_of, message_of

_logger = logging.getLogger(__name__)

# Returns the answer to a call with one message.
Handle: TypeAlias = Callable[[bytes, IncomingCall], Awaitable[bytes]]

_OTHER_METHODS = "(other)"
_WATCHERS_SECONDS = 0.5
# How long a large message waits until the server has processed other messages.
_ROOM_SECONDS = 30.0
_STOPPING = "The server is stopping and accepts no calls; call another server, or retry later"
_CANCELLED = "The method was cancelled on the server"


@attrs.frozen
class Refusal:
    """Why a server does not run a call.

    Attributes:
      code: The status code with which the call ends.
      message: The message of the status.
      is_logged: Whether the log mentions the call.
      had_token: Whether the call included a token, for the log.
    """

    code: Code
    message: str
    is_logged: bool = False
    had_token: bool = False


class CallRouter:
    """Runs the methods that clients call, and counts the calls.

    Args:
      services: The services to route calls to.
      is_allowed: Returns whether calls with a token, or with none, are allowed. Called before the method is looked up.
      limits: The limits on the number, the size and the duration of calls.
      caller: Returns the name of a caller from its address, in gRPC's notation, and its token. Slots are shared fairly
        among callers.
      background: Services with separate limits for their calls. A busy server can therefore still report that it is
        healthy, and a stopping server does not wait for clients that watch its health.
      public: The services, including background services, that clients may call without permission.
      counts: The counts of ended calls; by default, new counts.

    Attributes:
      caller: Returns the name of a caller from its address and its token.
      counts: The counts of ended calls.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        is_allowed: Callable[[str | None], bool],
        limits: ServerLimits,
        caller: Callable[[str, str | None], str],
        background: Sequence[Service] = (),
        public: Sequence[Service] = (),
        counts: CallCounts | None = None,
    ) -> None:
        self.caller = caller
        self.counts = counts or CallCounts()
        self._log = CallLog()
        self._is_allowed = is_allowed
        self._limits = limits
        self._room = MessageRoom(limits.max_unary_bytes, _ROOM_SECONDS, limits.max_unary_bytes)
        self._foreground = CallTable(limits, "max_calls", limits.header_seconds)
        self._watches = CallTable(limits, "max_watches", 0.0)
        # Calls that join a running call. The running call already occupies a slot of the foreground table, so the
        # number of joining calls cannot exceed the number of foreground calls.
        self._joins = CallTable(limits, "max_calls", limits.header_seconds)
        self._checks = CallTable(limits, "max_watches", 0.0)  # separate, so that watches cannot block health checks
        self._stopping = False
        self._routes: dict[str, Route] = {}
        for in_background, group in ((False, services), (True, background)):
            for service in group:
                for name, methods in service.methods.items():
                    for method_name, method in methods.items():
                        path = f"{name}/{method_name}"
                        self._routes[f"/{path}"] = self._route(path, method, in_background=in_background)
        self._public = frozenset(f"/{n}/{m}" for service in public for n, ms in service.methods.items() for m in ms)
        self._known = f"its services are {', '.join(sorted({path.split('/')[1] for path in self._routes}))}"

    def find(self, path: str, token: str | None, own: Mapping[str, Route] = MappingProxyType({})) -> Route | Refusal:
        """Returns the route of a call, or why the call is refused. Called once per call.

        Args:
          path: The path of the method, such as `/grpc.health.v1.Health/Check`.
          token: The token of the call, if any.
          own: The routes that only the transport of the call has, by their paths.
        """
        if path not in self._public and not self._is_allowed(token):
            return Refusal(Code.UNAUTHENTICATED, TOKEN_REFUSED, is_logged=True, had_token=bool(token))
        return (
            self._routes.get(path)
            or own.get(path)
            or Refusal(Code.UNIMPLEMENTED, f"Expected a method of this server, found {path}; {self._known}")
        )

    def unary_route(self, name: str, handle: Handle) -> Route:
        """Returns a route for calls with one message and one answer, which take turns if these are large."""
        return self._foreground_route(name, lambda call: self._answer(name, call, handle), one_answer=True)

    def checking_route(self, name: str, handle: Handle) -> Route:
        """Returns a route like `unary_route` for calls that are no work, so that a busy server answers them, too."""
        return Route(name, self._checks, True, None, lambda call: self._answer(name, call, handle))

    def joining_route(self, name: str, work: Work) -> Route:
        """Returns a route for calls that join a call to which `hand_over` was applied, and whose slot they share."""
        return Route(name, self._joins, one_answer=False, header_seconds=self._limits.header_seconds, work=work)

    def hand_over(self, task: Task, successor: Task) -> None:
        """Transfers the slot of a call to the task that continues the call after its first answer."""
        self._foreground.hand_over(task, successor)

    def refuse(self, refusal: Refusal, peer: str) -> None:
        """Counts a call that is refused, and logs it if necessary. The transport ends the call with the status.

        Args:
          refusal: Why the call is refused.
          peer: The caller in gRPC's notation.
        """
        self._ended(_OTHER_METHODS, refusal.code, 0.0, 0, 0)
        if refusal.is_logged:
            self._log.refused(peer, had_token=refusal.had_token)

    async def run(self, route: Route, call: IncomingCall, caller: str) -> bytes | None:
        """Runs a call in its task, counts it, and ends it with a status if its work raises.

        Args:
          route: The route of the call.
          call: The call. Its task is the current task, and no other call has run in it.
          caller: The name of the caller.

        Returns:
          The answer to send, if the route has one answer and the call has not failed.
        """
        name, table = route.name, route.table
        code, result = Code.UNKNOWN, None
        try:
            # Each call runs in its own task, so the scope affects no other call.
            set_scope(_scope_of(caller, call.peer))
            table.add(call.task, caller)
            if self._stopping:
                raise WorkerUnavailableError(_STOPPING)
            result = await route.work(call)
            code = Code.OK
            return result
        except call.disconnected as error:  # during a message; the transport handles that
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
            await _fail(call, error, cancelled)
        except Exception as error:
            known = _known_error(error, name)
            code = code_of(known)
            if code == Code.INTERNAL and not is_own(known):
                _logger.error("%s failed with an unexpected error", name, exc_info=error)
            else:
                _logger.debug("%s failed: %s", name, error)
                self._log.failed(call.peer, call.method or name, known)
            await _fail(call, known, error)
        finally:
            if call.method is not None:
                sent = call.bytes_sent + len(result or b"")
                self._ended(call.method, code, time.perf_counter() - call.begun, call.bytes_received, sent)
        return None

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

        Clients may retry these calls on another server or later. Without this status, the transport would report the
        calls as cancelled.
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

    def _route(self, name: str, method: Method, *, in_background: bool) -> Route:
        work, one_answer = self._work_of(name, method), isinstance(method, (UnaryMethod, UploadMethod))
        if not in_background:
            return self._foreground_route(name, work, one_answer=one_answer)
        table = self._checks if isinstance(method, UnaryMethod) else self._watches
        return Route(name, table, one_answer, header_seconds=None, work=work)

    def _foreground_route(self, name: str, work: Work, *, one_answer: bool) -> Route:
        return Route(name, self._foreground, one_answer, self._limits.header_seconds, work)

    def _work_of(self, name: str, method: Method) -> Work:
        match method:
            case UnaryMethod(handle):
                answer: Handle = lambda request, _: handle(request)  # noqa: E731
                return lambda call: self._answer(name, call, answer)
            case UploadMethod(handle):
                return lambda call: handle(call.incoming())
            case DownloadMethod(handle):

                async def download(call: IncomingCall) -> None:
                    await call.send_parcels(handle(await call.only_message(name)))

                return download
            case ExchangeMethod(handle):
                return lambda call: call.send_parcels(handle(call.incoming()))
            case StreamMethod(handle):
                return lambda call: call.send(handle(call))

    async def _answer(self, name: str, call: IncomingCall, handle: Handle) -> bytes:
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
            call.task.add_done_callback(lambda _: give_back())  # after the response has been sent
        return response

    async def _take_room(self, size: int) -> None:
        if not await self._room.take(size):
            raise exceeded(
                self._limits, "max_unary_bytes", f"no room for {size} more", "retry when other calls have ended"
            )

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


async def _fail(call: IncomingCall, error: Exception, raised: BaseException) -> None:
    """Ends a call with the status of an error, and drops the error's frames."""
    code, message, details = code_of(error), message_of(error), details_of(error)
    without_frames(raised)
    await call.fail(code, message, details)


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
