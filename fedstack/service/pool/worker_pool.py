"""Starts worker processes on this machine, and ends them with their pool."""

import os
import secrets
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedstack.errors import ClosedError, FedstackError, InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.executors.concurrency.leaf_threads import CORES
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import check_bool, check_whole_number
from fedstack.service.pool.pool_process import PoolProcess, ProcessOptions, Restarts
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.wire.cluster_spec import ClusterSpec

_ENDING_SECONDS = 5.0
_MOST_WORKERS = 64
_MOST_WORKERS_PER_CORE = 8
# A socket's path has at most 103 bytes; this leaves room for its own name.
_MAX_FOLDER_BYTES = 90
# The workers together should have as many threads for linear algebra as there are cores, with any library.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class WorkerPool(ClosesOnExit):
    """Worker processes, and the credentials to dial them; made by `local_worker_pool`.

    They end with `close()`, when nobody refers to the pool or to a context over it any more, and with this process,
    however it ends: each waits for the end of its standard input, which this process holds open. One that ends before
    is started anew at its address, unless the pool was made without that.

    Attributes:
      targets: The addresses, one for each worker.
      credentials: The credentials to dial them with.
    """

    def __init__(self, workers: Sequence[PoolProcess], credentials: ClientCredentials, folder: Path) -> None:
        self.targets = tuple(worker.target for worker in workers)
        self.credentials = credentials
        self._workers = workers
        self._folder = folder
        self._owner = os.getpid()
        # When this process ends, the system closes the workers' standard input in any case.
        weakref.finalize(self, _let_go, workers).atexit = False
        # Workers remove the folder, too; but they may all have been killed.
        weakref.finalize(self, _remove, folder, self._owner)

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The workers as the only job of a cluster, `worker`; they are dialled with the pool's credentials."""
        return ClusterSpec({"worker": self.targets})

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes, in the order of the targets; for an ended worker, that of its last process."""
        return tuple(worker.process.pid for worker in self._workers)

    def close(self) -> None:
        """Ends the workers, even in the midst of work, and waits until they have ended. Idempotent.

        In a forked child it leaves them alone: they are its parent's.
        """
        self._closed = True
        if os.getpid() != self._owner:
            return
        try:
            # Before the workers end: as long as one runs, it removes the folder if Ctrl-C prevents us.
            shutil.rmtree(self._folder, ignore_errors=True)
            _end(self._workers)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def loss_of(self, target: str) -> FedstackError | None:
        """Returns the error to raise for an ended worker, and `None` for a running one.

        If the worker is being restarted, the error says that it `comes_back`.

        Args:
          target: Its address.
        """
        if self._closed:
            return self._closed_error()
        worker = next((worker for worker in self._workers if worker.target == target), None)
        return None if worker is None else worker.loss()

    def _closed_error(self) -> ClosedError:
        return ClosedError("The pool of workers is closed; start one with local_worker_pool()")

    def __repr__(self) -> str:
        alive = sum(worker.is_alive for worker in self._workers)
        away = sum(worker.comes_back and worker.loss() is not None for worker in self._workers)
        anew = f", {away} being started anew" if away else ""
        return f"<WorkerPool of {counted(len(self._workers), 'process', 'processes')}, {alive} of them alive{anew}>"


def local_worker_pool(
    n: int,
    *,
    modules: Sequence[str] = ("*",),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    startup_seconds: float = 60.0,
    respawn: bool = True,
    data_services: Sequence[str] = (),
) -> WorkerPool:
    """Starts worker processes and returns when all of them can be dialled.

    They import what this process can import, and run its functions by value, too. Only the pool can use them: they
    listen at sockets in a folder of this user, or on the loopback device on systems without such sockets, and require a
    token that only they and the pool know.

    Args:
      n: The number of workers: at most 64, or eight per core if that is more.
      modules: The modules whose references are followed; `*` for any.
      options: More options for `fedstack serve`.
      environment: More environment variables for the workers. By default each may use its share of the cores for linear
        algebra, unless `OMP_NUM_THREADS` and the like are set.
      startup_seconds: How long they may take to start.
      respawn: Whether workers that end unasked are restarted at their addresses: after a growing pause, and at most ten
        within a minute, or three for each worker if that is more.
      data_services: The addresses of dispatchers whose datasets computations may refer to. `--call-token-file` and the
        like among the `options` are the credentials to dial them with.

    Raises:
      InvalidValueError: If the number is 0, or larger than makes sense on this machine.
      WorkerUnavailableError: If a worker does not start; the message has the end of its output.
    """
    n = check_whole_number("a number of workers", n, 1)
    if n > _most_workers():
        raise InvalidValueError(
            f"Expected at most {_most_workers()} workers for the {CORES} cores of this machine, found {n}; one per "
            "core is usually best"
        )
    folder = Path(tempfile.mkdtemp(prefix="fedstack-"))
    token = secrets.token_urlsafe(32)
    restarts = Restarts(n) if check_bool("respawn", respawn) else None
    workers: list[PoolProcess] = []
    try:
        variables = _environment(n, environment or {})
        command = [sys.executable, "-m", "fedstack.command_line.pool_worker", str(folder)]
        command += ["--allow-python-code", "--allow-module", ",".join(modules), *options]
        command += [part for address in data_services for part in ("--data-service", address)]
        for number in range(n):
            process = ProcessOptions(
                command=command,
                listen=_listen_options(folder, number),
                environment=variables,
                token=token,
                token_file=folder / f"{number}.token",
            )
            workers.append(PoolProcess(number, process, restarts))
        deadline = Deadline(startup_seconds)
        for worker in workers:
            worker.wait_ready(deadline, startup_seconds)
        return WorkerPool(workers, ClientCredentials(token=token), folder)
    except BaseException:
        try:
            _end(workers)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _most_workers() -> int:
    """Returns the most workers that make sense; each is a process with its own modules, and more share the cores."""
    return max(_MOST_WORKERS, _MOST_WORKERS_PER_CORE * CORES)


def _listen_options(folder: Path, number: int) -> list[str]:
    if hasattr(socket, "AF_UNIX") and len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES:
        return ["--unix-socket", str(folder / f"{number}.sock")]
    return ["--port", "0"]


def _environment(n: int, more: Mapping[str, str]) -> dict[str, str]:
    # Options of another server, which are only for that one.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FEDSTACK_")}
    for name in _THREAD_VARIABLES:
        variables.setdefault(name, str(max(1, CORES // n)))
    variables["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**variables, **more}


def _let_go(workers: Sequence[PoolProcess]) -> None:
    """Ends the workers of a garbage-collected pool without waiting: a finalizer."""
    for worker in workers:
        worker.ask_to_end()


def _remove(folder: Path, owner: int) -> None:
    """Removes a pool's folder; a finalizer, also at the end of the process."""
    if os.getpid() == owner:  # forked children run finalizers, too
        shutil.rmtree(folder, ignore_errors=True)


def _end(workers: Sequence[PoolProcess]) -> None:
    for worker in workers:
        worker.ask_to_end()
    deadline = Deadline(_ENDING_SECONDS)
    for worker in workers:
        worker.end(deadline)
