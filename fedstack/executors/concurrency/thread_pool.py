"""Does jobs on threads, which start and end as they are needed; within a bound, and as far as the system has room."""

import asyncio
import contextlib
import contextvars
import itertools
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.errors import ClosedError, LeafError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.concurrency.turns import TurnQueue
from fedstack.foundations.after_fork import is_renewed, renew_after_fork
from fedstack.foundations.error_text import text_of
from fedstack.observe.events import WorkCancelled
from fedstack.observe.observers import observers
from fedstack.transport.peers.daemon_threads import start_daemon
from fedstack.transport.peers.outcomes import Outcome

_T = TypeVar("_T")


class _Serving(threading.local):
    """What the current thread works at, one job inside of another."""

    def __init__(self) -> None:
        super().__init__()
        self.seats: list[tuple[ThreadPool, Seat]] = []


_serving = _Serving()
_thread_numbers = itertools.count(1)
_pools: "set[weakref.ref[ThreadPool]]" = set()


@contextlib.contextmanager
def waiting() -> Generator[None, None, None]:
    """Gives the pools that the current thread works for room for another thread while this one only waits.

    Without it work of a pool that waits for other work of that pool could wait for ever.
    """
    seats = tuple(_serving.seats)
    for pool, seat in seats:
        pool.set_aside(seat, waits=1)
    try:
        yield
    finally:
        for pool, seat in seats:
            pool.set_aside(seat, waits=-1)


class Seat:
    """How a pool counts a thread that is at work for it.

    Attributes:
      waits: How often the thread waits for other work at this moment, one wait inside of another.
      abandoned: Whether nobody wants the work any more, and nobody knows when the thread will come back.
      is_replaced: Whether another thread may take the place of that one.
    """

    waits = 0
    abandoned = False
    is_replaced = False


class Job(Outcome[_T], Seat):
    """Work that is handed in, and what comes of it.

    Attributes:
      scope: For whom it is done, and how.
    """

    def __init__(self, work: Callable[[], _T]) -> None:
        super().__init__()
        self._work = [work]  # whoever takes it out begins the work, or sees to it that it never begins
        self.scope = current_scope()
        self._context = contextvars.copy_context()

    def run(self) -> None:
        """Does the work, on the current thread."""
        work = self._taken()
        if work is None:
            return
        try:
            result = self._context.run(_in_environment, work)
        except BaseException as error:
            self.tell(None, _contained(error) if self.scope.is_contained else error)
        else:
            self.tell(result, None)
        finally:
            del self, work  # an error refers to this frame

    def _taken(self) -> Callable[[], _T] | None:
        try:
            return self._work.pop()
        except IndexError:
            return None

    def cancel(self) -> bool:
        """Sees to it that the work does not begin; returns whether it has not."""
        if self._taken() is None:
            return False
        self.tell(None, CancelledError())
        return True

    def running(self) -> bool:
        """Returns whether the work goes on."""
        return not (self._work or self.done())

    def refuse(self, failure: str) -> None:
        """Fails instead: no thread will come for it.

        Args:
          failure: Why none could be started; empty if there are as many as there may be.
        """
        if self._taken() is not None:
            self.tell(None, self._refusal(failure))

    def _refusal(self, failure: str) -> Exception:
        if failure and self.scope.is_for_others:
            return WorkerUnavailableError(f"{failure}; try again, or at another worker")
        if failure:
            return ResourceLimitError(failure)
        found = self.scope.abandoned
        if found is not None:
            return found.refusal(found.count)
        return ResourceLimitError(
            "Expected a thread for work, found all of them at work that was cancelled and goes on; wait until it ends, "
            "or allow more of it at the same time (max_concurrent_clients)"
        )


