"""Describes how a process ended, and extracts the crash report of `faulthandler` from the output of the process."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterable
from traceback import FrameSummary, format_list
from typing import Any

from fedstack.foundations.traceback_filter import called_by_us, users_frames

# How many of a process's last output lines to keep: enough for the stack traces of many threads.
LINES_KEPT = 1000
_FATAL = ("Fatal Python error:", "Windows fatal exception:")
_CURRENT = "Current thread "
_MOST_LINES = 40
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


def ending_of(code: int) -> str:
    """Returns a description of a process's return code, such as "signal 11 (SIGSEGV)"."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def wait_for_end(process: "subprocess.Popen[Any]") -> None:
    """Waits until a process has ended. On platforms with `os.waitid`, the exit status can still be read afterwards."""
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # another caller has already read the process's status
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def begins_crash(line: str) -> bool:
    """Returns whether a line is the first line of a crash report of `faulthandler`."""
    return line.startswith(_FATAL)


def crash_in(said: Iterable[str]) -> list[str]:
    """Returns the first line of a crash report and the stack of the crashed thread, innermost call first.

    The result is empty if the output contains no crash report.

    Args:
      said: The last output lines of a process.
    """
    lines = [line.rstrip() for line in said]
    begins = [index for index, line in enumerate(lines) if begins_crash(line)]
    if not begins:
        return []
    head, *rest = lines[begins[-1] :]
    current = next((index for index, line in enumerate(rest) if line.startswith(_CURRENT)), None)
    if current is None:  # the crashed thread belongs to a library and is unknown to Python
        return [head, *rest[:_MOST_LINES]]
    end = next((index for index in range(current, len(rest)) if not rest[index]), len(rest))
    return [head, *rest[current:end]]


def crash_told(said: Iterable[str]) -> str:
    """Returns the text to log about a crash: its kind and the user's frames; empty if there was no crash."""
    lines = crash_in(said)
    users = users_lines_in(lines)
    return "".join(f"\n  {line}" for line in (lines[:1] if users else lines)) + users


def users_lines_in(said: Iterable[str]) -> str:
    """Returns a line feed and the user's frames of a crash, to append to a message; empty if there are none."""
    found = [match for match in map(_FRAME.match, crash_in(said)) if match is not None]
    frames = [FrameSummary(match["file"], int(match["line"]), match["name"]) for match in reversed(found)]
    lines = "".join(format_list(list(users_frames(called_by_us(frames))))).rstrip()
    return f"\n{lines}" if lines else ""
