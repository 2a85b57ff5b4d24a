"""The subcommand `fedstack status`, which shows the sessions and calls of a server."""

import contextlib
import json
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from fedstack.command_line.command import SUCCESS, option, say, seconds, subcommand, table_lines
from fedstack.command_line.peer_options import (
    ABOUT_ADDRESS,
    PEER_OPTIONS,
    PLAIN,
    ask,
    failed,
    kind_of,
    peer_of,
    why_grpc,
)
from fedstack.contexts.progress_display import PlainText, choose_text_display
from fedstack.errors import AuthenticationError, FedstackError, RemoteError
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted, printable, size_text

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from fedstack.proto.extensions_pb2 import GetStatusResponse, Work
    from fedstack.proto.methods_pb2 import ListMethodsResponse, MethodDescription
    from fedstack.transport.grpc.credentials import ClientCredentials
    from fedstack.transport.peers.executor_stub import ExecutorStub
    from fedstack.transport.wire.addresses import Target

_T = TypeVar("_T")
_WIDTH = 100


def run(**given: Any) -> int:
    """Prints the sessions and calls of a server as tables or as JSON, once or repeatedly."""
    options = SimpleNamespace(**given)
    target, credentials = peer_of(options)

    def look() -> str:
        found = ask(target, credentials, options.timeout, lambda stub: _look(target, stub, credentials))
        return found.as_json(str(target)) if options.json else found.as_text(str(target))

    if not options.watch:
        try:
            text = look()
        except FedstackError as error:
            return failed(target, error, as_json=options.json)
        say(text)
        return SUCCESS
    with contextlib.suppress(KeyboardInterrupt):  # the normal way to stop
        _watch(target, look, options)
    return SUCCESS


def _watch(target: "Target", look: Callable[[], str], options: SimpleNamespace) -> None:
    """Shows the result of `look` repeatedly. Shows errors without stopping, since the server may become reachable."""
    with PlainText() if options.json else choose_text_display() as display:
        period = Deadline(options.interval)

        def rest() -> float:
            return period.left or 0.0

        for _ in Deadline().attempts_blocking(iter(rest, None)):
            period = Deadline(options.interval)
            try:
                text = look()
            except AuthenticationError:
                raise  # waiting does not help
            except FedstackError as error:
                text = json.dumps({"ok": False, "target": str(target), "error": str(error)})
                if not options.json:
                    text = f"{target}: {error}"
            display.show(printable(text))


@attrs.frozen
class _Found:
    """What a server reports about itself.

    Attributes:
      status: The state and history of the server; `None` if it does not report them.
      methods: The registered methods; `None` if the server has no service for methods.
      kind: A description of the server if both `status` and `methods` are `None`.
      why_grpc: Why fedstack's clients on this machine use gRPC; empty if they use streams.
    """

    status: "GetStatusResponse | None"
    methods: "ListMethodsResponse | None"
    kind: str | None
    why_grpc: str = ""

    def as_json(self, target: str) -> str:
        """Returns the report as one line of JSON."""
        found: dict[str, object] = {} if self.kind is None else {"service": self.kind}
        if self.status is not None:
            found = {**_as_object(self.status), "why_grpc": self.why_grpc or None}
        if self.methods is not None:
            found = {**_fields(self.methods, "version uptime_seconds"), **found}
            found["methods"] = [_method_as_object(method) for method in self.methods.method]
        return json.dumps({"ok": True, "target": target, **found})

    def as_text(self, target: str) -> str:
        """Returns the report as tables."""
        lines: list[str] = []
        if self.status is not None:
            lines += status_lines(target, self.status, self.why_grpc)
        elif self.methods is not None:
            up = _duration(self.methods.uptime_seconds)
            lines.append(f"{target}: fedstack {self.methods.version}, up for {up}")
        else:
            use = "can be used one value at a time, but " if self.kind == PLAIN else ""
            lines.append(f"{target}: {self.kind}, which {use}does not report its status")
        if self.methods is not None and self.methods.method:
            lines += method_lines(self.methods)
        return "\n".join(lines)


async def _look(target: "Target", stub: "ExecutorStub", credentials: "ClientCredentials") -> _Found:
    from fedstack.transport.peers.method_stub import MethodStub

    status = await _if_there(stub.get_status())
    methods = await _if_there(MethodStub(stub.connection).list(with_calls=True))
    kind = await kind_of(target, stub) if status is None and methods is None else None
    return _Found(status, methods, kind, "" if status is None else await why_grpc(target, credentials))


