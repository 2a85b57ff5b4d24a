"""Runs jobs on threads, which start and end as needed, within a bound and as far as the system allows.

Owners of jobs take turns at the threads, so that an owner with many jobs delays its own and not those of others.
"""

import contextlib
import itertools
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from fedstack.errors import ClosedError, ResourceLimitError
from fedstack.executors.concurrency.jobs import Job, Seat
from fedstack.foundations.after_fork import is_renewed, renew_after_fork
from fedstack.observe.events import WorkCancelled
from fedstack.observe.observers import observers
from fedstack.transport.peers.daemon_threads import start_daemon

_T = TypeVar("_T")


class TurnQueue(Generic[_T]):
    """A queue whose owners take turns; each gets its own items in their order."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[_T]] = OrderedDict()
        self._size = 0

    def append(self, item: _T, owner: str) -> None:
        """Adds an item behind the others of its owner."""
        self._items.setdefault(owner, deque()).append(item)
        self._size += 1

    @property
    def owners(self) -> Iterator[str]:
        """The owners, in the order of their turns."""
        return iter(self._items)

    def popleft(self, owner: str | None = None) -> _T:
        """Takes out the first item of an owner; by default of the first owner."""
        owner = next(self.owners) if owner is None else owner
        items = self._items[owner]
        item = items.popleft()
        self._size -= 1
        if items:
            self._items.move_to_end(owner)
        else:
            del self._items[owner]
        return item

    def remove(self, item: _T) -> None:
        """Takes out an item, if it is there."""
        for owner, items in self._items.items():
            if item in items:
                items.remove(item)
                self._size -= 1
                if not items:
                    del self._items[owner]
                return

    def take_all(self) -> list[_T]:
        """Takes out everything."""
        found = list(self)
        self._items.clear()
        self._size = 0
        return found

    def __iter__(self) -> Iterator[_T]:
        for items in self._items.values():
            yield from items

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<TurnQueue of {self._size} items of {len(self._items)} owners>"


class _Serving(threading.local):
    """The jobs that the current thread runs, one inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.seats: list[tuple[ThreadPool, Seat]] = []


_serving = _Serving()
_thread_numbers = itertools.count(1)
_pools: "set[weakref.ref[ThreadPool]]" = set()


