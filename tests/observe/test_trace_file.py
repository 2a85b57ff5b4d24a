"""The trace file: what is on it, and what becomes of it when the run or the disk ends early."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from fedstack.observe import (
    CallEnded,
    CallRetried,
    CallStarted,
    ClientsChanged,
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
    WorkCancelled,
    WorkerLost,
    WorkerReady,
    trace_to,
)
from fedstack.observe.observers import observers

Entry = dict[str, Any]
IDS = {"trace": "a" * 16, "call": "a" * 16}


def read(path: Path) -> list[Entry]:
    entries = json.loads(path.read_text())
    check(entries)
    return entries


def check(entries: list[Entry]) -> None:
    """Checks what viewers rely on: what each entry has, and that spans of a track are inside each other."""
    open_spans = defaultdict[int, list[str]](list)
    last = defaultdict[int, int](int)
    for entry in entries:
        assert {"ph", "pid", "tid"} <= set(entry)
        if entry["ph"] in "BEi":
            assert entry["ts"] >= last[entry["tid"]], "in order of time on each track"
            last[entry["tid"]] = entry["ts"]
        if entry["ph"] == "B":
            open_spans[entry["tid"]].append(entry["name"])
        elif entry["ph"] == "E":
            open_spans[entry["tid"]].pop()
    tracks = {entry["tid"] for entry in entries if entry["ph"] in "BEXi"}
    assert tracks == set(names(entries))


def names(entries: list[Entry]) -> dict[int, str]:
    return {entry["tid"]: entry["args"]["name"] for entry in entries if entry.get("name") == "thread_name"}


def traced(path: Path, *events: Event) -> list[Entry]:
    with trace_to(path):
        for event in events:
            observers.tell(event)
    return read(path)


def phase(number: int, time: float, parent: str = IDS["call"], worker: str = "") -> PhaseStarted:
    return PhaseStarted(
        **IDS,
        time=time,
        parent=parent,
        phase=f"{number:016x}",
        functions=f"f{number}",
        first_client=0,
        clients=3,
        worker=worker,
    )


def ended(begun: PhaseStarted, time: float) -> PhaseEnded:
    return PhaseEnded(
        **IDS,
        time=time,
        parent=begun.parent,
        phase=begun.phase,
        functions=begun.functions,
        first_client=0,
        clients=3,
        worker=begun.worker,
        seconds=time - begun.time,
        bytes_sent=10,
    )


CALL = CallStarted(**IDS, time=1.0, computation="train")
END = CallEnded(**IDS, time=9.0, computation="train", clients=3, seconds=8.0)


def test_a_phase_is_inside_of_its_call(tmp_path: Path) -> None:
    inside = phase(1, 2.0)
    entries = traced(tmp_path / "t", CALL, inside, ended(inside, 3.0), END)
    spans = [(e["ph"], e.get("name"), e["ts"], e["tid"]) for e in entries if e["ph"] in "BE"]
    assert spans == [
        ("B", "train", 1_000_000, 1),
        ("B", "f1", 2_000_000, 1),
        ("E", None, 3_000_000, 1),
        ("E", None, 9_000_000, 1),
    ]
    [args] = [e["args"] for e in entries if e.get("name") == "f1"]
    assert args == {"functions": "f1", "first_client": 0, "clients": 3, "call": IDS["call"]}
    assert names(entries) == {1: "calls"}


def test_phases_at_the_same_time_have_tracks_of_their_own(tmp_path: Path) -> None:
    one, two, three = phase(1, 2.0), phase(2, 2.5), phase(3, 4.0)
    entries = traced(tmp_path / "t", CALL, one, two, ended(one, 3.0), ended(two, 3.5), three, ended(three, 5.0), END)
    tracks = {e["name"]: names(entries)[e["tid"]] for e in entries if e["ph"] == "B"}
    assert tracks == {"train": "calls", "f1": "calls", "f2": "phases", "f3": "calls"}


def test_a_part_of_a_phase_is_on_a_track_of_its_worker(tmp_path: Path) -> None:
    whole = phase(1, 2.0)
    parts = [phase(n, 2.0, whole.phase, worker) for n, worker in ((2, "a:1"), (3, "b:1"), (4, "a:1"))]
    ends = [ended(part, 3.0) for part in parts]
    lost = WorkerLost(time=3.5, worker="b:1", error="E", reason="gone")
    entries = traced(tmp_path / "t", CALL, whole, *parts, *ends, lost, ended(whole, 4.0), END)
    tracks = {e["name"]: names(entries)[e["tid"]] for e in entries if e["ph"] in "Bi"}
    assert tracks["f2"] == "worker a:1"
    assert tracks["f3"] == tracks["worker lost"] == "worker b:1"
    assert tracks["f4"] == "worker a:1 2"


def test_calls_at_the_same_time_have_tracks_of_their_own_and_a_track_is_used_again(tmp_path: Path) -> None:
    def call(name: str, begin: float, end: float) -> tuple[CallStarted, CallEnded]:
        ids = {"trace": name, "call": name}
        return (
            CallStarted(**ids, time=begin, computation=name),
            CallEnded(**ids, time=end, computation=name, clients=0, seconds=end - begin),
        )

    (a, a_end), (b, b_end), (c, c_end) = call("a", 1, 3), call("b", 2, 5), call("c", 2.999_999, 4)
    entries = traced(tmp_path / "t", a, b, a_end, c, c_end, b_end)
    assert [(e["name"], e["tid"], e["ts"]) for e in entries if e["ph"] == "B"] == [
        ("a", 1, 1_000_000),
        ("b", 2, 2_000_000),
        ("c", 1, 3_000_000),  # told late: the track is a's until then
    ]


def test_a_call_ends_what_is_still_open_in_it(tmp_path: Path) -> None:
    inside = phase(1, 2.0)
    entries = traced(tmp_path / "t", CALL, inside, END, ended(inside, 10.0))
    assert [e["ph"] for e in entries if e["ph"] in "BE"] == ["B", "B", "E", "E"]


def test_clients_are_counters_that_begin_anew_with_each_attempt(tmp_path: Path) -> None:
    def changed(time: float, **counts: int) -> ClientsChanged:
        return ClientsChanged(**IDS, time=time, parent=IDS["call"], **counts)

    entries = traced(
        tmp_path / "t",
        CALL,
        changed(2, expected=3, started=3),
        changed(3, done=2, failed=1),
        CallRetried(**IDS, time=4, parent=IDS["call"], attempt=1, pause=0.5, error="E"),
        changed(5, started=1),
        END,
    )
    assert [tuple(e["args"].values()) for e in entries if e["ph"] == "C"] == [
        (0, 3, 0),
        (2, 0, 1),
        (0, 0, 0),
        (0, 1, 0),
        (0, 0, 0),
    ]
    assert {e["name"] for e in entries if e["ph"] == "C"} == {"clients of calls"}
    [retry] = [e for e in entries if e["ph"] == "i"]
    assert (retry["name"], retry["args"]["error"], retry["tid"]) == ("retry", "E", 1)


def test_clients_at_a_worker_are_one_counter(tmp_path: Path) -> None:
    here = [ClientsChanged(**IDS, time=1, started=2), ClientsChanged(trace="b", call="b", time=2, started=1)]
    entries = traced(tmp_path / "t", *here)
    assert [(e["name"], e["args"]["running"]) for e in entries if e["ph"] == "C"] == [("clients", 2), ("clients", 3)]


class Later(WorkCancelled):
    """An event of a later release."""


def test_every_event_is_on_the_trace(tmp_path: Path) -> None:
    begun = phase(1, 2.0)
    entries = traced(
        tmp_path / "t",
        CALL,
        begun,
        Folded(**IDS, time=2.5, what="federated_sum", clients=3, seconds=0.25),
        LeafLoaded(**IDS, time=2.5, name="f", carrier="c", seconds=0.1),
        LeafLoaded(**IDS, time=2.55, name="g", carrier="c", seconds=0.1),
        LeafCompiled(**IDS, time=2.6, name="h", seconds=0.1, from_cache=False),
        ended(begun, 3.0),
        WorkerReady(time=3.0, worker="w:1"),
        WorkerLost(time=3.0, worker="w:1", error="E", reason='a "quote"\n'),
        SessionOpened(time=3.0, session="s", clients=3),
        SessionClosed(time=3.0, session="s", reason="ended"),
        WorkCancelled(**IDS, time=3.0, parent=IDS["call"]),
        LoopStalled(time=3.0, seconds=0.5),
        RpcEnded(time=3.0, method="a.b/RunPhase", code="OK", seconds=0.5),
        Later(time=3.0),
        END,
    )
    where = {(e["ph"], e["name"]): names(entries).get(e["tid"]) for e in entries if e["ph"] in "BXi"}
    assert where == {
        ("B", "train"): "calls",
        ("B", "f1"): "calls",
        ("X", "federated_sum"): "folds",
        ("X", "f"): "functions loading",
        ("X", "g"): "functions loading 2",
        ("X", "h"): "functions compiling",
        ("i", "worker ready"): "worker w:1",
        ("i", "worker lost"): "worker w:1",
        ("i", "session opened"): "sessions",
        ("i", "session closed"): "sessions",
        ("i", "WorkCancelled"): "calls",
        ("X", "stall"): "event loop",
        ("X", "RunPhase"): "requests",
        ("i", "Later"): "other",
    }
    [fold] = [e for e in entries if e.get("name") == "federated_sum"]
    assert (fold["ts"], fold["dur"]) == (2_250_000, 250_000)


def test_nothing_that_happens_is_an_empty_trace(tmp_path: Path) -> None:
    assert traced(tmp_path / "t") == []


def test_a_path_that_cannot_be_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        trace_to(tmp_path / "no" / "folder")


def test_a_trace_is_whole_after_each_event(tmp_path: Path) -> None:
    path = tmp_path / "t"
    told = (CALL, phase(1, 2.0), phase(2, 3.0))
    sizes: list[int] = []
    for number in range(len(told) + 1):
        sizes.append(len(traced(path, *told[:number])))
    assert sizes == sorted(set(sizes))


SOME = """
import sys
from fedstack.observe import WorkerReady, trace_to
from fedstack.observe.observers import observers
trace_to(sys.argv[1])
"""


def run(program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", SOME + program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(os.name != "posix", reason="has no SIGKILL")
def test_the_trace_of_a_process_that_is_killed_is_whole(tmp_path: Path) -> None:
    program = """