async def _if_there(answer: "Awaitable[_T]") -> "_T | None":
    """Returns the response of a service; `None` if the server does not implement the service."""
    try:
        return await answer
    except RemoteError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return None


def _fields(message: "Message", names: str) -> dict[str, object]:
    """Returns the named fields of a message, with floats rounded to milliseconds.

    Args:
      message: The message.
      names: The names of the fields, separated by spaces.
    """
    found = {name: getattr(message, name) for name in names.split()}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}


def _as_object(status: "GetStatusResponse") -> dict[str, object]:
    stopping = status.HasField("seconds_until_stop")
    found: dict[str, object] = {
        **_fields(status, "version process uptime_seconds"),
        "stopping": stopping,
        **(_fields(status, "seconds_until_stop") if stopping else {"seconds_until_stop": None}),
        **_fields(status, "running values bytes threads"),
        "max_threads": status.max_threads or None,
        **_fields(status, "busy_threads abandoned_threads"),
        "resident_bytes": status.resident_bytes or None,
        **_fields(status, "stalls longest_stall_seconds"),
        **_fields(status, "compilations compilations_from_cache compilation_seconds streams"),
        "streams_at": status.streams_at or None,
        "sessions": [
            {
                **_fields(session, "id clients values bytes lease_seconds_left"),
                "scheduled_waiting": session.started_waiting,
                "scheduled_running": session.started_running,
                "scheduled_ended": session.started_ended,
                "scheduled_failed": session.started_failed,
            }
            for session in status.session
        ],
        "work": [
            {
                **_fields(work, "session function clients seconds"),
                "first_client": work.first_client if work.clients else None,
                "client": work.client if work.HasField("client") else None,
            }
            for work in status.work
        ],
        "phases": [
            {
                **_fields(phase, "session first_client clients done running failed handed_in left lost moved twice"),
                "origin": _origin(phase) or None,
            }
            for phase in status.phase
        ],
        "calls": [_fields(call, "method code count") for call in status.calls],
        "limits": {limit.name: limit.value for limit in status.limit},
    }
    if status.HasField("dispatcher"):
        workers = list(status.dispatcher.worker)
        found["dispatcher"] = {**_fields(status.dispatcher, "datasets passes consumers"), "data_workers": workers}
    if status.HasField("data_worker"):
        found["data_worker"] = _fields(status.data_worker, "attends streams ranges elements bytes")
    return found


def _method_as_object(method: "MethodDescription") -> dict[str, object]:
    calls = method.calls
    return {
        "name": method.name,
        "running": calls.running,
        "calls": calls.ended,
        "errors": calls.failed,
        "p50_seconds": round(calls.median_seconds, 6),
        "p99_seconds": round(calls.p99_seconds, 6),
    }


def method_lines(methods: "ListMethodsResponse") -> Iterator[str]:
    """Yields the lines of a table of registered methods."""
    yield ""
    yield from table_lines(
        ("registered", "calls", "errors", "running", "p50", "p99"),
        [
            (
                method.name,
                f"{method.calls.ended}",
                f"{method.calls.failed}",
                f"{method.calls.running}",
                f"{1000 * method.calls.median_seconds:.3g} ms",
                f"{1000 * method.calls.p99_seconds:.3g} ms",
            )
            for method in methods.method
        ],
    )


