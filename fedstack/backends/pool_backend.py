"""Runs tasks in a user's pool of processes, which can be any executor of `concurrent.futures`."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any, cast

from fedstack.backends.backend import Backend
from fedstack.backends.backend_executor import BackendExecutorFactory
from fedstack.backends.task_phases import Task
from fedstack.errors import ClosedError, FedstackError, InvalidValueError, NoWorkersError, WorkerUnavailableError
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.executors.data_executor import DataBackend
from fedstack.foundations.error_text import counted
from fedstack.foundations.memory_files import LEAST_BYTES, MemoryFile
from fedstack.foundations.number_checks import check_whole_number
from fedstack.foundations.public_names import takes_options
from fedstack.foundations.segments import Memory
from fedstack.foundations.value_text import describe
from fedstack.transport.peers.io_loop import arrival
from fedstack.transport.wire.frames import Heartbeat

MakesExecutor = Callable[[], Executor]
_JOIN_SECONDS = 10.0
_ENDED = "ended, likely because of a client function (os._exit, a crash, or lack of memory)"
_NEVER_ANSWERED = (
    "ended before any process of the pool had completed a task: a client function ended the process (os._exit, a "
    "crash, or lack of memory), the pool's initializer raised an error, or the main script does not guard the code "
    "that only the first process should run with `if __name__ == '__main__':`"
)

_MEND = "check whether a client function ends the processes, and fix that function"


class PoolBackend(Backend):
    """A backend over a pool of processes.

    The pool decides which process runs a task. A place of this backend is therefore a share of the work, not a
    particular process.

    Args:
      executor: The pool, or a function that creates a pool. The function is called for the first phase, and again
        after a pool has broken. The backend shuts down the pools that the function has created, but not a pool that
        was passed to it.
      num_workers: The number of parts into which a phase is divided; by default the pool's number of workers.

    Raises:
      InvalidValueError: If `num_workers` is omitted and the pool does not report its number of workers.
    """

    def __init__(self, executor: Executor | MakesExecutor, num_workers: int | None = None) -> None:
        if num_workers is not None:
            check_whole_number("num_workers", num_workers, 1)
        self._make = executor if callable(executor) else None
        self._executor = None if callable(executor) else _checked(executor)
        self._num_workers = num_workers
        self._has_answered = False
        self._left = 0
        if hasattr(self._executor, "_client"):  # of Dask, whose scheduler is another process
            self.task_seconds = 0.01
        if self._executor is not None and num_workers is None:
            _workers_of(self._executor)

    async def places(self) -> Sequence[str]:
        executor = self._open()
        count = self._num_workers
        if count is None:
            found = _workers_of(executor)
            count = found if isinstance(found, int) else await off_loop(found)
        return [f"{type(executor).__name__}, part {index + 1} of {count}" for index in range(count)]

    async def run(self, place: Any, task: Task, heard: Callable[[Heartbeat], None]) -> object:
        executor = self._open()
        future: Future[object] | None = None
        try:
            future = executor.submit(task.function, *task.arguments)
            try:
                await arrival(future)
            except asyncio.CancelledError:
                self._give_up(future)
                raise
            answer = future.result()
        except BrokenExecutor as error:
            raise self._broken(executor, place, error, was_taken=future is not None) from error
        except CancelledError as error:
            raise ClosedError(
                f"The pool cancelled a task ({place}); do not shut down the pool while calls are running"
            ) from error
        except RuntimeError as error:
            if "shutdown" not in str(error):
                raise
            raise ClosedError(
                f"The pool has been shut down ({error}); create a new pool, and a context over it"
            ) from error
        except Exception as error:
            if (type(error).__module__, type(error).__name__) != ("distributed.scheduler", "KilledWorker"):
                raise
            lost = WorkerUnavailableError(f"Dask gave up on a task after several of its workers ended ({error})")
            lost.causes = {place: str(error)}
            lost.advice = _MEND
            lost.had_begun = None  # the task may have been waiting behind the task that crashed the workers
            raise lost from error
        self._has_answered = True
        return answer

    async def share(self, memory: list[Memory]) -> object:
        """Writes large arrays to a file in memory if the processes run on this machine; see `Backend.share`."""
        # Of the standard library or loky. Threads would get the file itself, and Dask's workers may be elsewhere.
        is_here = any(kind.__name__ == "ProcessPoolExecutor" for kind in type(self._open()).__mro__)
        if is_here and sum(array.nbytes for array in memory) >= LEAST_BYTES:
            with contextlib.suppress(OSError):
                return await off_loop(lambda: MemoryFile(memory))
        return memory

    def _open(self) -> Executor:
        """Returns the pool; creates it if necessary."""
        if self._executor is None:
            assert self._make is not None, "a pool that the user passed is never dropped"
            self._executor = _checked(self._make())
            self._has_answered = False
        return self._executor

    def _give_up(self, future: "Future[object]") -> None:
        """Cancels a task if it has not started. A running task cannot be stopped, and is counted until it ends."""
        if future.cancel() or future.done():
            return
        self._left += 1

        def ended(_: object) -> None:
            self._left -= 1

        future.add_done_callback(ended)

    def _broken(self, executor: Executor, place: str, error: BrokenExecutor, was_taken: bool) -> FedstackError:
        """Returns the error for a pool that has lost a process and is therefore broken.

        Args:
          executor: The pool.
          place: The part of the phase that the pool was to run.
          error: The error that the pool raised.
          was_taken: Whether the pool had accepted the task. If not, the pool was already broken.
        """
        why = _ENDED if self._has_answered else _NEVER_ANSWERED
        found = f"{type(error).__name__}: {error}"
        if self._make is None:
            mend = f": one of its processes {why}; fix the cause, and" if was_taken else ";"
            lost = NoWorkersError(
                f"The pool is broken and cannot be used again{mend} create a new pool and a context over it, or pass a "
                f"function that creates pools instead of a pool ({found})"
            )
            lost.is_final = True
        else:
            if self._executor is executor:  # no other pool has been created since
                self._executor = None
                executor.shutdown(wait=False)
            lost = WorkerUnavailableError(f"A process of the pool {why} ({found})" if was_taken else found)
            lost.causes = {place: found}
            lost.advice = _MEND
        # A pool also assigns tasks to processes that are still starting, so the task may not have started.
        lost.had_begun = was_taken and (self._has_answered or None)
        return lost

    def close(self) -> None:
        if self._make is not None and self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def __repr__(self) -> str:
        name = type(self._executor).__name__ if self._executor is not None else "a pool that has not been created yet"
        left = f", {counted(self._left, 'task')} at work that {'was' if self._left == 1 else 'were'} cancelled"
        return f"<PoolBackend of {name}{left if self._left else ''}>"


def _checked(executor: object) -> Executor:
    if isinstance(executor, Executor):
        return executor
    advice = "its get_executor()" if hasattr(executor, "get_executor") else "a ProcessPoolExecutor()"
    raise InvalidValueError(
        "Expected an executor of concurrent.futures, or a function that creates one, found "
        f"{describe(executor)}; pass {advice}"
    )


def _workers_of(executor: Executor) -> int | Callable[[], int]:
    """Returns the number of tasks that a pool runs at the same time, or a function that queries the pool for it."""
    for name in ("_max_workers", "num_workers"):  # the standard library and loky; mpi4py
        found = getattr(executor, name, None)
        if isinstance(found, int) and found > 0:
            return found
    client: Any = getattr(executor, "_client", None)  # Dask
    if callable(getattr(client, "nthreads", None)) and not client.asynchronous:  # others answer on their loop
        return lambda: _workers_of_dask(client)
    raise InvalidValueError(
        f"num_workers is required for a {type(executor).__name__}, which does not report its number of workers; pass "
        "the number of tasks that the pool runs at the same time"
    )


def _workers_of_dask(client: Any) -> int:
    threads = cast("Mapping[str, int]", client.nthreads())
    if not threads:
        try:
            client.wait_for_workers(1, timeout=_JOIN_SECONDS)
        except Exception as error:
            raise NoWorkersError(
                f"No worker joined the Dask cluster within {_JOIN_SECONDS:g} s; start a worker, for example with "
                "`dask worker`; if clients may end their process, set distributed.scheduler.allowed-failures to 1"
            ) from error
        threads = cast("Mapping[str, int]", client.nthreads())
    return sum(threads.values())


@takes_options()
def pool_executor_factory(
    executor: Executor | MakesExecutor,
    num_workers: int | None = None,
    default_num_clients: int = 0,
    max_fanout: int = 100,
    *,
    max_concurrent_clients: int | None = None,
    data_backend: DataBackend | None = None,
    mixed: bool = False,
) -> BackendExecutorFactory:
    """Returns a factory of executor stacks that run client work in a pool of processes.

    Server work runs in this process. Functions are sent to the pool by value. This adds no risk, since anyone who can
    submit work to the pool can run any code in its processes.

    Args:
      executor: The pool: a `ProcessPoolExecutor`, Dask's `client.get_executor()`, an `MPIPoolExecutor`, or any other
        executor of `concurrent.futures`. The factory does not shut it down. Alternatively, a function that creates a
        pool. The function is called for the first phase, and again after a pool has broken. The factory shuts down the
        pools that the function has created.
      num_workers: The number of parts into which a phase is divided; by default the pool's number of workers.
      default_num_clients: The number of clients for computations whose arguments do not determine it.
      max_fanout: The maximum number of partial results that are merged in one place.
      max_concurrent_clients: The maximum number of functions that a process runs at the same time; by default the same
        as in a local stack.
      data_backend: Resolves `data` blocks in server work, except blocks with a function type.
      mixed: Whether processes may compile JAX functions in another way than this one; see `remote_executor_factory`.

    Raises:
      InvalidValueError: If a number is out of range, or if `num_workers` is omitted and the pool does not report its
        number of workers.
    """
    return BackendExecutorFactory(
        PoolBackend(executor, num_workers),
        default_num_clients,
        max_fanout,
        max_concurrent_clients=max_concurrent_clients,
        data_backend=data_backend,
        mixed=mixed,
    )
