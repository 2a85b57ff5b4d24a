"""How processes end, in words, and how often a pool starts them anew."""

import subprocess
import sys

import pytest

from fedstack.foundations.process_endings import crash_in, crash_told, ending_of, users_lines_in
from fedstack.service.pool.pool_process import Restarts


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
def test_signals_are_named() -> None:
    assert ending_of(-11) == "signal 11 (SIGSEGV)"
    assert ending_of(-9) == "signal 9 (SIGKILL)"
    assert ending_of(-63) == "signal 63"
    assert ending_of(3) == "exit status 3"


@pytest.mark.slow
def test_of_what_faulthandler_prints_only_the_thread_that_crashed_is_told() -> None:
    program = (
        "import ctypes, threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def crash():\n"
        "    ctypes.string_at(0)\n"
        "print('before', flush=True)\n"
        "crash()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    said = ("before\n" + ended.stderr).splitlines(keepends=True)
    lines = crash_in(said)
    assert lines[1].startswith("Current thread ")
    assert [line for line in lines if line.startswith("  File")][-1] == '  File "<string>", line 6 in <module>'
    assert not any("wait" in line or line.startswith("Thread") for line in lines)
    assert '\n  File "<string>", line 4, in crash' in users_lines_in(said)
    assert crash_told(said) == f"\n  {lines[0]}{users_lines_in(said)}"


def test_who_says_nothing_of_a_crash_had_none() -> None:
    assert crash_in(["Fatal thoughts\n"]) == []
    assert users_lines_in([]) == crash_told(["hello\n"]) == ""


def test_a_crash_outside_of_python_is_told_with_all_threads() -> None:
    lines = ["Fatal Python error: Aborted", "", "Thread 0x1 (most recent call first):", '  File "a.py", line 1 in f']
    assert crash_in(f"{line}\n" for line in ["before", *lines]) == lines


def test_processes_are_started_anew_after_pauses_that_grow_and_not_for_ever() -> None:
    now = [0.0]
    restarts = Restarts(2, lambda: now[0])
    pauses = [restarts.pause() for _ in range(11)]
    assert pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert pauses[9:] == [5.0, None]
    now[0] = 59.9
    assert restarts.pause() is None
    now[0] = 60.0
    assert restarts.pause() == 0.1
    assert Restarts(8).most == 24
