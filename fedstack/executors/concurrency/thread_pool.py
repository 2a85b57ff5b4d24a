"""Runs jobs on a bounded pool of threads, which start and end as needed.

Threads are assigned to the owners of jobs in turn, so that an owner with many jobs does not delay the jobs of others.
"""

import contextlib
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, TypeVar

from fedstack.errors import ClosedError, ResourceLimitError
from fedstack.executors.concurrency.jobs import Job, Seat
from fedstack.executors.concurrency.turn_queue import TurnQueue
from fedstack.foundations.after_fork import is_renewed, renew_after_fork
from fedstack.observe.events import WorkCancelled
from fedstack.observe.observers import observers
from fedstack.transport.peers.daemon_threads import start_daemon

_T = TypeVar("_T")
# What the names of the threads begin with.
THREAD_NAME = "fedstack-leaf-"


class _Serving(threading.local):
    """The nested jobs that the current thread is running."""

    def __init__(self) -> None:
        super().__init__()
        self.seats: list[tuple[ThreadPool, Seat]] = []


_serving = _Serving()
_thread_numbers = itertools.count(1)
_pools: "set[weakref.ref[ThreadPool]]" = set()


@contextlib.contextmanager
def waiting() -> Generator[None, None, None]:
    """Lets the current thread's pools use an additional thread while the current thread waits in the block.

    Without this, work that waits for other work of the same pool could wait forever.
    """
    seats = tuple(_serving.seats)
    for pool, seat in seats:
        pool.set_aside(seat, waits=1)
    try:
        yield
    finally:
        for pool, seat in seats:
            pool.set_aside(seat, waits=-1)


