"""Keeps a worker process of a pool running: reads its output, and restarts the process when it has ended unexpectedly.

A process ends unexpectedly when a client function crashes, memory runs out or a user kills it. Until the process has
been restarted at the same address, executors continue without the worker (`PoolProcess.loss`).
"""

import contextlib
import itertools
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from fedstack.errors import ResourceLimitError, WorkerUnavailableError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.process_endings import LINES_KEPT, begins_crash, crash_told, ending_of, wait_for_end
from fedstack.transport.peers.daemon_threads import start_daemon

_logger = logging.getLogger(__name__)
_READY = re.compile(r"^fedstack \S+ serving on (?P<target>.+?) \(")
_LINES_TOLD = 40
# How long to wait for the remaining output of an ended process, whose children may keep the pipe open.
_READING_SECONDS = 1.0
_LOOK_SECONDS = 0.05
# A function that always crashes terminates all workers at the same time, and later one or two of them again.
_FEWEST_RESTARTS = 10
_RESTARTS_PER_WORKER = 3
_RESTARTS_WITHIN_SECONDS = 60.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class Restarts:
    """Decides whether to restart a process of a pool, and how long to wait before the restart.

    Args:
      workers: The number of workers in the pool.
      clock: Returns the time in seconds.

    Attributes:
      most: The maximum number of restarts within a minute.
    """

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = max(_FEWEST_RESTARTS, _RESTARTS_PER_WORKER * workers)
        self._clock = clock
        self._lock = threading.Lock()
        self._times: deque[float] = deque()

    def pause(self) -> float | None:
        """Returns the time to wait before a restart, in seconds, or `None` after too many recent restarts."""
        with self._lock:
            now = self._clock()
            while self._times and now - self._times[0] >= _RESTARTS_WITHIN_SECONDS:
                self._times.popleft()
            if len(self._times) >= self.most:
                return None
            self._times.append(now)
            return min(_FIRST_PAUSE * 2 ** (len(self._times) - 1), _LONGEST_PAUSE)

    def __repr__(self) -> str:
        return f"<Restarts {len(self._times)} of {self.most} within {_RESTARTS_WITHIN_SECONDS:g} s>"


