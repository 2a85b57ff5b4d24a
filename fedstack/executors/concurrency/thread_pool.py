"""Does jobs on threads, which start and end as they are needed; within a bound, and as far as the system has room."""

import contextlib
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from fedstack.errors import ClosedError, ResourceLimitError
from fedstack.executors.concurrency.jobs import Job, Seat
from fedstack.executors.concurrency.turns import TurnQueue
from fedstack.foundations.after_fork import is_renewed, renew_after_fork
from fedstack.observe.events import WorkCancelled
from fedstack.observe.observers import observers
from fedstack.transport.peers.daemon_threads import start_daemon

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


class ThreadPool:
    """The jobs of a `LeafThreads`, and the threads that do them."""

    def __init__(self, max_threads: int, idle_seconds: float, for_others: int = 0) -> None:
        self._max_threads = max_threads
        self._for_others = for_others
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
        # How many of the threads are at work for whom, those that are replaced aside.
        self._held: Counter[str] = Counter()
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
                has_room = room > 0 or (not self._idle and self._spared_for(more=1) is not None)
                if failure or not has_room or len(self._jobs) <= self._idle:
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

    def _start_threads_for_others(self) -> None:
        """Starts one more for those whom a thread that has just taken a job has left waiting."""
        if self._for_others and self._jobs and not self._idle:
            self._start_threads()

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
        is_replaced = seat.waits > 0 or seat.is_replaced
        self._replaced += sign * is_replaced
        if is_replaced:
            self._hold(seat.owner, -sign)

    def _hold(self, owner: str, threads: int) -> None:
        self._held[owner] += threads
        if not self._held[owner]:
            del self._held[owner]

    def _spared_for(self, more: int = 0) -> str | None:
        """Returns whose job gets a thread beyond the bound: that of an owner with less than half of the threads.

        Args:
          more: How many threads are to be started for it.
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
            del job  # an idle thread must not keep the last work's data alive
            job = self._next_job()
            self._start_threads_for_others()

    def _next_job(self) -> Job[Any] | None:
        """Waits for work, on a thread that is counted as idle; `None` means that it is to end, and counts no longer."""
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

        One that comes back from abandoned work stays for the jobs, unless others have threads of their own.
        """
        is_beyond = self.threads - self._replaced > self._max_threads
        return is_beyond and (self._for_others > 0 or self.threads - 1 > self._away)

    def close(self) -> None:
        """Lets idle threads end, and the others after their work."""
        if not is_renewed():
            return  # there are none
        with self._lock:
            self._closed = True
            while self.waiting:
                self.waiting.popitem()[1].release()


def count_threads() -> tuple[int, int]:
    """Returns how many threads all pools of this process have, and how many of these are busy."""
    pools = open_pools()
    return sum(pool.threads for pool in pools), sum(pool.busy for pool in pools)


def open_pools() -> list[ThreadPool]:
    """Returns all pools of this process."""
    return [pool for reference in tuple(_pools) if (pool := reference()) is not None]
