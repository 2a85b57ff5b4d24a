"""Python's debugger in leaf functions, and tracebacks, show the user's own frames."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.contexts import debugging
from fedstack.errors import LeafError

INTS = fl.FederatedType(np.int32, fl.CLIENTS)
SCRIPT = """
import federated_language as fl
import numpy as np
import fedstack

fedstack.set_sync_local_execution_context(debug=True)

@fedstack.python_computation([np.int32], np.int32)
def halved(x):
    breakpoint()
    half = x // 2
    return half

@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def total(xs):
    return fl.federated_sum(fl.federated_map(halved, xs))

def run():
    result = total([4, 6])
    print("result", result)

run()
"""


def debugged(
    folder: Path, *commands: str, script: str = SCRIPT, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Runs the script, whose debugger reads the commands."""
    (folder / "script.py").write_text(script)
    return subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        input="\n".join([*commands, ""]),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_q_quits(tmp_path: Path) -> None:
    done = debugged(tmp_path, "q")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("bdb.BdbQuit")
    assert "LeafError" not in done.stderr
    assert done.stderr.count(f"{os.sep}fedstack{os.sep}") == 1  # the call of the context
    assert "halved" in done.stderr


def test_where_shows_the_frames_of_the_user_and_up_leads_to_the_call(tmp_path: Path) -> None:
    done = debugged(tmp_path, "w", "up", "p result if False else 'in run'", "c", "c")
    assert done.returncode == 0, done.stderr
    frames = [line for line in done.stdout.splitlines() if ".py(" in line]
    assert not [line for line in frames if f"{os.sep}fedstack{os.sep}" in line or "federated_language" in line]
    shown = [line.partition(".py(")[2].partition(")")[2] for line in frames]
    # Where it stops, the stack, the frame above, and where it stops for the second client.
    assert shown == ["halved()", "<module>()", "run()", "halved()", "run()", "halved()"]
    assert "in run" in done.stdout
    assert "result 5" in done.stdout


def test_the_step_after_a_function_is_the_next_line_of_the_user(tmp_path: Path) -> None:
    done = debugged(tmp_path, "n", "n", "n", "n", "c", "c", "c")
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert f"{os.sep}fedstack{os.sep}" not in done.stdout
    assert done.stdout.count("-> breakpoint()") + done.stdout.count("-> half = x // 2") >= 2


@pytest.mark.parametrize("step", ["n", "s"])
def test_steps_past_the_end_of_a_function_stop_in_lines_of_the_user_only(tmp_path: Path, step: str) -> None:
    means = SCRIPT.replace("np.int32", "(np.float32, [2])").replace("x // 2", "x / np.float32(2)")
    means = means.replace("federated_sum", "federated_mean").replace("[4, 6]", "[np.ones(2, np.float32)] * 2")
    # As of Python 3.13 pdb also stops in the line that calls it, which both calls have.
    inside = 10 if sys.version_info >= (3, 13) else 8
    done = debugged(tmp_path, *[step] * inside, "c", script=means)
    assert done.returncode == 0, done.stderr
    assert "result [0.5 0.5]" in done.stdout
    stops = [line.removeprefix("(Pdb) ") for line in done.stdout.splitlines()]
    stops = [stop for stop in stops if stop.startswith("> ")]
    assert all("script.py(" in stop for stop in stops), stops
    # The rest and the end of the first call, the second one from its beginning to its end, and the line after.
    names = [stop.partition(")")[2].partition("(")[0] for stop in stops]
    assert names == ["halved"] * inside + ["run"]


HOOK = """
import sys

class Hook:
    def find_spec(self, *names):
        return None

sys.meta_path.insert(0, Hook())
"""
SHUFFLED = """
import site
import federated_language as fl
import numpy as np
import fedstack
site.addsitedir("site-packages")
import hook

fedstack.set_sync_local_execution_context(debug=True)

@fedstack.python_computation([fl.SequenceType((np.int32, [None]))], np.int32)
def added(batches):
    total = 0
    breakpoint()
    for batch in batches:
        total += batch[0]
    return total

print("result", added(fedstack.batches(np.arange(3, dtype=np.int32), 1, shuffle_seed=1)))
"""


