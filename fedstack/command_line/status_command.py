"""The subcommand `fedstack status`."""

import json
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from fedstack.command_line.command import SUCCESS, say, subcommand
from fedstack.command_line.peer_options import ABOUT_ADDRESS, PEER_OPTIONS, PLAIN, ask, failed, kind_of, peer_of
from fedstack.errors import FedstackError, RemoteError
from fedstack.foundations.error_text import counted, size_text

if TYPE_CHECKING:
    from fedstack.proto.extensions_pb2 import GetStatusResponse, Work
    from fedstack.proto.methods_pb2 import ListMethodsResponse, MethodDescription
    from fedstack.transport.peers.executor_stub import ExecutorStub

_T = TypeVar("_T")


def run(**given: Any) -> int:
    """Prints sessions and calls of a server, as tables or as JSON."""
    options = SimpleNamespace(**given)
    target, credentials = peer_of(options)

    async def look(stub: "ExecutorStub") -> "tuple[GetStatusResponse | None, ListMethodsResponse | None, str | None]":
        from fedstack.transport.peers.method_stub import MethodStub

        status = await _if_there(stub.get_status())
        methods = await _if_there(MethodStub(stub.connection).list(with_calls=True))
        kind = await kind_of(target, stub) if status is None and methods is None else None
        return status, methods, kind

    try:
        status, methods, kind = ask(target, credentials, options.timeout, look)
    except FedstackError as error:
        return failed(target, error, as_json=options.json)
    told: dict[str, object] = {} if kind is None else {"service": kind}
    if status is not None:
        told = _as_object(status)
    if methods is not None:
        told = {"version": methods.version, "uptime_seconds": round(methods.uptime_seconds, 3), **told}
        told["methods"] = [_method_as_object(method) for method in methods.method]
    if options.json:
        print(json.dumps({"ok": True, "target": str(target), **told}))
    elif status is not None:
        show(str(target), status)
    elif methods is not None:
        say(f"{target}: fedstack {methods.version}, up for {_duration(methods.uptime_seconds)}")
    else:
        use = "can be used value by value, and " if kind == PLAIN else ""
        say(f"{target}: {kind}, which {use}does not tell what it holds and has done")
    if methods is not None and methods.method and not options.json:
        show_methods(methods)
    return SUCCESS


async def _if_there(answer: "Awaitable[_T]") -> "_T | None":
    """Returns the answer of a service; `None` if the server has no such service."""
    try:
        return await answer
    except RemoteError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return None


def _as_object(status: "GetStatusResponse") -> dict[str, object]:
    return {
        "version": status.version,
        "uptime_seconds": round(status.uptime_seconds, 3),
        "stopping": status.HasField("seconds_until_stop"),
        "seconds_until_stop": round(status.seconds_until_stop, 3) if status.HasField("seconds_until_stop") else None,
        "running": status.running,
        "values": status.values,
        "bytes": status.bytes,
        "threads": status.threads,
        "busy_threads": status.busy_threads,
        "abandoned_threads": status.abandoned_threads,
        "resident_bytes": status.resident_bytes or None,
        "stalls": status.stalls,
        "longest_stall_seconds": round(status.longest_stall_seconds, 3),
        "sessions": [
            {
                "id": session.id,
                "clients": session.clients,
                "values": session.values,
                "bytes": session.bytes,
                "lease_seconds_left": round(session.lease_seconds_left, 3),
                "scheduled_waiting": session.started_waiting,
                "scheduled_running": session.started_running,
                "scheduled_ended": session.started_ended,
                "scheduled_failed": session.started_failed,
            }
            for session in status.session
        ],
        "work": [
            {
                "session": work.session,
                "function": work.function,
                "first_client": work.first_client if work.clients else None,
                "clients": work.clients,
                "seconds": round(work.seconds, 3),
            }
            for work in status.work
        ],
        "calls": [{"method": call.method, "code": call.code, "count": call.count} for call in status.calls],
    }


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


def show_methods(methods: "ListMethodsResponse") -> None:
    """Prints registered methods as a table."""
    say()
    _print_table(
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


def show(target: str, status: "GetStatusResponse") -> None:
    """Prints a status as tables."""
    say(f"{target}: fedstack {status.version}, up for {_duration(status.uptime_seconds)}")
    if status.HasField("seconds_until_stop"):
        say(f"stopping: running calls have {status.seconds_until_stop:.0f} s at most, and new clients are sent away")
    say(
        f"sessions {len(status.session)}, values {status.values}, bytes {size_text(status.bytes)}, "
        f"running {status.running}"
    )
    if status.threads or status.resident_bytes:  # older servers do not tell
        memory = size_text(status.resident_bytes) if status.resident_bytes else "unknown"
        say(
            f"threads {status.threads}, busy {status.busy_threads}, at cancelled work {status.abandoned_threads}, "
            f"memory {memory}"
        )
    if status.stalls:
        say(f"stood still {counted(status.stalls, 'time')}, for {status.longest_stall_seconds:.2g} s at most")
    if status.session:
        say()
        _print_table(
            ("session", "clients", "values", "bytes", "lease left"),
            [
                (s.id, f"{s.clients}", f"{s.values}", size_text(s.bytes), f"{s.lease_seconds_left:.0f} s")
                for s in status.session
            ],
        )
    scheduled = [session for session in status.session if session.started_running or session.started_ended]
    if scheduled:
        say()
        _print_table(
            ("scheduled calls of", "waiting", "in flight", "ended", "failed", "live values"),
            [
                (s.id, *map(str, (s.started_waiting, s.started_running, s.started_ended, s.started_failed, s.values)))
                for s in scheduled
            ],
        )
    if status.work:
        say()
        _print_table(
            ("function", "session", "client", "runs for"),
            [(work.function, work.session, _clients(work), f"{work.seconds:.1f} s") for work in status.work],
            words=2,
        )
    if status.calls:
        say()
        _print_table(
            ("method", "code", "calls"), [(call.method, call.code, f"{call.count}") for call in status.calls], words=2
        )


def _clients(work: "Work") -> str:
    """Returns at which clients a function runs; nothing for one that runs at the server."""
    if work.clients <= 1:
        return f"{work.first_client}" if work.clients else "-"
    return f"{work.first_client} to {work.first_client + work.clients - 1}"


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> None:
    """Prints rows under a header; the first columns, so many as `words` says, are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        say("  ".join(cells).rstrip())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


COMMAND = subcommand("status", run, "Show what a server holds and has done.", PEER_OPTIONS, more=ABOUT_ADDRESS)
