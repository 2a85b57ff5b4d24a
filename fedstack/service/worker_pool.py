"""Starts worker processes on this machine, for as long as they are wanted."""

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fedstack.computations.number_checks import check_whole_number
from fedstack.errors import ClosedError, FedstackError, InvalidValueError, WorkerUnavailableError
from fedstack.executors.leaf_threads import CORES
from fedstack.service.pool_worker import TOKEN_FILE
from fedstack.transport.credentials import ClientCredentials

_READY = re.compile(r"^fedstack \S+ serving on (?P<target>.+?) \(")
_LINES_KEPT = 40
_ENDING_SECONDS = 5.0
_MOST_WORKERS = 64
_MOST_WORKERS_PER_CORE = 8
# A socket's path has at most 103 bytes; this leaves room for its own name.
_MAX_FOLDER_BYTES = 90
# Whatever library does the algebra, together the workers should have as many threads as there are cores.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class WorkerPool:
    """Worker processes, and what to dial them with; made by `local_worker_pool`.

    They end with `close()`, when nobody refers to the pool or to a context over it any more, and with this process,
    however it ends: each waits for the end of its standard input, which this process holds open.

    Attributes:
      targets: The addresses, one for each worker.
      credentials: What they want to be dialled with.
    """

    def __init__(self, workers: Sequence["_Worker"], credentials: ClientCredentials, folder: Path) -> None:
        self.targets = tuple(worker.target for worker in workers)
        self.credentials = credentials
        self._workers = workers
        self._folder = folder
        self._closed = False
        # At the end of the process the system closes their standard input, whatever else goes wrong.
        weakref.finalize(self, _let_go, workers).atexit = False
        # Workers remove it too; but they may all have been killed.
        weakref.finalize(self, _remove, folder, os.getpid())

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes."""
        return tuple(worker.process.pid for worker in self._workers)

    def close(self) -> None:
        """Ends the workers, whatever they are doing, and returns when they have ended. Idempotent."""
        self._closed = True
        try:
            # Before the end of the workers: as long as one is there, it does what Ctrl-C keeps us from.
            shutil.rmtree(self._folder, ignore_errors=True)
            _end(self._workers)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def loss_of(self, target: str) -> FedstackError | None:
        """Returns the error to raise for a worker that has ended, and `None` for one that runs.

        Args:
          target: Its address.
        """
        if self._closed:
            return _closed_error()
        worker = next((worker for worker in self._workers if worker.target == target), None)
        code = None if worker is None else worker.process.poll()
        if worker is None or code is None:
            return None
        cause = f"the worker process with pid {worker.process.pid} ended with code {code}"
        error = WorkerUnavailableError(f"Expected the worker at {target} to run, found that {cause}; start a new pool")
        error.causes = {target: cause}
        return error

    def __enter__(self) -> "WorkerPool":
        if self._closed:
            raise _closed_error()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        alive = sum(worker.process.poll() is None for worker in self._workers)
        return f"<WorkerPool of {len(self._workers)} processes, {alive} of them alive>"


def _closed_error() -> ClosedError:
    return ClosedError("Expected an open pool of workers, found it closed; start one with local_worker_pool()")


def local_worker_pool(
    n: int,
    *,
    modules: Sequence[str] = ("*",),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    startup_seconds: float = 60.0,
) -> WorkerPool:
    """Starts worker processes and returns when all of them can be dialled.

    They import what this process can import, and run its functions by value too. Nobody else can use them: they listen
    at sockets in a folder of this user's, or on the loopback device where there are no such sockets, and want a token
    that only they and the pool know.

    Args:
      n: The number of workers: at most 64, or eight per core if that is more.
      modules: The modules into which references are followed; `*` for any.
      options: More options for `fedstack serve`.
      environment: More environment variables for the workers. By default each may use its share of the cores for linear
        algebra; `OMP_NUM_THREADS` and the like say otherwise.
      startup_seconds: How long they may take to start.

    Raises:
      InvalidValueError: If there is to be no worker, or more than this machine can be meant to have.
      WorkerUnavailableError: If one does not start; the message has the end of what it said.
    """
    n = check_whole_number("a number of workers", n, 1)
    if n > _most_workers():
        raise InvalidValueError(
            f"Expected at most {_most_workers()} workers for the {CORES} cores of this machine, found {n}; one per "
            "core is most often best"
        )
    folder = Path(tempfile.mkdtemp(prefix="fedstack-"))
    token_file = folder / TOKEN_FILE
    token = secrets.token_urlsafe(32)
    workers: list[_Worker] = []
    try:
        with open(os.open(token_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(token)
        variables = _environment(n, environment or {})
        command = [sys.executable, "-m", "fedstack.service.pool_worker", str(folder), "--token-file", str(token_file)]
        command += ["--allow-python-code", "--allow-module", ",".join(modules), *options]
        for number in range(n):
            workers.append(_Worker(number, [*command, *_listen_options(folder, number)], variables))
        deadline = time.monotonic() + startup_seconds
        for worker in workers:
            worker.wait_ready(deadline, startup_seconds)
        # They have read it, and nobody else should.
        token_file.unlink()
        return WorkerPool(workers, ClientCredentials(token=token), folder)
    except BaseException:
        try:
            _end(workers)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _most_workers() -> int:
    """Returns how many workers may be meant; each is a process with modules of its own, and more share the cores."""
    return max(_MOST_WORKERS, _MOST_WORKERS_PER_CORE * CORES)


def _listen_options(folder: Path, number: int) -> list[str]:
    if hasattr(socket, "AF_UNIX") and len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES:
        return ["--unix-socket", str(folder / f"{number}.sock")]
    return ["--port", "0"]


def _environment(n: int, more: Mapping[str, str]) -> dict[str, str]:
    # Options of another server, which are meant for it alone.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FEDSTACK_")}
    for name in _THREAD_VARIABLES:
        variables.setdefault(name, str(max(1, CORES // n)))
    variables["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**variables, **more}


class _Worker:
    """One process, and a thread that reads what it says and says it again here; the thread does not refer to pools."""

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.target = ""
        self._number = number
        self._said: deque[str] = deque(maxlen=_LINES_KEPT)
        self._ready_or_ended = threading.Event()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C is for this process, which may want to go on.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._reader = threading.Thread(target=self._read, name=f"fedstack-worker-{number}", daemon=True)
        self._reader.start()

    def wait_ready(self, deadline: float, seconds: float) -> None:
        """Returns when the worker can be dialled.

        Raises:
          WorkerUnavailableError: If it has ended, or cannot be dialled by the deadline.
        """
        self._ready_or_ended.wait(max(0.0, deadline - time.monotonic()))
        if self.target:
            return
        if self._ready_or_ended.is_set():
            found = f"that it ended with code {self.process.wait()}"
        else:
            found = f"that it takes longer than {seconds:g} s"
        said = ":" + "".join(f"\n  {line.rstrip()}" for line in self._said) if self._said else " nothing"
        raise WorkerUnavailableError(f"Expected worker {self._number} to start, found {found}; it said{said}")

    def ask_to_end(self) -> None:
        """Lets the worker see the end of its standard input."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()

    def end(self, deadline: float) -> None:
        """Returns when the worker has ended, by force after the deadline."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(_ENDING_SECONDS)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                found = None if self.target else _READY.match(line)
                if found:
                    self.target = found["target"]
                    self._ready_or_ended.set()
                    continue
                self._said.append(line)
                if self.target:
                    sys.stderr.write(line)
        self._ready_or_ended.set()
        self.process.wait()  # else one that ends by itself would stay a zombie


def _let_go(workers: Sequence[_Worker]) -> None:
    """Lets workers end that nobody wants any more, and does not wait for it: a finalizer."""
    for worker in workers:
        worker.ask_to_end()


def _remove(folder: Path, owner: int) -> None:
    """Removes a pool's folder; a finalizer, also at the end of the process."""
    if os.getpid() == owner:  # forked children come here too
        shutil.rmtree(folder, ignore_errors=True)


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.ask_to_end()
    deadline = time.monotonic() + _ENDING_SECONDS
    for worker in workers:
        worker.end(deadline)