import os, signal, time
observers.tell(WorkerReady(worker="a"))
while "worker ready" not in open(sys.argv[1]).read():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(program, tmp_path / "t").returncode == -9
    assert [e["name"] for e in read(tmp_path / "t") if e["ph"] == "i"] == ["worker ready"]


def test_the_trace_of_a_process_that_ends_has_all(tmp_path: Path) -> None:
    done = run("for number in range(1000): observers.tell(WorkerReady(worker=str(number % 7)))", tmp_path / "t")
    assert (done.returncode, done.stderr) == (0, "")
    assert len([e for e in read(tmp_path / "t") if e["ph"] == "i"]) == 1000


WRITES_MUCH = """
import resource
if sys.argv[2] != "none":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
for number in range(1000):
    observers.tell(WorkerReady(worker="a"))
observers.flush()
print("the run goes on")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="cannot bound the size of files")
@pytest.mark.parametrize("most", [0, 5, 3000, 4999])
def test_a_disk_that_is_full_costs_the_rest_of_the_trace_and_one_warning(most: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    done = run(WRITES_MUCH, path, most)
    assert (done.returncode, done.stdout) == (0, "the run goes on\n")
    assert done.stderr.count("The observer TraceFile raised OSError") == 1
    assert str(path) in done.stderr
    assert done.stderr.strip().endswith("the observer was removed")
    assert len(done.stderr.splitlines()) == 1
    assert path.stat().st_size <= most
    if most > 5:
        assert len(read(path)) > 10


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no such device")
def test_a_disk_that_is_full_from_the_start_is_a_warning() -> None:
    done = run(WRITES_MUCH, "/dev/full", "none")
    assert (done.returncode, done.stdout) == (0, "the run goes on\n")
    assert "No space left on device: '/dev/full'; the observer was removed" in done.stderr
    assert len(done.stderr.splitlines()) == 1
