"""Starts worker processes on this machine, for as long as they are wanted."""

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
# Whatever library does the algebra, together the workers should have as many threads as there are cores.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class WorkerPool(ClosesOnExit):
    """Worker processes, and what to dial them with; made by `local_worker_pool`.

    They end with `close()`, when nobody refers to the pool or to a context over it any more, and with this process,
    however it ends: each waits for the end of its standard input, which this process holds open. One that ends before
    is started anew at its address, unless the pool was made without that.

    Attributes:
      targets: The addresses, one for each worker.
      credentials: What they want to be dialled with.
    """

    def __init__(self, workers: Sequence[PoolProcess], credentials: ClientCredentials, folder: Path) -> None:
        self.targets = tuple(worker.target for worker in workers)
        self.credentials = credentials
        self._workers = workers
        self._folder = folder
        self._owner = os.getpid()
        # At the end of the process the system closes their standard input, whatever else goes wrong.
        weakref.finalize(self, _let_go, workers).atexit = False
        # Workers remove it too; but they may all have been killed.
        weakref.finalize(self, _remove, folder, self._owner)

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The workers as the only job of a cluster, `worker`; they are dialled with the pool's credentials."""
        return ClusterSpec({"worker": self.targets})

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes, in the order of the targets; for a worker that is away, that of its last one."""
        return tuple(worker.process.pid for worker in self._workers)

    def close(self) -> None:
        """Ends the workers, whatever they are doing, and returns when they have ended. Idempotent.

        In a forked child it leaves them alone: they are its parent's.
        """
        self._closed = True
        if os.getpid() != self._owner:
            return
        try:
            # Before the end of the workers: as long as one is there, it does what Ctrl-C keeps us from.
            shutil.rmtree(self._folder, ignore_errors=True)
            _end(self._workers)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def loss_of(self, target: str) -> FedstackError | None:
        """Returns the error to raise for a worker that has ended, and `None` for one that runs.

        If the worker is being started anew, the error says that it `comes_back`.

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
      respawn: Whether workers that end before they are asked to are started anew, at their addresses: after a pause
        that grows, and at most ten within a minute, or three for each worker if that is more.
      data_services: The addresses of dispatchers whose datasets computations may refer to. `--call-token-file` and the
        like among the `options` say with what they are dialled.

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


def _let_go(workers: Sequence[PoolProcess]) -> None:
    """Lets workers end that nobody wants any more, and does not wait for it: a finalizer."""
    for worker in workers:
        worker.ask_to_end()


def _remove(folder: Path, owner: int) -> None:
    """Removes a pool's folder; a finalizer, also at the end of the process."""
    if os.getpid() == owner:  # forked children come here too
        shutil.rmtree(folder, ignore_errors=True)


def _end(workers: Sequence[PoolProcess]) -> None:
    for worker in workers:
        worker.ask_to_end()
    deadline = Deadline(_ENDING_SECONDS)
    for worker in workers:
        worker.end(deadline)