class ThreadPool:
    """The jobs of a `LeafThreads`, and the threads that do them."""

    def __init__(self, max_threads: int, idle_seconds: float) -> None:
        self._max_threads = max_threads
        self._idle_seconds = idle_seconds
        self._closed = False
        self.renew()
        renew_after_fork(self)
        _pools.add(weakref.ref(self, _pools.discard))

    def renew(self) -> None:
        """Begins without threads and work: in a forked child those of its parent are not there."""
        self.threads = 0
        self._jobs: TurnQueue[Job[Any]] = TurnQueue()
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)  # for guests
        self._idle = 0
        self._is_woken = False  # whether a thread without work is on its way to the jobs
        self._starting: set[int] = set()
        # Threads without work, by their identities, each behind a door: the last that came is the first to go.
        self.waiting: dict[int, threading.Lock] = {}
        # Of the threads: how many nobody can count on, and how many of these have, or may have, another in their place.
        self._away = 0
        self._replaced = 0
        self._waiting_guests = 0  # callers that want to do work themselves

    @property
    def busy(self) -> int:
        """How many threads are at work."""
        return max(0, self.threads - self._idle)

    def add(self, job: Job[Any]) -> None:
        """Takes in a job, and starts a thread for it if none is free."""
        with self._lock:
            if self._closed:
                raise ClosedError("The threads of this executor are closed; make a new executor")
            self._jobs.append(job, job.scope.owner)
            self._wake()
            are_enough = len(self._jobs) <= self._idle
        if not are_enough:
            self._start_threads()

    def _wake(self) -> None:
        """Wakes a thread for the jobs that wait, unless one is on its way, which wakes the next when it has taken one.

        Where jobs are short the first thread does all of them. With a thread woken for each job these would wait for
        each other: only one of them has the interpreter's lock.
        """
        if self._jobs and self.waiting and not self._is_woken:
            self._is_woken = True
            self.waiting.popitem()[1].release()

    def run_here(self, work: Callable[[], _T]) -> _T:
        """Does work on the caller's thread, which counts as one of the pool's meanwhile, and waits until it may."""
        if _serving.seats and any(pool is self for pool, _ in _serving.seats):
            return work()  # it counts already
        with self._lock:
            # A thread that waits for jobs makes room: it looks how many there are before it begins one.
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
                if self._lock is lock:  # else this is a forked child, which has begun to count anew
                    self.threads -= 1
                self._let_callers_in()
                has_jobs = bool(self._jobs)
            if has_jobs:
                self._start_threads()

    def _let_callers_in(self) -> None:
        """Lets callers look whether there is room now for the work that they want to do themselves."""
        if self._waiting_guests:
            self._room.notify_all()

    def remove(self, job: Job[Any]) -> None:
        """Lets go of a job that is not to begin any more."""
        with self._lock:
            self._jobs.remove(job)

    def _start_threads(self) -> None:
        """Starts as many threads as there are jobs that nobody is free for, within the limit.

        If none can be started, jobs wait for those that there are. Where no thread will come back they are refused.
        """
        failure = ""
        while True:
            with self._lock:
                room = self._max_threads - (self.threads - self._replaced)
                if failure or room <= 0 or len(self._jobs) <= self._idle:
                    refused = self._jobs.take_all() if self.threads <= self._away else []
                    break
                number = next(_thread_numbers)
                self._starting.add(number)
                self.threads += 1
                self._idle += 1
            try:
                start_daemon(self._serve, number, name=f"fedstack-leaf-{number}")
            except BaseException as error:
                self._take_back(number)
                if not isinstance(error, ResourceLimitError):
                    raise
                failure = str(error)
        for job in refused:
            job.refuse(failure)

    def _take_back(self, number: int) -> None:
        """Counts a thread no longer whose start failed; should it begin after all, it ends at once."""
        with self._lock:
            if number in self._starting:
                self._starting.remove(number)
                self.threads -= 1
                self._idle -= 1

    def set_aside(self, seat: Seat, waits: int) -> None:
        """Takes note that a thread begins to wait for other work, or with -1, that it has ended to."""
        with self._lock:
            self._count(seat, -1)
            seat.waits += waits
            self._count(seat, 1)
            self._let_callers_in()
        self._start_threads()

    def abandon(self, job: Job[Any]) -> None:
        """Takes note that nobody waits for a job any more, and that its thread may never come back."""
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
        """Counts a thread among those that nobody can count on, if it is one; or with -1, no longer."""
        self._away += sign * (seat.waits > 0 or seat.abandoned)
        self._replaced += sign * (seat.waits > 0 or seat.is_replaced)

    def _serve(self, number: int) -> None:
        with self._lock:
            if number not in self._starting:
                return
            self._starting.remove(number)
        job = self._next_job()
        while job is not None:
            _serving.seats.append((self, job))
            job.run()
            with self._lock:
                self._idle += 1
                self._let_callers_in()
                if job.abandoned:
                    self._count(job, -1)
                    if job.scope.abandoned is not None:
                        job.scope.abandoned.remove(job.is_replaced)
            _serving.seats.clear()
            del job  # an idle thread must not keep the last work's data alive
            job = self._next_job()

    def _next_job(self) -> Job[Any] | None:
        """Waits for work, on a thread that is counted as idle; `None` means that it is to end, and counts no longer."""
        with self._lock:
            if not self._is_surplus():
                self._wait()
            self._idle -= 1
            job = self._jobs.popleft() if self._jobs and not self._is_surplus() else None
            self.threads -= job is None
            self._wake()
            return job

    def _wait(self) -> None:
        """Waits, under the lock, until there are jobs or it has taken too long."""
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
                self._is_woken = False  # this thread was, and is here now

    def _is_surplus(self) -> bool:
        """Returns whether there are more threads than there may be, because abandoned work has ended or callers work.

        One that comes back from abandoned work stays for the jobs.
        """
        return self.threads - self._replaced > self._max_threads and self.threads - 1 > self._away

    def close(self) -> None:
        """Lets idle threads end, and the others after their work."""
        if not is_renewed():
            return  # there are none
        with self._lock:
            self._closed = True
            while self.waiting:
                self.waiting.popitem()[1].release()


def _contained(error: BaseException) -> BaseException:
    """Returns what work for another process raised, as something that cannot end this one: an event loop would end."""
    if isinstance(error, (Exception, asyncio.CancelledError)):
        return error
    contained = LeafError(f"Work on a thread raised {type(error).__name__}: {text_of(error)}")
    contained.__cause__ = error
    return contained


def _in_environment(work: Callable[[], _T]) -> _T:
    with current_scope().environment():
        return work()


def count_threads() -> tuple[int, int]:
    """Returns how many threads all pools of this process have, and how many of these are busy."""
    pools = open_pools()
    return sum(pool.threads for pool in pools), sum(pool.busy for pool in pools)


def open_pools() -> list[ThreadPool]:
    """Returns all pools of this process."""
    return [pool for reference in tuple(_pools) if (pool := reference()) is not None]
