"""Writes events to a file in the JSON trace event format, as a timeline for ui.perfetto.dev and chrome://tracing.

A track shows nested spans. Each call has a track. The spans within the call are shown on the same track, unless they
overlap with other spans there; such spans are shown on a separate track of their own kind. The parts of phases that run
on workers are shown on separate tracks for each worker.
"""

import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fedstack.observe.client_events import (
    ClientFailed,
    ClientsChanged,
    ClientsHandedIn,
    ClientsRetried,
    ClientsTakenOver,
)
from fedstack.observe.events import (
    CallEnded,
    CallRetried,
    CallStarted,
    Event,
    Folded,
    LeafCompiled,
    LeafLoaded,
    LoopStalled,
    PhaseEnded,
    PhaseStarted,
    RpcEnded,
    SessionClosed,
    SessionOpened,
    WorkerLost,
    WorkerReady,
)
from fedstack.observe.observers import Observer, Subscription, add_observer

Entry = dict[str, Any]

# The kinds of tracks from top to bottom. The tracks of workers follow below.
_KINDS = ("calls", "phases", "folds", "functions loading", "requests", "sessions", "event loop", "other")
_IDS = ("time", "trace", "call", "parent", "phase")
_COUNTED = ("done", "running", "failed")
_END = b"\n]\n"


@attrs.define(eq=False)
class _Track:
    """One line of the timeline.

    Attributes:
      number: The `tid` of the track's entries.
      label: The name of the track.
      spans: The ids of the open spans, outermost first.
      until: The time of the last entry, in microseconds.
    """

    number: int
    label: str
    spans: list[str] = attrs.field(factory=list[str])
    until: int = 0

    def moment(self, seconds: float) -> int:
        """Returns the time of the next entry, in microseconds.

        Events may be slightly out of order, but entries must not be. The time is therefore never before `until`.
        """
        self.until = max(self.until, _micros(seconds))
        return self.until