class ThreadPool:
    """The jobs of a `LeafThreads`, and the threads that run these jobs.

    Args:
      max_threads: The maximum number of threads.
      idle_seconds: The number of seconds that a thread waits for a job before it ends.
      for_others: The number of threads beyond `max_threads` for owners that have few threads; see `LeafThreads`.
    """

    def __init__(self, max_threads: int, idle_seconds: float, for_others: int = 0) -> None:
        self._max_threads = max_threads
        self._for_others = for_others
        self._idle_seconds = idle_seconds
        self._closed = False
        self.renew()
        renew_after_fork(self)
        _pools.add(weakref.ref(self, _pools.discard))

    def renew(self) -> None:
        """Removes all threads and jobs in a forked child, which does not have the threads of its parent."""
        self.threads = 0
        self._jobs: TurnQueue[Job[Any]] = TurnQueue()
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)  # for callers that run work on their own threads
        self._idle = 0
        self._is_woken = False  # whether an idle thread was woken and has not taken a job yet
        self._starting: set[int] = set()
        # The lock on which each idle thread waits, by thread identity. The thread that became idle last is woken first.
        self.waiting: dict[int, threading.Lock] = {}
        # The number of unavailable threads, which wait or run abandoned work, and how many of them may be replaced.
        self._away = 0
        self._replaced = 0
        # The number of threads that work for each owner, excluding threads that may be replaced.
        self._held: Counter[str] = Counter()
        self._waiting_guests = 0  # the number of callers that wait to run work on their own threads

    @property
    def busy(self) -> int:
        """The number of threads that are running jobs."""
        return max(0, self.threads - self._idle)

    def add(self, job: Job[Any]) -> None:
        """Adds a job, and starts a thread for it if no thread is idle.

        Raises:
          ClosedError: If the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("This executor is closed; create a new executor")
            self._jobs.append(job, job.scope.owner)
            self._wake()
            are_enough = len(self._jobs) <= self._idle
        if not are_enough:
            self._start_threads()

    def _wake(self) -> None:
        """Wakes an idle thread for the jobs, unless a thread has already been woken.

        A thread that takes a job wakes the next idle thread. If jobs are short, the first thread runs all of them; if a
        thread were woken for each job, the threads would only wait for each other and for the interpreter lock.
        """
        if self._jobs and self.waiting and not self._is_woken:
            self._is_woken = True
            self.waiting.popitem()[1].release()

    def run_here(self, work: Callable[[], _T]) -> _T:
        """Waits until the pool has a free slot, then runs `work` on the caller's thread.

        The caller's thread occupies a slot of the pool while it runs `work`.
        """
        if _serving.seats and any(pool is self for pool, _ in _serving.seats):
            return work()  # the thread is already counted
        with self._lock:
            # An idle thread counts as a free slot, because it checks the number of threads before it starts a job.
            self._waiting_guests += 1
            try:
                while self.threads - self._idle - self._replaced >= self._max_threads:
                    self._room.wait()
            finally:
                self._waiting_guests -= 1
            self.threads += 1
            lock = self._lock
        _serving.seats.append((self, Seat()))
        try:
            return work()
        finally:
            _serving.seats.pop()
            with self._lock:
                if self._lock is lock:  # not in a forked child, which has reset its counts
                    self.threads -= 1
                self._let_callers_in()
                has_jobs = bool(self._jobs)
            if has_jobs:
                self._start_threads()

    def _let_callers_in(self) -> None:
        """Notifies callers that wait to run work on their own threads, so that they check again for a free slot."""
        if self._waiting_guests:
            self._room.notify_all()

    def remove(self, job: Job[Any]) -> None:
        """Removes a job that was cancelled before it started."""
        with self._lock:
            self._jobs.remove(job)

    def _start_threads(self) -> None:
        """Starts a thread for each job for which there is no idle thread, up to the limit.

        If the system cannot start a thread, jobs wait for existing threads. If all existing threads are unavailable,
        the jobs fail.
        """
        failure = ""
        while True:
            with self._lock:
                room = self._max_threads - (self.threads - self._replaced)
                has_room = room > 0 or (not self._idle and self._spared_for(more=1) is not None)
                if failure or not has_room or len(self._jobs) <= self._idle:
                    refused = self._jobs.take_all() if self.threads <= self._away else []
                    break
                number = next(_thread_numbers)
                self._starting.add(number)
                self.threads += 1
                self._idle += 1
            try:
                start_daemon(self._serve, number, name=f"{THREAD_NAME}{number}")
            except BaseException as error:
                self._take_back(number)
                if not isinstance(error, ResourceLimitError):
                    raise
                failure = str(error)
        for job in refused:
            job.refuse(failure)

    def _start_threads_for_others(self, *, ends: bool = False) -> None:
        """Starts another thread if owners still wait after the current one has taken a job, or ends without one."""
        if (self._for_others or ends) and self._jobs and not self._idle:
            self._start_threads()

    def _take_back(self, number: int) -> None:
        """Stops counting a thread that failed to start. If it starts nevertheless, it ends immediately."""
        with self._lock:
            if number in self._starting:
                self._starting.remove(number)
                self.threads -= 1
                self._idle -= 1

    def set_aside(self, seat: Seat, waits: int) -> None:
        """Records that a thread starts or stops waiting for other work.

        Args:
          seat: The state of the thread.
          waits: 1 when the thread starts to wait, -1 when it stops.
        """
        with self._lock:
            self._count(seat, -1)
            seat.waits += waits
            self._count(seat, 1)
            self._let_callers_in()
        self._start_threads()

    def abandon(self, job: Job[Any]) -> None:
        """Abandons a running job, whose thread may never become available again."""
        with self._lock:
            if job.abandoned or job.done():
                return
            counted = job.scope.abandoned
            self._count(job, -1)
            job.abandoned = True
            job.is_replaced = counted is None or counted.add()
            self._count(job, 1)
            self._let_callers_in()
        self._start_threads()
        if observers.present and job.running():
            observers.tell(WorkCancelled(**job.scope.span.ids))

    def _count(self, seat: Seat, sign: int) -> None:
        """Adds a thread to the counts of unavailable and replaced threads, or removes it from them.

        Args:
          seat: The state of the thread.
          sign: 1 to add the thread, -1 to remove it.
        """
        self._away += sign * (seat.waits > 0 or seat.abandoned)
        is_replaced = seat.waits > 0 or seat.is_replaced
        self._replaced += sign * is_replaced
        if is_replaced:
            self._hold(seat.owner, -sign)

    def _hold(self, owner: str, threads: int) -> None:
        self._held[owner] += threads
        if not self._held[owner]:
            del self._held[owner]

    def _spared_for(self, more: int = 0) -> str | None:
        """Returns an owner that may use a thread beyond the limit, because it has less than half of the threads.

        Args:
          more: The number of threads to start for the owner.

        Returns:
          The first such owner; `None` if there is none, or if no further thread is allowed.
        """
        if self.threads + more - self._replaced > self._max_threads + self._for_others:
            return None
        return next((owner for owner in self._jobs.owners if 2 * self._held[owner] < self._max_threads), None)

    def _serve(self, number: int) -> None:
        with self._lock:
            if number not in self._starting:
                return
            self._starting.remove(number)
        job = self._next_job()
        self._start_threads_for_others()
        while job is not None:
            _serving.seats.append((self, job))
            job.run()
            with self._lock:
                self._idle += 1
                self._let_callers_in()
                self._hold(job.owner, -1)
                if job.abandoned:
                    self._count(job, -1)
                    if job.scope.abandoned is not None:
                        job.scope.abandoned.remove(job.is_replaced)
            _serving.seats.clear()
            del job  # an idle thread must not keep the data of its last job alive
            job = self._next_job()
            self._start_threads_for_others()
        self._start_threads_for_others(ends=True)  # or refuse jobs, if all other threads run abandoned work

    def _next_job(self) -> Job[Any] | None:
        """Waits for a job and returns it.

        The calling thread must be counted as idle. If the result is `None`, the thread is no longer counted and must
        end.
        """
        with self._lock:
            if not self._is_surplus():
                self._wait()
            self._idle -= 1
            owner = self._spared_for() if self._is_surplus() else next(self._jobs.owners, None)
            job = None if owner is None else self._jobs.popleft(owner)
            if job is not None:
                self._hold(job.owner, 1)
            self.threads -= job is None
            self._wake()
            return job

    def _wait(self) -> None:
        """Waits until there are jobs, the pool is closed, or the idle time has passed. The caller holds the lock."""
        thread, door, in_time = threading.get_ident(), threading.Lock(), True
        while in_time and not self._jobs and not self._closed:
            door.acquire(blocking=False)
            self.waiting[thread] = door
            self._lock.release()
            try:
                in_time = door.acquire(timeout=self._idle_seconds)
            finally:
                self._lock.acquire()
            if self.waiting.pop(thread, None) is None:
                self._is_woken = False  # this thread was the one that was woken

    @staticmethod
    def has_job(frame: FrameType) -> bool:
        """Returns whether a thread of a pool, whose innermost frame is given, does more than wait for jobs."""
        return frame.f_code is not ThreadPool._wait.__code__

    def _is_surplus(self) -> bool:
        """Returns whether there are too many threads, because abandoned work has ended or callers run work themselves.

        A thread whose abandoned work has ended is kept for the queued jobs, unless the pool has extra threads for other
        owners.
        """
        is_beyond = self.threads - self._replaced > self._max_threads
        return is_beyond and (self._for_others > 0 or self.threads - 1 > self._away)

    def drop_jobs(self) -> None:
        """Drops all jobs that no thread runs yet, because the process ends."""
        with self._lock:
            self._jobs.take_all()

    def close(self) -> None:
        """Stops idle threads immediately, and busy threads after their work."""
        if not is_renewed():
            return  # a forked child has no threads
        with self._lock:
            self._closed = True
            while self.waiting:
                self.waiting.popitem()[1].release()


def count_threads() -> tuple[int, int]:
    """Returns the number of threads of all pools of this process, and the number of busy threads."""
    pools = open_pools()
    return sum(pool.threads for pool in pools), sum(pool.busy for pool in pools)


def open_pools() -> list[ThreadPool]:
    """Returns all pools of this process."""
    return [pool for reference in tuple(_pools) if (pool := reference()) is not None]