@contextlib.contextmanager
def waiting() -> Generator[None, None, None]:
    """Lets the pools that the current thread works for use another thread while this one only waits.

    Otherwise work that waits for other work of the same pool could wait forever.
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
    """The jobs of a `LeafThreads`, and the threads that run them."""

    def __init__(self, max_threads: int, idle_seconds: float, for_others: int = 0) -> None:
        self._max_threads = max_threads
        self._for_others = for_others
        self._idle_seconds = idle_seconds
        self._closed = False
        self.renew()
        renew_after_fork(self)
        _pools.add(weakref.ref(self, _pools.discard))

    def renew(self) -> None:
        """Starts without threads and jobs: a forked child does not have its parent's threads."""
        self.threads = 0
        self._jobs: TurnQueue[Job[Any]] = TurnQueue()
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)  # for guests
        self._idle = 0
        self._is_woken = False  # whether an idle thread was woken and has not taken a job yet
        self._starting: set[int] = set()
        # The lock that each idle thread waits for, by thread identity: the last to come is the first to go.
        self.waiting: dict[int, threading.Lock] = {}
        # How many threads are unavailable (they wait, or were given up), and how many of these may be replaced.
        self._away = 0
        self._replaced = 0
        # How many threads work for each owner, not counting those that may be replaced.
        self._held: Counter[str] = Counter()
        self._waiting_guests = 0  # callers that want to run work themselves

    @property
    def busy(self) -> int:
        """The number of threads that work."""
        return max(0, self.threads - self._idle)

    def add(self, job: Job[Any]) -> None:
        """Adds a job, and starts a thread for it if none is free."""
        with self._lock:
            if self._closed:
                raise ClosedError("The threads of this executor are closed; create a new executor")
            self._jobs.append(job, job.scope.owner)
            self._wake()
            are_enough = len(self._jobs) <= self._idle
        if not are_enough:
            self._start_threads()

    def _wake(self) -> None:
        """Wakes an idle thread for the jobs, unless one is woken already: it wakes the next when it takes a job.

        If jobs are short, the first thread runs them all. Waking a thread for each job would only make them wait for
        each other and the interpreter lock.
        """
        if self._jobs and self.waiting and not self._is_woken:
            self._is_woken = True
            self.waiting.popitem()[1].release()

    def run_here(self, work: Callable[[], _T]) -> _T:
        """Waits until the pool has room, then runs work on the caller's thread, which counts as one of the pool's."""
        if _serving.seats and any(pool is self for pool, _ in _serving.seats):
            return work()  # the thread counts already
        with self._lock:
            # An idle thread makes room: it checks the number of threads before it begins a job.
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
                if self._lock is lock:  # a forked child counts from zero
                    self.threads -= 1
                self._let_callers_in()
                has_jobs = bool(self._jobs)
            if has_jobs:
                self._start_threads()

    def _let_callers_in(self) -> None:
        """Lets callers that want to run work themselves check again for room."""
        if self._waiting_guests:
            self._room.notify_all()

    def remove(self, job: Job[Any]) -> None:
        """Removes a job that was cancelled before it began."""
        with self._lock:
            self._jobs.remove(job)

    def _start_threads(self) -> None:
        """Starts a thread for each job that no idle thread is left for, within the limit.

        If the system starts none, jobs wait for the existing threads; if none of those will come back, jobs fail.
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
        """Starts one more thread for owners who still wait after the current thread has taken a job."""
        if self._for_others and self._jobs and not self._idle:
            self._start_threads()

    def _take_back(self, number: int) -> None:
        """Stops counting a thread whose start failed; if it begins after all, it ends at once."""
        with self._lock:
            if number in self._starting:
                self._starting.remove(number)
                self.threads -= 1
                self._idle -= 1

    def set_aside(self, seat: Seat, waits: int) -> None:
        """Counts that a thread begins to wait for other work, or with -1, has stopped waiting."""
        with self._lock:
            self._count(seat, -1)
            seat.waits += waits
            self._count(seat, 1)
            self._let_callers_in()
        self._start_threads()

    def abandon(self, job: Job[Any]) -> None:
        """Gives a job up: its thread may never come back."""
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
        """Adjusts the number of unavailable threads by a thread, if it is one."""
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
        """Returns the owner whose job may have a thread beyond the bound: one with less than half of the threads.

        Args:
          more: The number of threads to start for it.
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
            del job  # an idle thread must not keep its last job's data alive
            job = self._next_job()
            self._start_threads_for_others()

    def _next_job(self) -> Job[Any] | None:
        """Waits for a job, on a thread that counts as idle; `None` means that the thread ends and no longer counts."""
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
        """Waits, under the lock, until there are jobs or the idle time has passed."""
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
                self._is_woken = False  # this thread was woken, and is here now

    def _is_surplus(self) -> bool:
        """Returns whether there are too many threads, because abandoned work has ended or callers work themselves.

        A thread that comes back from abandoned work stays for the jobs, unless other owners have threads of their own.
        """
        is_beyond = self.threads - self._replaced > self._max_threads
        return is_beyond and (self._for_others > 0 or self.threads - 1 > self._away)

    def close(self) -> None:
        """Ends idle threads now, and the others after their work."""
        if not is_renewed():
            return  # a forked child has none
        with self._lock:
            self._closed = True
            while self.waiting:
                self.waiting.popitem()[1].release()


def count_threads() -> tuple[int, int]:
    """Returns the number of threads of all pools of this process, and how many of them are busy."""
    pools = open_pools()
    return sum(pool.threads for pool in pools), sum(pool.busy for pool in pools)


def open_pools() -> list[ThreadPool]:
    """Returns all pools of this process."""
    return [pool for reference in tuple(_pools) if (pool := reference()) is not None]
