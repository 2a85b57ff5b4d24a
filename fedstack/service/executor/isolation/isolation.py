"""Runs a phase for some of its clients in a child process, and tells how that ended.

A fresh interpreter and no fork: gRPC and its threads live in this process.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

import attrs

from fedstack.foundations.process_endings import LINES_KEPT, wait_for_end

_READING_SECONDS = 2.0
# It imports what this process can import, and nothing of the folder that it happens to be in.
_PROGRAM = (
    "import sys; sys.path[:1] = [path for path in sys.path[:1] if path]; "
    "from fedstack.service.executor.isolation.isolation_child import start; start()"
)


@attrs.frozen
class Death:
    """How clients have ended a child.

    Attributes:
      code: What `subprocess` says that it returned.
      client: The client that ran; `None` if functions were still being loaded.
      function: The name of the function that ran, as far as it is known.
      said: The last lines that it said.
    """

    code: int
    client: int | None
    function: str
    said: Sequence[str]


class IsolatedRun:
    """One child process.

    Args:
      options: What `ChildOptions` takes.
      content: What it reads.
    """

    def __init__(self, options: dict[str, Any], content: Sequence[bytes | memoryview]) -> None:
        self._command = [sys.executable, "-X", "faulthandler", "-c", _PROGRAM, json.dumps(options)]
        self._content = content
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def run(self) -> Death | None:
        """Returns how the clients have ended it; `None` if they have not. Blocks its thread."""
        told: dict[str, Any] = {}
        said: deque[str] = deque(maxlen=LINES_KEPT)
        with self._lock:
            if self._cancelled:
                return None
            process = self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                # What it starts ends with it; and Ctrl-C is for the worker.
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            _reading(process.stdout, lambda line: told.update(json.loads(line))),
            _reading(process.stderr, lambda line: said.append(line.decode(errors="replace"))),
        ]
        try:
            _write(process.stdin, self._content)
            wait_for_end(process)
        finally:
            self._kill()
            code = process.wait()
            with contextlib.suppress(OSError):
                process.stdin.close()
        for reader in readers:
            reader.join(_READING_SECONDS)
        if self._cancelled or "done" in told or "failed" in told:
            return None
        return Death(code, told.get("client"), told.get("function", ""), tuple(said))

    def cancel(self) -> None:
        """Ends the child, if there is one, and keeps `run` from starting one."""
        with self._lock:
            self._cancelled = True
        self._kill()

    def _kill(self) -> None:
        """Ends the child and what it has started; only while it has not been waited for: then its id is another's."""
        with self._lock:
            process = self._process
            if process is None or process.returncode is not None:
                return
            with contextlib.suppress(OSError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()


def _write(pipe: IO[bytes], content: Iterable[bytes | memoryview]) -> None:
    """Writes what a child reads; the pipe stays open, for its end is that of the parent."""
    with contextlib.suppress(OSError):  # it may have ended
        for piece in content:
            pipe.write(piece)
        pipe.flush()


def _reading(pipe: IO[bytes], take: Callable[[bytes], object]) -> threading.Thread:
    """Starts a thread that takes the lines of a pipe. Processes that outlive the child may keep it open."""

    def read() -> None:
        with pipe, contextlib.suppress(OSError, ValueError):
            for line in pipe:
                take(line)

    thread = threading.Thread(target=read, name="fedstack-isolated", daemon=True)
    thread.start()
    return thread
