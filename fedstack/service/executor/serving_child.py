"""A child process of a worker that runs one range of a phase's clients after the other; see `isolation_child.py`."""

import contextlib
import pickle
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import IO

import attrs

from fedstack.foundations.process_endings import LINES_KEPT, wait_for_end
from fedstack.service.executor.isolated_phase import kill_child, reading, start_child
from fedstack.service.executor.isolation_child import BEGUN, ENDED, FAILED, RANGE, WRITTEN, ChildOptions

_READING_SECONDS = 2.0


@attrs.frozen
class RangeAnswer:
    """What a child has answered.

    Attributes:
      failed: Whether the phase failed. The header is then the details of a status.
      header: A serialized `PhaseResponse`.
      data: The bytes of its arrays.
    """

    failed: bool
    header: bytes
    data: bytes


@attrs.frozen
class Died:
    """How a child has ended.

    Attributes:
      status: The return code of its process.
      running: The clients that were running.
      said: The last lines of its output.
    """

    status: int
    running: Collection[int]
    said: Sequence[str]


class ServingChild:
    """A child process, which is started for the first range. Its methods block, but for `kill`.

    Args:
      options: The options of the child.
      content: The input of the child, after the options.

    Attributes:
      is_new: Whether the child has not run any clients.
    """

    def __init__(self, options: ChildOptions, content: Sequence[bytes | memoryview]) -> None:
        self._content = [pickle.dumps(options), *content]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self._reader: threading.Thread | None = None
        self._killed = False
        self.is_new = True

    def run(self, clients: range, returned: Callable[[int], None] = lambda client: None) -> RangeAnswer | Died | None:
        """Runs clients, and returns what they have contributed, or how the child has ended; `None` if it was killed.

        Args:
          clients: The clients.
          returned: Called with a client whenever one of its functions has returned.
        """
        process = self._started()
        if process is None:
            return None
        self.is_new = False
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # the child may already have ended
            process.stdin.write(RANGE.pack(clients.start, clients.stop))
            process.stdin.flush()
        running: dict[int, None] = {}
        answer = _read(process.stdout, running, returned)
        return self._ended(process, running) if answer is None else answer

    def _started(self) -> "subprocess.Popen[bytes] | None":
        with self._lock:
            if self._process is not None or self._killed:
                return None if self._killed else self._process
            process = self._process = start_child()
        assert process.stdin is not None
        assert process.stderr is not None
        self._reader = reading(process.stderr, lambda line: self._said.append(line.decode(errors="replace")))
        with contextlib.suppress(OSError):
            process.stdin.writelines(self._content)
            process.stdin.flush()
        return process

    def _ended(self, process: "subprocess.Popen[bytes]", running: Collection[int]) -> Died | None:
        wait_for_end(process)
        with self._lock:
            kill_child(process)  # its descendants
            status = process.wait()
        if self._reader is not None:
            self._reader.join(_READING_SECONDS)
        return None if self._killed else Died(status, running, tuple(self._said))

    def end(self) -> None:
        """Lets the clients that are not done be late, and `run` return soon."""
        with self._lock:
            process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # the child may have ended
                process.stdin.write(RANGE.pack(0, 0))
                process.stdin.flush()

    def kill(self) -> None:
        """Kills the child if it is running, and prevents it from being started."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                kill_child(self._process)

    def close(self) -> None:
        """Ends the child, and waits until it has ended. Idempotent."""
        self.kill()
        process = self._process
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def _read(pipe: IO[bytes], running: dict[int, None], returned: Callable[[int], None]) -> RangeAnswer | None:
    """Reads an answer; returns `None` if the child ends before it is complete.

    Args:
      pipe: The output of the child.
      running: Is updated with the clients that are running.
      returned: Called with a client whenever one of its functions has returned.
    """
    try:
        while len(head := pipe.read(WRITTEN.size)) == WRITTEN.size:
            kind, first, second = WRITTEN.unpack(head)
            if kind == BEGUN:
                running[first] = None
            elif kind == ENDED:
                running.pop(first, None)
                if not second:
                    returned(first)
            else:
                header, data = pipe.read(first), pipe.read(second)
                return (
                    RangeAnswer(kind == FAILED, header, data) if (len(header), len(data)) == (first, second) else None
                )
    except (OSError, ValueError):  # the pipe has been closed
        pass
    return None