@attrs.frozen(kw_only=True)
class ProcessOptions:
    """The options for starting a process of a pool.

    Attributes:
      command: The program and its options, except those for the address and the token.
      listen: The options for the address.
      environment: The environment variables of the process.
      token: The token that clients have to send.
      token_file: The file with the token. It is deleted when the process has read it.
    """

    command: Sequence[str]
    listen: Sequence[str]
    environment: Mapping[str, str]
    token: str
    token_file: Path

    def start(self) -> "subprocess.Popen[str]":
        """Writes the token file and starts a process."""
        self.token_file.unlink(missing_ok=True)
        with open(os.open(self.token_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(self.token)
        return subprocess.Popen(
            [*self.command, "--token-file", str(self.token_file), *self.listen],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C should reach only this process, which may handle it and continue.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )


class PoolProcess:
    """A worker process. Threads copy its output to this process's stderr, and restart it when it has ended.

    The threads do not refer to the pool, so the pool can be garbage-collected. `ask_to_end` acquires no lock, because a
    finalizer calls it on an arbitrary thread.

    Args:
      number: The number of the worker in the pool.
      options: The options with which the process is started.
      restarts: Decides whether to restart the process; `None` to never restart it.

    Attributes:
      target: The address of the worker; empty until the worker can be dialled.
      process: The current process or, after the worker has ended, its last process.
      has_worked: Whether the current process has contributed to a phase. Its restart then needs no pause, and does not
        count towards the limit, which only exists for processes that crash again and again.
    """

    def __init__(self, number: int, options: ProcessOptions, restarts: Restarts | None) -> None:
        self.target = ""
        self.has_worked = False
        self._number = number
        self._options = options
        self._restarts = restarts
        self._ending = False  # whether `ask_to_end` was called
        self._away = ""  # why the worker can no longer be dialled
        self._status: int | None = None  # the exit status of the previous process
        self._ready_or_ended = threading.Event()
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self.process = options.start()
        self._reader = self._start_reader()
        self._keeper = self._start_thread(self._keep)
        renew_after_fork(self)

    def renew(self) -> None:
        """Releases the pipes in a forked child, because a worker ends only when all processes have released its stdin.

        The descriptors are redirected to the null device instead of being closed, because closing the file objects
        acquires locks that threads of the parent may have held during the fork.
        """
        self._ending = True  # the process belongs to the parent
        with contextlib.suppress(OSError, ValueError):  # already closed, or out of file descriptors
            nothing = os.open(os.devnull, os.O_RDWR)
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None and not pipe.closed:
                    os.dup2(nothing, pipe.fileno(), inheritable=False)
            os.close(nothing)

    def wait_ready(self, deadline: Deadline, seconds: float) -> None:
        """Waits until clients can dial the worker.

        Args:
          deadline: The deadline for the start.
          seconds: The whole time limit in seconds, for the error message.

        Raises:
          WorkerUnavailableError: If the worker has ended, or cannot be dialled by the deadline.
        """
        self._ready_or_ended.wait(deadline.left)
        if self.target:
            return
        if self._ready_or_ended.is_set():
            found = f"it ended with {ending_of(self.process.wait())}"
        else:
            found = f"it was not ready within {seconds:g} s"
        lines = list(self._said)[-_LINES_TOLD:]
        said = "its output was:" + "".join(f"\n  {line.rstrip()}" for line in lines) if lines else "it printed nothing"
        raise WorkerUnavailableError(f"Worker {self._number} did not start: {found}; {said}")

    @property
    def is_alive(self) -> bool:
        """Whether the worker's current process is running."""
        return self.process.poll() is None

    @property
    def comes_back(self) -> bool:
        """Whether the worker is restarted when its process has ended."""
        return self._restarts is not None and not self._ending

    def loss(self) -> WorkerUnavailableError | None:
        """Returns the error to raise while the worker cannot be dialled, or `None` if the worker is available."""
        code = self.process.poll()
        cause = self._away if code is None else self._ended(code)
        status = self._status if code is None else code
        if not cause:
            return None
        again = ", and is being restarted" if self.comes_back else ""
        advice = "retry when it has been restarted" if again else "start a new pool"
        error = WorkerUnavailableError(f"The worker at {self.target} is not running: {cause}; {advice}")
        error.causes = {self.target: cause + again}
        error.comes_back = bool(again)
        error.exit_status = status
        return error

    def ask_to_end(self) -> None:
        """Closes the worker's standard input, which ends the worker, and prevents restarts. Does not wait."""
        self._ending = True
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()

    def end(self, deadline: Deadline) -> None:
        """Waits until the worker has ended, and kills it after the deadline. Call `ask_to_end` first."""
        self._keeper.join(deadline.left)
        while self._keeper.is_alive():
            self.process.kill()
            self._keeper.join(_READING_SECONDS)

    def _ended(self, code: int) -> str:
        return f"the worker process with pid {self.process.pid} ended with {ending_of(code)}"

    def _keep(self) -> None:
        while True:
            wait_for_end(self.process)
            code = self.process.wait()
            with contextlib.suppress(OSError):
                if self.process.stdin is not None:
                    self.process.stdin.close()
            self._reader.join(_READING_SECONDS)
            with contextlib.suppress(OSError):
                self._options.token_file.unlink()
            was_ready, crash = bool(self.target), crash_told(self._said)
            self._ready_or_ended.set()
            if self._ending or not was_ready:
                return
            self._status, self._away = code, self._ended(code)
            if not self._starts_anew(crash):
                return

    def _starts_anew(self, crash: str) -> bool:
        """Starts a new process after the worker's process has ended, unless the pool is closing.

        Args:
          crash: The crash report of the ended process, for the log; may be empty.

        Returns:
          Whether a new process was started.
        """
        restarts, has_worked = self._restarts, self.has_worked
        self.has_worked = False
        while restarts is not None:
            pause, has_worked = 0.0 if has_worked else restarts.pause(), False
            if pause is None:
                self._restarts = None
                _logger.error(
                    "The worker at %s will not be restarted: %s, and workers of its pool were already restarted %d "
                    "times within %g s; fix the cause, and start a new pool%s",
                    *(self.target, self._away, restarts.most, _RESTARTS_WITHIN_SECONDS, crash),
                )
                return False
            _logger.warning("Worker at %s: %s; restarting it in %.1f s%s", self.target, self._away, pause, crash)
            for _ in Deadline(pause).attempts_blocking(itertools.repeat(_LOOK_SECONDS)):
                if self._ending:
                    return False
            try:
                self.process = self._options.start()
                self._said = deque(maxlen=LINES_KEPT)
                self._reader = self._start_reader()
            except (OSError, ResourceLimitError) as error:
                if self._ending:
                    return False
                self._away, crash = f"the worker process could not be started: {error}", ""
                continue
            if self._ending:
                self.ask_to_end()  # ask the new process, too
            return True
        _logger.warning("Worker at %s: %s%s", self.target, self._away, crash)
        return False

    def _start_reader(self) -> threading.Thread:
        return self._start_thread(self._read, self.process, self._said)

    def _start_thread(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        try:
            return start_daemon(target, *arguments, name=f"fedstack-worker-{self._number}")
        except BaseException:
            with self.process:  # no other code refers to the process, so clean it up here
                self.process.kill()
            raise

    def _read(self, process: "subprocess.Popen[str]", said: deque[str]) -> None:
        assert process.stdout is not None
        is_ready = crashes = False
        with process.stdout as lines:
            for line in lines:
                found = None if is_ready else _READY.match(line)
                if found:
                    is_ready = True
                    self._is_ready(found["target"])
                    continue
                said.append(line)
                crashes = crashes or begins_crash(line)
                if is_ready and not crashes:  # copy further output, except the report of a crash, which is logged
                    with contextlib.suppress(Exception):  # such as a full disk, or an error in a user's stream
                        sys.stderr.write(line)

    def _is_ready(self, target: str) -> None:
        # The worker has read the token, and no other process should read it.
        with contextlib.suppress(OSError):
            self._options.token_file.unlink()
        if not target.startswith("unix:"):
            self._options = attrs.evolve(self._options, listen=["--port", target.rpartition(":")[2]])
        self.target, self._away = target, ""
        self._ready_or_ended.set()