def test_steps_do_not_stop_in_what_is_imported_for_a_sequence(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "hook.py").write_text(HOOK)
    done = debugged(tmp_path, *["s"] * 6, "c", script=SHUFFLED)
    assert done.returncode == 0, done.stderr
    assert "result 3" in done.stdout
    stops = [line.removeprefix("(Pdb) ") for line in done.stdout.splitlines()]
    assert all("script.py(" in stop for stop in stops if stop.startswith("> ")), stops


def test_another_debugger_that_was_chosen_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = debugged(tmp_path, PYTHONBREAKPOINT="0")
    assert (done.returncode, done.stdout) == (0, "result 5\n")
    chosen: list[str] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: chosen.append("mine"))

    @fedstack.python_computation([np.int32], np.int32)
    def stops(x: Any) -> Any:
        breakpoint()
        return x

    with fedstack.create_sync_local_execution_context(debug=True):
        assert stops(3) == 3
    assert chosen == ["mine"]


def test_the_hook_is_back_after_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    with debugging.hiding_frames():
        assert sys.breakpointhook is not sys.__breakpointhook__
        with debugging.hiding_frames():
            pass
        assert sys.breakpointhook is not sys.__breakpointhook__
    assert sys.breakpointhook is sys.__breakpointhook__


def raising(error: Callable[[], BaseException]) -> Any:
    @fedstack.python_computation([np.int32], np.int32)
    def fails(x: Any) -> Any:
        raise error() if x else ZeroDivisionError

    return fl.federated_computation(lambda xs: fl.federated_map(fails, xs), INTS)


def frames_of(error: BaseException) -> list[str]:
    """Returns the names of the functions in a traceback, below the test."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]


@pytest.mark.parametrize("debug", [False, True])
def test_the_traceback_of_ctrl_c_has_one_frame_between_the_users(debug: bool) -> None:
    with (
        fedstack.create_sync_local_execution_context(debug=debug),
        pytest.raises(KeyboardInterrupt) as caught,
    ):
        raising(KeyboardInterrupt)([1, 2])
    assert frames_of(caught.value)[-2:] == ["invoke", "fails"]


def test_who_looks_at_an_error_after_a_debugging_call_is_in_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    with fedstack.create_sync_local_execution_context(debug=True), pytest.raises(LeafError) as caught:
        raising(ValueError)([1, 2])
    assert frames_of(caught.value)[-2:] == ["invoke", "fails"]
    last = list(traceback.walk_tb(caught.value.__traceback__))[-1][0]
    assert last.f_locals["x"] == 1
    assert frames_of(caught.value.__cause__ or caught.value)[-1:] in ([], ["fails"])


@pytest.mark.parametrize("debug", [False, True])
def test_notebooks_and_pytest_hide_our_frames(debug: bool) -> None:
    with fedstack.create_sync_local_execution_context(debug=debug), pytest.raises(LeafError) as caught:
        raising(ValueError)([1, 2])
    ours = [
        frame
        for frame, _ in traceback.walk_tb(caught.value.__traceback__)
        if str(frame.f_globals["__name__"]).startswith("fedstack.")
    ]
    assert [frame.f_locals.get("__tracebackhide__") for frame in ours] == [True] * len(ours)
    assert len(ours) == 1


@pytest.mark.parametrize(("zero", "warns"), [(0, False), (10, True)])
def test_a_zero_that_is_not_neutral_is_warned_of(zero, warns, caplog) -> None:
    @fedstack.python_computation([np.int32, np.int32], np.int32)
    def add(left, right):
        return left + right

    @fedstack.python_computation([np.int32], np.int32)
    def report(total):
        return total

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total_of(values):
        return fl.federated_aggregate(values, np.int32(zero), add, add, report)

    with fedstack.create_sync_local_execution_context(debug=True) as context, fedstack.use_context(context):
        assert total_of([1] * 9) == 9 + 2 * zero
    assert ("Expected merge(zero, a) of a federated_aggregate to be a" in caplog.text) is warns
    caplog.clear()
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        total_of([1] * 9)
    assert not caplog.text
