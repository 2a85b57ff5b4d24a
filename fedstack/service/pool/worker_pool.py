"""Starts worker processes on this machine, and ends them when their pool is closed."""

import os
import secrets
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from fedstack.data.client_states.store_folders import folders_of, warn_of_missing_folders
from fedstack.errors import ClosedError, FedstackError, InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.executors.concurrency.leaf_threads import CORES
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import check_bool, check_whole_number
from fedstack.foundations.value_text import describe
from fedstack.service.pool.pool_process import PoolProcess, ProcessOptions, Restarts
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.wire.cluster_spec import ClusterSpec

_ENDING_SECONDS = 5.0
_MOST_WORKERS = 64
_MOST_WORKERS_PER_CORE = 8
# The path of a socket may have at most 103 bytes. This limit for the folder leaves room for the file name.
_MAX_FOLDER_BYTES = 90
# All workers together should use as many threads for linear algebra as the machine has cores, with any library.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
# Clients that compute on more threads than there are cores would take longer, all together.
_CORES_VARIABLE = "PYTHON_CPU_COUNT"


class WorkerPool(ClosesOnExit):
    """Worker processes and the credentials to dial them. Create a pool with `local_worker_pool`.

    The workers end when `close()` is called, when the pool and all contexts that use it are garbage-collected, and when
    this process ends in any way: each worker waits for the end of its standard input, which this process keeps open. A
    worker that ends earlier is restarted at its address, unless the pool was created with `respawn=False`.

    Attributes:
      targets: The addresses of the workers.
      credentials: The credentials to dial the workers with.
    """

    def __init__(self, workers: Sequence[PoolProcess], credentials: ClientCredentials, folder: Path) -> None:
        self.targets = tuple(worker.target for worker in workers)
        self.credentials = credentials
        self._workers = workers
        self._folder = folder
        self._owner = os.getpid()
        # No finalizer is needed at exit, because the system closes the workers' standard input when this process ends.
        weakref.finalize(self, _let_go, workers).atexit = False
        # The workers also remove the folder, but all of them may have been killed.
        weakref.finalize(self, _remove, folder, self._owner)

    @property
    def cluster_spec(self) -> ClusterSpec:
        """A cluster with the workers as its only job, `worker`. Dial them with the pool's credentials."""
        return ClusterSpec({"worker": self.targets})

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids in the order of `targets`. For an ended worker, this is the id of its last process."""
        return tuple(worker.process.pid for worker in self._workers)

    def close(self) -> None:
        """Ends the workers, even if they are busy, and waits until they have ended. Idempotent.

        In a forked child this method does not end the workers, which belong to the parent process.
        """
        self._closed = True
        if os.getpid() != self._owner:
            return
        try:
            # Removed before the workers end: if Ctrl-C interrupts this process, a running worker removes the folder.
            shutil.rmtree(self._folder, ignore_errors=True)
            _end(self._workers)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def loss_of(self, target: str) -> FedstackError | None:
        """Returns the error to raise for an ended worker, or `None` for a running worker.

        If the worker is being restarted, the attribute `comes_back` of the error is true.

        Args:
          target: The address of the worker.
        """
        if self._closed:
            return self._closed_error()
        worker = self._find(target)
        return None if worker is None else worker.loss()

    @property
    def restarts(self) -> bool:
        """Whether workers that end are restarted."""
        return any(worker.comes_back for worker in self._workers)

    def worked(self, target: str) -> None:
        """Records that a worker has contributed to a phase. If it ends later, it is restarted at once.

        Args:
          target: The address of the worker.
        """
        worker = self._find(target)
        if worker is not None:
            worker.has_worked = True

    def _find(self, target: str) -> PoolProcess | None:
        return next((worker for worker in self._workers if worker.target == target), None)

    def _closed_error(self) -> ClosedError:
        return ClosedError("The worker pool is closed; start a new pool with local_worker_pool()")

    def __repr__(self) -> str:
        alive = sum(worker.is_alive for worker in self._workers)
        away = sum(worker.comes_back and worker.loss() is not None for worker in self._workers)
        anew = f", {away} being started anew" if away else ""
        return f"<WorkerPool of {counted(len(self._workers), 'process', 'processes')}, {alive} of them alive{anew}>"


def local_worker_pool(
    n: int,
    *,
    modules: str | Sequence[str] = ("*",),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    startup_seconds: float = 60.0,
    respawn: bool = True,
    data_services: str | Sequence[str] = (),
    client_states: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]" = (),
) -> WorkerPool:
    """Starts worker processes, and returns when clients can dial all of them.

    The workers can import the same modules as this process, and also run functions that are sent by value. Only the
    pool can use the workers. They listen on Unix sockets in a folder of this user, or on the loopback interface where
    Unix sockets are unavailable, and require a token that only the workers and the pool know.

    Args:
      n: The number of workers: at most 64, or eight per core if that is more.
      modules: The modules from which workers may import referenced functions; `*` for any module.
      options: Additional options for `fedstack serve`.
      environment: Additional environment variables for all workers, or a list with those of each worker, such as
        `[{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(n)]`. By default, each worker uses its share of the cores for
        clients that compute (`PYTHON_CPU_COUNT`), and for linear algebra, unless variables such as `OMP_NUM_THREADS`
        are set.
      startup_seconds: The time limit for the start of all workers.
      respawn: Whether to restart workers that end unexpectedly. The pauses before restarts grow. Within a minute, the
        pool restarts at most ten workers, or three times the number of workers if that is more.
      data_services: The addresses of dispatchers whose datasets computations may refer to. Pass the credentials to dial
        them in `options`, such as `--call-token-file`.
      client_states: Folders with clients' states, such as those of runs. The workers read and write the states there,
        so that they do not travel with the clients.

    Raises:
      InvalidValueError: If the number of workers is 0 or too large for this machine, `environment` is a list of
        another length, or has other values than strings, or another argument is not a list of strings.
      WorkerUnavailableError: If a worker does not start; the message contains the end of the worker's output.
    """
    n = check_whole_number("a number of workers", n, 1)
    if n > _most_workers():
        raise InvalidValueError(
            f"Expected at most {_most_workers()} workers for the {CORES} cores of this machine, found {n}; start fewer "
            "workers, usually one per core"
        )
    if isinstance(options, str):
        raise InvalidValueError(
            f"Expected options as a list of words, found the string {options!r}; write {options.split()!r}"
        )
    modules, data_services = _words("modules", modules), _words("data_services", data_services)
    folders = folders_of(client_states)
    warn_of_missing_folders(folders, "client_states")
    folder = Path(tempfile.mkdtemp(prefix="fedstack-"))
    token = secrets.token_urlsafe(32)
    restarts = Restarts(n) if check_bool("respawn", respawn) else None
    workers: list[PoolProcess] = []
    try:
        variables = _environments(n, environment)
        command = [sys.executable, "-m", "fedstack.command_line.pool_worker", str(folder)]
        command += ["--allow-python-code", "--allow-module", ",".join(modules), *options]
        command += [part for address in data_services for part in ("--data-service", address)]
        command += [part for states in folders for part in ("--client-states", str(states))]
        for number in range(n):
            process = ProcessOptions(
                command=command,
                listen=_listen_options(folder, number),
                environment=variables[number],
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
    """Returns the maximum number of workers. More processes would only compete for cores and memory."""
    return max(_MOST_WORKERS, _MOST_WORKERS_PER_CORE * CORES)


def _words(name: str, words: str | Iterable[str]) -> Sequence[str]:
    given = cast(object, words)
    found = (
        list(cast("Iterable[object]", given)) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    )
    if not all(isinstance(one, str) for one in found):
        raise InvalidValueError(f"Expected {name} as a list of strings, found {describe(words)}; write them in a list")
    return cast("Sequence[str]", found)


def _listen_options(folder: Path, number: int) -> list[str]:
    if hasattr(socket, "AF_UNIX") and len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES:
        return ["--unix-socket", str(folder / f"{number}.sock")]
    return ["--port", "0"]


def _environments(n: int, more: Mapping[str, str] | Sequence[Mapping[str, str]] | None) -> list[dict[str, str]]:
    """Returns the environment variables of each worker."""
    given = [more or {}] * n if more is None or isinstance(more, Mapping) else more
    if len(given) != n:
        raise InvalidValueError(
            f"Expected environment variables for each of the {counted(n, 'worker')}, found those of {len(given)}; pass "
            "a list with a dict for each worker, or one dict for all"
        )
    for own in cast("Sequence[object]", given):
        if not _are_strings(own):
            raise InvalidValueError(
                f"Expected environment variables as a dict of strings, found {describe(own)}; write values as strings, "
                "such as str(number)"
            )
    # Variables with this prefix are options of other servers, and must not affect the workers.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FEDSTACK_")}
    share = str(max(1, CORES // n))
    for name in _THREAD_VARIABLES:
        variables.setdefault(name, share)
    variables[_CORES_VARIABLE] = share
    variables["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return [{**variables, **own} for own in given]


def _are_strings(variables: object) -> bool:
    if not isinstance(variables, Mapping):
        return False
    pairs = cast("Mapping[object, object]", variables).items()
    return all(isinstance(name, str) and isinstance(value, str) for name, value in pairs)


def _let_go(workers: Sequence[PoolProcess]) -> None:
    """Ends the workers of a garbage-collected pool without waiting; called as a finalizer."""
    for worker in workers:
        worker.ask_to_end()


def _remove(folder: Path, owner: int) -> None:
    """Removes a pool's folder; called as a finalizer and at the end of the process."""
    if os.getpid() == owner:  # forked children run finalizers, too, and must keep the folder
        shutil.rmtree(folder, ignore_errors=True)


def _end(workers: Sequence[PoolProcess]) -> None:
    for worker in workers:
        worker.ask_to_end()
    deadline = Deadline(_ENDING_SECONDS)
    for worker in workers:
        worker.end(deadline)
