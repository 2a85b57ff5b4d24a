"""Describes how a process ended, and finds the crash that `faulthandler` wrote among its last lines."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterable
from traceback import FrameSummary, format_list
from typing import Any

from fedstack.foundations.traceback_filter import called_by_us, users_frames

# How many of the last lines of a process to keep: enough for the traces of many threads.
LINES_KEPT = 1000
_FATAL = ("Fatal Python error:", "Windows fatal exception:")
_CURRENT = "Current thread "
_MOST_LINES = 40
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


def ending_of(code: int) -> str:
    """Describes the return code of a process, as in "signal 11 (SIGSEGV)"."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def wait_for_end(process: "subprocess.Popen[Any]") -> None:
    """Waits until a process has ended. Where possible it leaves the exit status for others to read."""
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # its status has been read already
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def begins_crash(line: str) -> bool:
    """Returns whether a line is the first that `faulthandler` writes of a crash."""
    return line.startswith(_FATAL)


def crash_in(said: Iterable[str]) -> list[str]:
    """Returns the lines of a crash and of the stack of the thread that crashed, the innermost call first.

    Args:
      said: The last lines that a process wrote.
    """
    lines = [line.rstrip() for line in said]
    begins = [index for index, line in enumerate(lines) if begins_crash(line)]
    if not begins:
        return []
    head, *rest = lines[begins[-1] :]
    current = next((index for index, line in enumerate(rest) if line.startswith(_CURRENT)), None)
    if current is None:  # a thread of a library, which Python does not know
        return [head, *rest[:_MOST_LINES]]
    end = next((index for index in range(current, len(rest)) if not rest[index]), len(rest))
    return [head, *rest[current:end]]


def crash_told(said: Iterable[str]) -> str:
    """Returns the text to log of a crash: what crashed, and where in the user's code; empty without a crash."""
    lines = crash_in(said)
    users = users_lines_in(lines)
    return "".join(f"\n  {line}" for line in (lines[:1] if users else lines)) + users


def users_lines_in(said: Iterable[str]) -> str:
    """Returns the user's frames of a crash for the end of a message: a line feed and the frames, or nothing."""
    found = [match for match in map(_FRAME.match, crash_in(said)) if match is not None]
    frames = [FrameSummary(match["file"], int(match["line"]), match["name"]) for match in reversed(found)]
    lines = "".join(format_list(list(users_frames(called_by_us(frames))))).rstrip()
    return f"\n{lines}" if lines else ""