def status_lines(target: str, status: "GetStatusResponse", reason: str = "") -> Iterator[str]:
    """Yields the lines of a report on a server's status, including its tables.

    Args:
      target: The server.
      status: The status.
      reason: Why clients on this machine use gRPC; empty if they use streams.
    """
    yield f"{target}: fedstack {status.version}, process {status.process}, up for {_duration(status.uptime_seconds)}"
    if status.HasField("seconds_until_stop"):
        yield f"stopping: running calls have at most {status.seconds_until_stop:.0f} s left; new clients are rejected"
    yield (
        f"sessions {len(status.session)}, values {status.values}, bytes {size_text(status.bytes)}, "
        f"running {status.running}"
    )
    memory = size_text(status.resident_bytes) if status.resident_bytes else "unknown"
    most = f" of {status.max_threads}" if status.max_threads else ""
    if 0 < status.max_threads < status.threads:
        most = f" ({status.max_threads}, and extra ones for work that waits or is cancelled)"
    yield (
        f"threads {status.threads}{most}, busy {status.busy_threads}, on cancelled work {status.abandoned_threads}, "
        f"memory {memory}"
    )
    if reason:
        yield f"streams {status.streams}; clients on this machine use gRPC: {reason}"
    else:
        place = status.streams_at.removeprefix("unix:").replace(":", "port ")
        yield f"streams {status.streams} at {place}; clients on this machine use them"
    if status.stalls:
        yield f"event loop blocked {counted(status.stalls, 'time')}, for at most {status.longest_stall_seconds:.2g} s"
    if status.compilations:
        cached = f" ({status.compilations_from_cache} from a cache on disk)" if status.compilations_from_cache else ""
        compiled = counted(status.compilations, "function")
        yield f"compiled {compiled}{cached} in {status.compilation_seconds:.2g} s"
    yield from _data_lines(status)
    if status.session:
        yield ""
        yield from table_lines(
            ("session", "clients", "values", "bytes", "lease left"),
            [
                (s.id, f"{s.clients}", f"{s.values}", size_text(s.bytes), f"{s.lease_seconds_left:.0f} s")
                for s in status.session
            ],
        )
    scheduled = [session for session in status.session if session.started_running or session.started_ended]
    if scheduled:
        yield ""
        yield from table_lines(
            ("scheduled calls of", "waiting", "in flight", "ended", "failed", "live values"),
            [
                (s.id, *map(str, (s.started_waiting, s.started_running, s.started_ended, s.started_failed, s.values)))
                for s in scheduled
            ],
        )
    if status.phase:
        yield ""
        yield from table_lines(
            ("phase of", "clients", "done", "running", "failed", "handed in", "left to others", "origin"),
            [
                (
                    p.session,
                    _clients(p),
                    *map(str, (p.done, p.running, p.failed, p.handed_in, p.left)),
                    _origin(p, target),
                )
                for p in status.phase
            ],
        )
    composed = [phase for phase in status.phase if phase.lost or phase.moved or phase.twice]
    if composed:
        yield ""
        yield from table_lines(
            ("workers of the phase of", "clients", "to run again", "moved", "run twice"),
            [(p.session, _clients(p), *map(str, (p.lost, p.moved, p.twice))) for p in composed],
        )
    if status.work:
        sessions = {session.id for session in status.session}
        yield ""
        yield from table_lines(
            ("function", "session", "client", "runs for"),
            [
                (
                    work.function,
                    work.session if work.session in sessions else f"{work.session} (ended)",
                    f"{work.client}" if work.HasField("client") else _clients(work),
                    f"{work.seconds:.1f} s",
                )
                for work in status.work
            ],
            words=2,
        )
    if status.calls:
        yield ""
        yield from table_lines(
            ("method", "code", "calls"), [(call.method, call.code, f"{call.count}") for call in status.calls], words=2
        )
    if status.limit:
        yield ""
        limits = ", ".join(f"{limit.name.replace('_', '-')} {limit.value:.12g}" for limit in status.limit)
        yield from textwrap.wrap(f"limits: {limits}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _data_lines(status: "GetStatusResponse") -> Iterator[str]:
    """Yields the lines of a report on the state and history of a dispatcher or data worker."""
    if status.HasField("dispatcher"):
        known = status.dispatcher
        workers = f"{len(known.worker)}{': ' * bool(known.worker)}{', '.join(known.worker)}"
        yield f"datasets {known.datasets}, passes {known.passes}, consumers {known.consumers}, data workers {workers}"
    if status.HasField("data_worker"):
        read = status.data_worker
        yield (
            f"data worker, {'registered' if read.attends else 'not registered'} with its dispatcher: "
            f"streams {read.streams}; "
            f"read so far: ranges {read.ranges}, elements {read.elements}, bytes {size_text(read.bytes)}"
        )


def _origin(phase: "GetStatusResponse.Phase", own: str = "") -> str:
    """Returns where the clients of a phase come from; empty if the server, at `own`, has had them before."""
    origin = phase.origin
    if own and origin.server == own:
        return ""
    ways = {origin.LOST: "lost at", origin.MOVED: "moved from", origin.COPIED: "also at"}
    return f"{ways[origin.why]} {printable(origin.server)}" if origin.why in ways else ""


def _clients(work: "Work | GetStatusResponse.Phase") -> str:
    """Returns the index or indices of the clients of some work, or "-" for work on the server."""
    if work.clients <= 1:
        return f"{work.first_client}" if work.clients else "-"
    return f"{work.first_client} to {work.first_client + work.clients - 1}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


OPTIONS = (
    *PEER_OPTIONS,
    click.Option(["--watch"], is_flag=True, help="repeat until interrupted with Ctrl-C"),
    option("--interval", "SECONDS", "time between reports with --watch", type=seconds(0.1, 86_400), default=2.0),
)
COMMAND = subcommand("status", run, "Show the sessions, calls and limits of a server.", OPTIONS, more=ABOUT_ADDRESS)