class TraceTracks:
    """The tracks of one process, with their open spans."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._tracks: list[_Track] = []
        self._kinds: dict[str, list[_Track]] = {}
        self._open: dict[str, _Track] = {}  # by the ids of spans
        self._clients: dict[str, Counter[str]] = {}  # by the ids of calls
        self._new: list[Entry] = []
        self._makers: Mapping[type[Event], Callable[[Any], None]] = {
            CallStarted: lambda e: self._begin(e, e.call, "calls", e.computation or "call"),
            CallRetried: self._retried,
            CallEnded: self._call_ended,
            ClientFailed: lambda e: self._of_call(e, "client failed"),
            ClientsHandedIn: lambda e: self._of_call(e, "clients handed in"),
            ClientsRetried: lambda e: self._of_call(e, "clients retried"),
            ClientsTakenOver: lambda e: self._of_call(e, "clients taken over"),
            PhaseStarted: lambda e: self._begin(e, e.phase, _kind_of(e), e.functions or "phase"),
            PhaseEnded: lambda e: self._end(e, e.phase),
            ClientsChanged: self._clients_changed,
            Folded: lambda e: self._complete(e, "folds", e.what),
            LeafLoaded: lambda e: self._complete(e, "functions loading", e.name),
            LeafCompiled: lambda e: self._complete(e, "functions compiling", e.name),
            RpcEnded: lambda e: self._complete(e, "requests", e.method.rpartition("/")[2]),
            LoopStalled: lambda e: self._complete(e, "event loop", "stall"),
            SessionOpened: lambda e: self._instant(e, self._first("sessions"), "session opened"),
            SessionClosed: lambda e: self._instant(e, self._first("sessions"), "session closed"),
            WorkerReady: lambda e: self._instant(e, self._first(_kind_of(e)), "worker ready"),
            WorkerLost: lambda e: self._instant(e, self._first(_kind_of(e)), "worker lost"),
        }

    def entries(self, event: Event) -> list[Entry]:
        """Returns the entries that an event adds to the trace."""
        self._new = []
        if not self._tracks:
            self._name("process_name", 0, f"fedstack, process {self._process}")
        maker = self._makers.get(type(event))
        if maker is not None:
            maker(event)
        else:
            self._instant(event, self._open.get(event.parent) or self._first("other"), type(event).__name__)
        return self._new

    def _begin(self, event: Event, span: str, kind: str, name: str) -> None:
        track = self._open.get(event.parent)
        if track is None or track.spans[-1] != event.parent or kind not in _KINDS:
            track = self._free(kind)
        track.spans.append(span)
        self._open[span] = track
        self._add("B", name, track.moment(event.time), track, facts_of(event))

    def _end(self, event: Event, span: str) -> None:
        track = self._open.get(span)
        if track is None:  # the span was ended together with its call
            return
        moment = track.moment(event.time)
        inner = ""
        while inner != span:  # open spans within this span end with it
            inner = track.spans.pop()
            del self._open[inner]
            self._add("E", "", moment, track, facts_of(event) if inner == span else {})

    def _call_ended(self, event: CallEnded) -> None:
        track = self._open.get(event.call)
        self._end(event, event.call)
        if self._clients.pop(event.call, None) is not None and track is not None:
            self._count(event.time, track, Counter())

    def _of_call(self, event: Event, name: str) -> None:
        self._instant(event, self._open.get(event.call) or self._first("other"), name)

    def _retried(self, event: CallRetried) -> None:
        track = self._open.get(event.call) or self._first("other")
        self._instant(event, track, "retry")
        if event.call in self._clients:
            self._clients[event.call] = Counter()
            self._count(event.time, track, Counter())

    def _clients_changed(self, event: ClientsChanged) -> None:
        track = self._open.get(event.call)  # `None` on a worker: the call's span belongs to the calling process
        counts = self._clients.setdefault(event.call if track is not None else "", Counter())
        counts["done"] += event.done
        counts["failed"] += event.failed
        counts["running"] += event.started - event.done - event.failed - event.given_up
        self._count(event.time, track, counts)

    def _count(self, seconds: float, track: _Track | None, counts: Counter[str]) -> None:
        name = "clients" if track is None else f"clients of {track.label}"
        values = {what: max(0, counts[what]) for what in _COUNTED}
        self._add("C", name, _micros(seconds), None, values)

    def _complete(
        self, event: Folded | LeafCompiled | LeafLoaded | RpcEnded | LoopStalled, kind: str, name: str
    ) -> None:
        begin = _micros(event.time - event.seconds)
        track = self._free(kind, begin)
        track.until = max(begin, _micros(event.time))
        self._add("X", name, begin, track, facts_of(event), dur=track.until - begin)

    def _instant(self, event: Event, track: _Track, name: str) -> None:
        self._add("i", name, track.moment(event.time), track, facts_of(event), s="t")

    def _first(self, kind: str) -> _Track:
        return self._kinds[kind][0] if kind in self._kinds else self._free(kind)

    def _free(self, kind: str, begin: int | None = None) -> _Track:
        """Returns the first track of a kind without open spans, and without entries after `begin`, or a new track."""
        tracks = self._kinds.setdefault(kind, [])
        for track in tracks:
            if not track.spans and (begin is None or track.until <= begin):
                return track
        track = _Track(len(self._tracks) + 1, kind if not tracks else f"{kind} {len(tracks) + 1}")
        tracks.append(track)
        self._tracks.append(track)
        self._name("thread_name", track.number, track.label)
        place = _KINDS.index(kind) if kind in _KINDS else len(_KINDS) + list(self._kinds).index(kind)
        self._name("thread_sort_index", track.number, 1000 * place + len(tracks))
        return track

    def _name(self, what: str, track: int, value: str | int) -> None:
        key = "sort_index" if isinstance(value, int) else "name"
        self._new.append({"name": what, "ph": "M", "pid": self._process, "tid": track, "args": {key: value}})

    def _add(self, form: str, name: str, moment: int, track: _Track | None, facts: Entry, **more: Any) -> None:
        entry: Entry = {"name": name} if name else {}
        entry.update(ph=form, ts=moment, pid=self._process, tid=0 if track is None else track.number, **more)
        if facts:
            entry["args"] = facts
        self._new.append(entry)


def _kind_of(event: PhaseStarted | WorkerReady | WorkerLost) -> str:
    return f"worker {event.worker}" if event.worker else "phases"


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def facts_of(event: Event) -> Entry:
    """Returns the fields of an event, except those that determine its position in the trace."""
    found = attrs.asdict(event, filter=lambda field, value: field.name not in _IDS and value != "")
    return {**found, "call": event.call} if event.call else found


class TraceFile(Observer):
    """Writes a trace in the JSON trace event format. The file is valid JSON after each event.

    Args:
      path: The path of the file. An existing file is overwritten.

    Raises:
      OSError: If the file cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._tracks = TraceTracks()
        # Unbuffered, so that no events are lost if the process is killed.
        self._file: io.FileIO = open(path, "wb", buffering=0)  # noqa: SIM115
        self._size = 0  # the size of the file without `_END`

    def observe(self, event: Event) -> None:
        entries = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in self._tracks.entries(event))
        if entries:
            self._append(entries.encode())

    def close(self) -> None:
        """Completes the trace and closes the file."""
        with contextlib.suppress(OSError):
            if not self._size:
                self._write(b"[]\n")
        self._file.close()

    def _append(self, entries: bytes) -> None:
        text = (b",\n" if self._size else b"[\n") + entries
        try:
            self._write(text + _END)
        except OSError as error:
            with contextlib.suppress(OSError):  # remove the partly written entries
                self._file.truncate(self._size)
                self._write(_END if self._size else b"[]\n")
            raise OSError(error.errno, error.strerror, self._path) from None
        self._size += len(text)

    def _write(self, data: bytes) -> None:
        """Writes data at `_size`, over the previous end of the file."""
        self._file.seek(self._size)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def __repr__(self) -> str:
        return f"<TraceFile {self._path}>"


def trace_to(path: str | os.PathLike[str]) -> Subscription:
    """Starts to write a trace of this process, with its calls, phases, clients, workers and retries.

        with fedstack.observe.trace_to("run.json"):
            train_round(model, clients)

    Open the file at https://ui.perfetto.dev or in chrome://tracing. Each event takes about 200 bytes. If writing to the
    file fails, a warning is logged and tracing ends, but the traced work continues.

    Args:
      path: The path of the file. An existing file is overwritten.

    Returns:
      A context manager that ends the trace on exit. Its method `remove` ends the trace, too.

    Raises:
      OSError: If the file cannot be created.
    """
    return add_observer(TraceFile(path))
