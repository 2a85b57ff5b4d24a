"""Runs a program for many clients, block by block, on one thread or on as many as pay."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from fedstack.computations.leaves.bound_operation import ThreadPlace
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.interpreter import ProgramRunner, max_parallel, prefers_columns, run_columns
from fedstack.computations.plan.program import Program
from fedstack.computations.values.columns import Column, ConstantColumn, ListColumn, StructColumn
from fedstack.errors import FedstackError
from fedstack.executors.base.phase_sink import Sink
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import CORES, LeafThreads, one_blas_thread
from fedstack.executors.concurrency.measurements import measurements_of, preemptions
from fedstack.executors.concurrency.progress import name_of
from fedstack.executors.concurrency.thread_pool import waiting
from fedstack.transport.wire.frames import RunningClients

_BLOCK_SECONDS = 0.004
# Results from this size on go into the folds client by client: they leave the cache before a block is done.
_LARGE_BYTES = 64 * 1024
# Above this size of results, more threads than cores would cost memory and save no time.
_TOO_LARGE_TO_WAIT = 1 << 20
# If results are large, threads fold neighbours, so that partial results do not move from core to core.
_STREAMED_SECONDS = 0.03
_HELPER_DELAY_SECONDS = 0.005
_HELPER_MOST_DELAY_SECONDS = 0.3
_HELPER_MIN_SECONDS = 0.0002
# Below this share of one core, the workers wait for something. Even a core that others keep busy gives more.
_WAITING_CPU_SHARE = 0.15
# A helper has to reduce the time per client to this part of the time on one thread, or it leaves.
_HELPER_MIN_GAIN = 0.9
_CLIENTS_TO_JUDGE = 8
# The time on one thread is measured when caches are warm, and again now and then: machines have other work, too.
_RUNS_BETWEEN_MEASUREMENTS = 32


@attrs.define(eq=False)
class _Block:
    """Clients that run on one thread, one after the other.

    Attributes:
      start: The first client.
      stop: The client after the last.
      begin: The start time, on the clock of `time.perf_counter`.
      place: The client that the thread is at.
      is_counted: Whether `done` counts the clients.
      done: The number of clients that are done.
    """

    start: int
    stop: int
    begin: float
    place: ThreadPlace
    is_counted: bool
    done: int = 0

    def work(self, function: str, now: float) -> RunningClients:
        """Returns the running work, with its client if that is known."""
        if self.is_counted:
            first = min(self.start + self.done, self.stop - 1)
            return RunningClients(first, 1, function, now - self.begin)
        client = self.place.client()
        if client == self.stop:
            client = None  # all clients have returned
        return RunningClients(self.start, self.stop - self.start, function, now - self.begin, client)


class ClientBlocks:
    """One run of a program over a range of clients.

    A block is an aligned range of clients: a node of the folds' tree. The calling thread takes blocks until none is
    left. Helpers are threads that do the same beside it; a cheap function never pays for one. The rules:

      May helpers come?     If there are threads, two clients or more, `max_threads` above 1, and the run is expected to
                            take more than 10 ms, or was never measured.
      When does the first   At once if a client is known to take 0.2 ms; otherwise after 5 ms. Two of 32 runs wait
      come?                 5 ms in any case, to measure one thread alone.
      And the next?         5 ms after the one before it has joined.
      Does it come?         If a client takes 0.2 ms. Or if the workers only wait: they used less than 15 % of a core in
                            that time, and a client yields at most 1 MiB. Otherwise the next check is after twice the
                            time, up to 0.3 s: a function that first loads or computes may wait later.
      How many work?        One thread per core; up to `max_threads` while the workers only wait.
      When does it leave?   After a block, once 8 clients and 5 ms, not counting blocks that other programs disturbed,
                            show that all workers together still take 90 % of the time of one thread, or more: then the
                            function holds the interpreter lock. For 1 run no helper comes after that, unless the
                            workers only wait; if the next does not help either, for 3, 7, … 63 runs.
      How large is a        A power of two that takes about 4 ms; `smallest_block` while nothing is known. At most 8
      block?                times the clients that are done. Beside other workers, half of its share of the rest.
      How do results get    By blocks, as columns. But client by client, in blocks of 30 ms, if a client yields more
      into the folds?       than 64 KiB and no step prefers columns: each result is in the cache then.
      How far ahead may     Any distance; about four blocks if the sink needs them in order.
      blocks be?

    Later runs plan with the program's `Measurements`, which this run updates.

    Args:
      program: The linked program.
      inputs: A column of exactly those clients for each of its inputs.
      clients: The clients, counted over the whole federation.
      sink: Takes the results of the program.
      smallest_block: The fewest clients that a thread takes at a time; by default one.
      max_threads: The most threads, the calling one included; by default 32, or one per core if that is more.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Column],
        clients: range,
        sink: Sink,
        *,
        smallest_block: int | None = None,
        max_threads: int | None = None,
    ) -> None:
        self.program = program
        self.measured = measurements_of(program)
        self.inputs = inputs
        self.clients = clients
        self.sink = sink
        self.smallest_block = smallest_block or 1
        bounds = (max_threads or max(32, CORES), max_parallel(program))
        self.max_threads = min(one for one in bounds if one is not None)
        scope = current_scope()
        self.progress = scope.progress if program.steps else None
        self._cores = scope.cores or CORES
        self._finished: threading.Event | None = None  # made when helpers are expected
        self._next = clients.start
        self._working: dict[int, _Block] = {}  # running blocks by their start
        self._error: BaseException | None = None
        self._error_client = clients.stop
        self._cancelled = False
        self._workers = 0
        self._expected = 1  # workers, including those that were called and have not begun
        self._done = 0
        self._seconds = 0.0
        self._alone: float | None = None
        self._streams = bool(inputs) and not prefers_columns(program)
        self._room = threading.Condition()  # over its own RLock: a Lock would take three times as long to set up
        self._helpers: list[Job[None]] = []

    def cancel(self, threads: LeafThreads) -> None:
        """Makes every worker stop after its block, and gives up helpers from `threads`, which may take long to stop."""
        self._cancelled = True
        if self._finished is not None:
            self._finished.set()
        while self._helpers:
            threads.abandon(self._helpers.pop())

    def run(self, threads: LeafThreads | None) -> None:
        """Runs all blocks, with helpers from `threads` where that pays.

        Raises:
          Exception: The error of the failed client with the lowest index.
        """
        if self.progress is not None:
            self.progress.watch(self)
        known = self.measured.seconds_per_call
        size = len(self.clients)
        if (
            threads is not None
            and self.max_threads > 1
            and size > 1
            and (known is None or known * size > 2 * _HELPER_DELAY_SECONDS)
        ):
            self.measured.runs_without_helpers = max(0, self.measured.runs_without_helpers - 1)
            # A program that is known to be slow gets its first helper at once; an unknown one runs a moment first.
            is_measured = self.measured.runs % _RUNS_BETWEEN_MEASUREMENTS <= 1
            self.measured.runs += 1
            if known is not None and self._pays(known) and not is_measured:
                self._alone = known
                self._call_helper(threads, waits=False)
            # By a weak reference: the pool ends with its last user, which must not be one of its own threads.
            finished, found = threading.Event(), weakref.ref(threads)
            self._finished = finished
            self._helpers.append(threads.submit(lambda: self._watch(found, finished)))
        try:
            self._work()
            with self._room:
                while self._workers and not self._is_decided():
                    self._room.wait()
        finally:
            self._cancelled = True  # for helpers, if Ctrl-C ended the wait
            if self._finished is not None:
                self._finished.set()
            if threads is not None and self._workers:
                self.cancel(threads)  # helpers that still run can no longer change the outcome
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its frames refer to this object
        if self._done:
            each = self._seconds / self._done
            # With two threads a client may take longer than with one, but hardly less.
            self.measured.seconds_per_call = each if self._alone is None else min(each, self._alone)

    def _is_decided(self) -> bool:
        """Returns whether blocks that still run can no longer change the outcome, so that nothing waits for them."""
        if self._error is None:
            return False
        return not isinstance(self._error, Exception) or all(start > self._error_client for start in self._working)

    def _pays(self, seconds: float | None) -> bool:
        """Returns whether one more computing thread pays for clients that take so long, if that is known."""
        lasts = seconds is None or seconds >= _HELPER_MIN_SECONDS
        return lasts and self._expected < self._cores and self.measured.runs_without_helpers == 0

    def _call_helper(self, threads: LeafThreads, *, waits: bool) -> None:
        """Asks for a helper; without a free thread, the work continues without."""
        with self._room:
            self._expected += 1
        self._helpers.append(threads.submit(lambda: self._help(waits)))

    def _watch(self, found: Callable[[], LeafThreads | None], finished: threading.Event) -> None:
        """Calls one helper after the other while the work continues and they pay."""
        delay = _HELPER_DELAY_SECONDS
        while True:
            cpu, wall = time.process_time(), time.perf_counter()
            with waiting():  # leaves this thread's room in the pool to workers
                if finished.wait(delay):
                    return
            busy = (time.process_time() - cpu) / (time.perf_counter() - wall)
            waits = busy < _WAITING_CPU_SHARE and self.measured.result_bytes <= _TOO_LARGE_TO_WAIT
            with self._room:
                if self._expected >= self.max_threads or self._next >= self.clients.stop or self._error is not None:
                    return
                seconds = self._seconds / self._done if self._done else None
                if self._workers <= 1 and self._alone is None:
                    self._alone = seconds or self.measured.seconds_per_call
                calls = self._workers == self._expected and (waits or self._pays(seconds))
            if calls and (threads := found()) is not None:
                self._call_helper(threads, waits=waits)
                del threads
            delay = max(delay / 2, _HELPER_DELAY_SECONDS) if calls else min(2 * delay, _HELPER_MOST_DELAY_SECONDS)

    def _help(self, waits: bool) -> None:
        """Works beside the others; unless those only wait, for as long as that speeds the work up."""
        if self._next < self.clients.stop:
            with one_blas_thread():
                self._work(is_judged=not waits)

    def work(self) -> list[RunningClients]:
        """Returns the running work by blocks, or by clients where they are counted."""
        now, name = time.perf_counter(), name_of(self.program)
        return [block.work(name, now) for block in list(self._working.values())]

    def _slows_down(self, done: int, seconds: float) -> bool:
        """Returns whether a helper that took so many seconds for so many clients is of no use."""
        if self._alone is None or done < _CLIENTS_TO_JUDGE or seconds < _HELPER_DELAY_SECONDS:
            return False
        workers = max(2, self._workers)  # at the end the others have left already
        is_of_use = seconds / done < _HELPER_MIN_GAIN * self._alone * workers
        self.measured.note_helper(is_of_use)
        return not is_of_use

    def _work(self, *, is_judged: bool = False) -> None:
        """Runs blocks until none is left, or until this thread turns out to be of no use."""
        with self._room:
            self._workers += 1
        try:
            done, seconds, disturbed = 0, 0.0, preemptions() if is_judged else 0
            while self._next < self.clients.stop and (block := self._take()) is not None:
                took = self._run_block(block)
                if is_judged and disturbed == (disturbed := preemptions()):
                    done, seconds = done + block.stop - block.start, seconds + took
                    if self._slows_down(done, seconds):
                        return
        finally:
            with self._room:
                self._workers -= 1
                self._expected -= 1
                self._room.notify_all()

    def _take(self) -> _Block | None:
        with self._room:
            while self.sink.ordered and self._working and self._next - min(self._working) > 4 * self._block_size():
                self._room.wait()
            start = self._next
            if start >= self.clients.stop or self._error is not None or self._cancelled:
                return None
            size = self._block_size()
            stop = min((start // size + 1) * size, self.clients.stop)
            self._next = stop
            block = _Block(start, stop, time.perf_counter(), ThreadPlace(), self._is_streamed())
            self._working[start] = block
            return block

    def _block_size(self) -> int:
        """Returns a power of two: blocks of that size at multiples of it are nodes of the folds' tree."""
        per_client = self._seconds / self._done if self._done else self.measured.seconds_per_call
        if per_client is None:
            return self.smallest_block
        seconds = _STREAMED_SECONDS if self._is_streamed() else _BLOCK_SECONDS
        wanted = seconds / max(per_client, 1e-9)
        if not self._done:
            wanted = max(wanted, 1.0)
        else:
            wanted = min(wanted, 8.0 * self._done)  # one slow or quick first call must not fix the size
        if self._expected > 1:
            wanted = min(wanted, (self.clients.stop - self._next) / (2 * self._expected))  # all end together
        wanted = max(self.smallest_block, min(wanted, 2.0 * len(self.clients)), 1.0)
        return 1 << (int(wanted).bit_length() - 1)

    def _is_streamed(self) -> bool:
        """Returns whether results go into the sink client by client."""
        return self._streams and self.measured.result_bytes > _LARGE_BYTES

    def _run_block(self, block: _Block) -> float:
        """Runs a block, and returns how long that took."""
        first, size = block.start, block.stop - block.start
        offset = first - self.clients.start
        whole = size == len(self.clients)
        columns = self.inputs if whole else [column.slice(offset, offset + size) for column in self.inputs]
        try:
            if self.progress is not None:
                self.progress.started(size)
            columns = [column.here() for column in columns]
            if block.is_counted:
                stream = self.sink.stream(first)
                add, run = stream.add, ProgramRunner(self.program).run
                for done, inputs in enumerate(zip(*(column.items() for column in columns)), 1):
                    add(run(inputs, first))
                    block.done = done
                    first = block.start + done
                stream.close()
            else:
                results = run_columns(self.program, columns, first, size)
                if not self._done:
                    self.measured.result_bytes = sum(map(_bytes_per_client, results))
                self.sink.feed(first, results)
        except BaseException as error:
            self._count_failure(block, first, error)
            with self._room:
                del self._working[block.start]
                # Ctrl-C counts at whichever client it came.
                if first < self._error_client or not isinstance(error, Exception):
                    self._error, self._error_client = error, first
                self._room.notify_all()
            return 0.0
        seconds = time.perf_counter() - block.begin
        with self._room:
            del self._working[block.start]
            self._done += size
            self._seconds += seconds
            if self.sink.ordered or self._error is not None:
                self._room.notify_all()
        if self.progress is not None:
            self.progress.finished(size)
        return seconds

    def _count_failure(self, block: _Block, first: int, error: BaseException) -> None:
        """Counts the clients of a failed block, as exactly as the failed client is known."""
        if self.progress is None:
            return
        found = error.client_index if isinstance(error, FedstackError) else None
        # Several functions run one after the other for the whole block: then no client is done when one fails.
        if not block.is_counted and found is not None and len(self.program.steps) == 1:
            first = min(max(found, block.start), block.stop)
        done, left = first - block.start, block.stop - first
        if done:
            self.progress.finished(done)
        failed = min(left, 1) if isinstance(error, Exception) else 0
        self.progress.failed(failed, left - failed)


def _bytes_per_client(column: Column) -> int:
    if isinstance(column, StructColumn):
        return sum(map(_bytes_per_client, column.fields))
    if isinstance(column, ConstantColumn):
        return 0
    if isinstance(column, ListColumn) and len(column) and isinstance(column.values[0], np.ndarray):
        return column.values[0].nbytes
    return 0
