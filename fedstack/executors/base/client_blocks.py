"""Runs a program for many clients in blocks, on one thread or, if this is faster, on several."""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from fedstack.computations.leaves.bound_operation import ThreadPlace
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.interpreter import (
    ProgramRunner,
    lanes,
    least_seconds,
    max_parallel,
    prefers_columns,
    run_columns,
)
from fedstack.computations.plan.program import Program
from fedstack.computations.values.columns import Column
from fedstack.computations.values.shared_columns import bytes_per_client
from fedstack.errors import FedstackError
from fedstack.executors.base.block import BLOCK_SECONDS, Block
from fedstack.executors.base.phase_sink import Sink
from fedstack.executors.base.tolerant_blocks import TolerantBlocks
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import CORES, LeafThreads
from fedstack.executors.concurrency.measurements import CoreDemand, HelperTrial, measurements_of, preemptions
from fedstack.executors.concurrency.observed_phases import name_of
from fedstack.executors.concurrency.thread_pool import waiting
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.foundations.blas_threads import OneBlasThread
from fedstack.transport.wire.frames import RunningClients

# Blocks of few clients take longer, because long clients evict the code that runs between blocks from the caches.
_FEW_CLIENTS, _FEW_CLIENTS_SECONDS = 16, 0.016
# With several workers, the last blocks may take this fraction of what makes a call efficient, so that all end together.
_LAST_BLOCKS = 0.25
# With larger results than this, more threads than cores would use memory without saving time.
_TOO_LARGE_TO_WAIT = 1 << 20
# If results are large, each thread folds adjacent clients for this long, so that partial results stay on one core.
_STREAMED_SECONDS = 0.03
_HELPER_DELAY_SECONDS = 0.005
_HELPER_MOST_DELAY_SECONDS = 0.3
_HELPER_MIN_SECONDS = 0.0002
# If the process wants a smaller share of one core than this, its workers are waiting for something else.
_WAITING_CPU_SHARE = 0.15
# Threads whose clients compute for a larger share of their time than this do not only wait.
_COMPUTING_CPU_SHARE = 0.5
# The time on one thread is measured once caches are warm, and again at intervals, as the load of the machine changes.
_RUNS_BETWEEN_MEASUREMENTS = 32


class ClientBlocks:
    """A single run of a program over a range of clients.

    A block is an aligned range of clients, which is a node of the tree that folds follow. The calling thread runs
    blocks until none remain. Helpers are additional threads that run blocks in parallel. The rules are:

      Helpers are used if   Threads are available, there are at least two clients, `max_threads` is above 1, and the run
                            is expected to take more than 10 ms, has never been measured, or limits the time of clients.
      First helper          Starts immediately if a call (of a client, or of a block if a step prefers columns) is
                            known to take at least 0.2 ms, otherwise after 5 ms. Two of 32 runs wait 5 ms in any case,
                            to measure the time on one thread. If the clients of the program have been seen to wait, all
                            helpers that have 5 ms of work start immediately.
      Further helpers       Each is considered 5 ms after the previous helper has joined. It starts if a call takes at
                            least 0.2 ms. As many as there are workers start if these only wait: they used or wanted
                            less than 15 % of a core in this time, and a client yields at most 1 MiB.
                            Otherwise the delay until the next check doubles, up to 0.3 s, because a function that first
                            loads may wait later.
      Number of workers     At most one thread per core, or `max_threads` while the workers only wait.
      A helper stops if     After at least 8 clients and 5 ms, excluding blocks that other programs disturbed, all
                            workers together still take at least 90 % of the time of one thread, and compute on at most
                            1.4 cores. The function then holds the interpreter lock. After that, no helper is used for 1
                            run, unless the workers only wait; if the next helper does not help either, for 3, 7, … 63.
      Block size            A power of two that takes about 4 ms, up to 16 ms for at most 16 clients, or longer if an
                            operation takes long to start; `smallest_block` before the first measurement. It is at most
                            8 times the number of clients that are done. With several workers, it is at most half of a
                            worker's share of the remaining clients. It is one client if the phase may end before all
                            clients are done.
      Results               Are passed to the folds by blocks, as columns. If a client yields more than 64 KiB and no
                            step prefers columns, they are passed client by client, while each result is in the cache,
                            and blocks take about 30 ms.
      Order of blocks       Workers may run any number of blocks ahead of the oldest running block.

    The run plans with the `Measurements` of the program from earlier runs, and updates them.

    Args:
      program: The linked program.
      inputs: For each input of the program, a column of exactly the given clients.
      clients: The indices of the clients in the whole federation.
      sink: Receives the results of the program.
      smallest_block: The minimum number of clients that a thread processes at a time; by default one, or as many as an
        operation processes in one call.
      max_threads: The maximum number of threads, including the calling thread. By default, it is 32 or one per core,
        whichever is larger.
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
        self.smallest_block = max(smallest_block or 1, lanes(program))
        self._least_seconds = least_seconds(program)
        bounds = (max_threads or max(32, CORES), max_parallel(program))
        self.max_threads = min(one for one in bounds if one is not None)
        scope = current_scope()
        self.progress = scope.progress if program.steps else None
        tolerance = scope.of(Tolerance)
        self._tolerant = None if tolerance is None else TolerantBlocks(program, tolerance, sink, name_of(program))
        self._is_timed = self._tolerant is not None and self._tolerant.is_timed  # a client may hold up its thread
        self._cores = scope.cores or CORES
        self._finished: threading.Event | None = None  # created when helpers are expected
        self._next = clients.start
        self._working: dict[int, Block] = {}  # the running blocks, by first client
        self._error: BaseException | None = None
        self._error_client = clients.stop
        self._cancelled = False
        self._workers: set[int] = set()  # the native ids of their threads
        self._expected = 1  # the number of workers, including helpers that have not started yet
        self._done = 0
        self._seconds = self._cpu = 0.0
        self._alone: float | None = None
        self._streams = bool(inputs) and not prefers_columns(program)
        self._room = threading.Condition()  # with its own RLock, because a Lock takes three times as long to set up
        self._helpers: list[Job[None]] = []

    def cancel(self, threads: LeafThreads) -> None:
        """Stops every worker after its current block, and abandons the helpers on `threads`, which may stop late."""
        self._cancelled = True
        if self._finished is not None:
            self._finished.set()
        while self._helpers:
            threads.abandon(self._helpers.pop())

    def run(self, threads: LeafThreads | None) -> None:
        """Runs all blocks, with helpers from `threads` if they reduce the run time.

        Args:
          threads: The threads that run helpers; `None` to run all blocks on the calling thread.

        Raises:
          Exception: The error of the failed client with the lowest index.
        """
        if self._tolerant is not None:
            self._tolerant.use(threads)
        if self.progress is not None:
            self.progress.watch(self)
        known = self.measured.seconds_per_call
        size = len(self.clients)
        if (
            threads is not None
            and self.max_threads > 1
            and size > 1
            and (known is None or known * size > 2 * _HELPER_DELAY_SECONDS or self._is_timed)
        ):
            self.measured.runs_without_helpers = max(0, self.measured.runs_without_helpers - 1)
            # A program that is known to be slow gets its first helper immediately; an unknown one is measured first.
            is_measured = self.measured.runs % _RUNS_BETWEEN_MEASUREMENTS <= 1
            self.measured.runs += 1
            if known is not None and self.measured.waits:
                count = min(size, self.max_threads, int(known * size / _HELPER_DELAY_SECONDS))
                self._call_helpers(threads, max(0, count - 1), waits=True)
            elif known is not None and self._pays(known) and not is_measured:
                self._alone = known
                self._call_helpers(threads, 1, waits=False)
            # A weak reference, because the last user closes the pool, and must not be one of the pool's own threads.
            finished, found = threading.Event(), weakref.ref(threads)
            self._finished = finished
            self._workers.add(threading.get_native_id())  # before somebody looks at what the workers do
            self._helpers.append(threads.submit(lambda: self._watch(found, finished)))
        try:
            self._work()
            # The pool refuses work if all threads are abandoned or wait, so it has to know that this one waits.
            with waiting() if self._workers else contextlib.nullcontext(), self._room:
                while self._workers and not self._is_decided():
                    self._room.wait()
        finally:
            self._cancelled = True  # stops the helpers if Ctrl-C ended the wait
            if self._finished is not None:
                self._finished.set()
            if threads is not None and self._workers:
                self.cancel(threads)  # helpers that are still running can no longer change the outcome
            if self._tolerant is not None:
                self._tolerant.close()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # breaks the reference cycle: the frames of the error refer to this object
        if self._done:
            each = self._seconds / self._done
            # A client may take longer with two threads than with one, but not much less time.
            self.measured.seconds_per_call = each if self._alone is None else min(each, self._alone)
            if self._cpu > _COMPUTING_CPU_SHARE * self._seconds or self.measured.result_bytes > _TOO_LARGE_TO_WAIT:
                self.measured.waits = False

    def _is_decided(self) -> bool:
        """Returns whether running blocks can no longer change the outcome, so that they need not be awaited."""
        if self._error is None:
            return False
        return not isinstance(self._error, Exception) or all(start > self._error_client for start in self._working)

    def _pays(self, seconds: float | None) -> bool:
        """Returns whether adding a computing thread is worthwhile if a client takes `seconds`; `None` means unknown."""
        lasts = seconds is None or seconds >= _HELPER_MIN_SECONDS or prefers_columns(self.program)
        return lasts and self._expected < self._cores and self.measured.runs_without_helpers == 0

    def _call_helpers(self, threads: LeafThreads, count: int, *, waits: bool) -> None:
        """Requests helpers. If no thread is free, the work continues without them."""
        with self._room:
            self._expected += count
        self._helpers += [threads.submit(lambda: self._help(waits)) for _ in range(count)]

    def _watch(self, found: Callable[[], LeafThreads | None], finished: threading.Event) -> None:
        """Starts one helper after another while work remains and helpers are worthwhile."""
        delay = _HELPER_DELAY_SECONDS
        while True:
            demand = CoreDemand(list(self._workers))
            with waiting():  # frees this thread's slot in the pool for workers
                if finished.wait(delay):
                    return
            waits = self.measured.result_bytes <= _TOO_LARGE_TO_WAIT and demand.cores() < _WAITING_CPU_SHARE
            self.measured.waits = waits or self.measured.waits
            with self._room:
                if self._expected >= self.max_threads or self._next >= self.clients.stop or self._error is not None:
                    return
                seconds = self._seconds / self._done if self._done else None
                if len(self._workers) <= 1 and self._alone is None:
                    self._alone = seconds or self.measured.seconds_per_call
                calls = len(self._workers) == self._expected and (waits or self._pays(seconds))
                count = min(len(self._workers), self.max_threads - self._expected) if waits else 1
            if calls and (threads := found()) is not None:
                self._call_helpers(threads, count, waits=waits)
                del threads
            delay = max(delay / 2, _HELPER_DELAY_SECONDS) if calls else min(2 * delay, _HELPER_MOST_DELAY_SECONDS)

    def _help(self, waits: bool) -> None:
        """Runs blocks in parallel with other workers. Stops if this does not help, unless the workers only wait."""
        if self._next < self.clients.stop:
            self._work(is_judged=not waits)

    def work(self) -> list[RunningClients]:
        """Returns the running work: a client for each block that counts its clients, otherwise the whole block."""
        now, name = time.perf_counter(), name_of(self.program)
        return [block.work(name, now) for block in list(self._working.values())]

    def _slows_down(self, trial: HelperTrial) -> bool:
        """Returns whether a helper slows down the work, and records the answer."""
        workers = max(2, len(self._workers))  # near the end, other workers have already stopped
        is_of_use = None if self._alone is None else trial.is_of_use(self._alone, workers)
        if is_of_use is not None:
            self.measured.note_helper(is_of_use)
        return is_of_use is False

    def _work(self, *, is_judged: bool = False) -> None:
        """Runs blocks until none remain or, if `is_judged`, until this thread turns out not to speed up the work."""
        thread = threading.get_native_id()
        with self._room:
            self._workers.add(thread)
        try:
            trial, disturbed = HelperTrial(), preemptions() if is_judged else 0
            with OneBlasThread():  # folds may call functions, too
                while self._next < self.clients.stop and (block := self._take()) is not None:
                    begin = time.thread_time()
                    took = self._run_block(block)
                    if is_judged and disturbed == (disturbed := preemptions()):
                        trial.add(block.stop - block.start, took, time.thread_time() - begin)
                        if self._slows_down(trial):
                            return
        finally:
            with self._room:
                self._workers.discard(thread)
                self._expected -= 1
                self._room.notify_all()

    def _take(self) -> Block | None:
        with self._room:
            start, size = self._next, self._block_size()
            if self._error is not None or self._cancelled:
                return None
            stop = self.sink.claim(min((start // size + 1) * size, self.clients.stop))
            if stop <= start:
                return None
            self._next = stop
            block = Block(start, stop, time.perf_counter(), ThreadPlace(), self._is_streamed())
            self._working[start] = block
            return block

    def _block_size(self) -> int:
        """Returns the number of clients of the next block.

        The size is a power of two, so that blocks that start at multiples of the size are nodes of the tree of folds.
        """
        per_client = self._seconds / self._done if self._done else self.measured.seconds_per_call
        if self._tolerant is not None and self._tolerant.ends_early:
            return 1  # those behind a slow client would never run
        if per_client is None:
            return self.smallest_block
        seconds = _STREAMED_SECONDS if self._is_streamed() else max(BLOCK_SECONDS, 3 * self._least_seconds)
        wanted = max(seconds, min(_FEW_CLIENTS * per_client, _FEW_CLIENTS_SECONDS)) / max(per_client, 1e-9)
        if not self._done:
            wanted = max(wanted, 1.0)
        else:
            wanted = min(wanted, 8.0 * self._done)  # so that an unusually fast first call does not determine the size
        if self._expected > 1:
            wanted = min(wanted, (self.clients.stop - self._next) / (2 * self._expected))  # all workers end together
        least = self._least_seconds * (1.0 if self._expected == 1 else _LAST_BLOCKS)
        wanted = max(wanted, least / max(per_client, 1e-9))
        wanted = max(self.smallest_block, min(wanted, 2.0 * len(self.clients)), 1.0)
        return 1 << (int(wanted).bit_length() - 1)

    def _is_streamed(self) -> bool:
        """Returns whether results are passed to the sink client by client."""
        return self._is_timed or (self._streams and self.measured.yields_large)

    def _run_block(self, block: Block) -> float:
        """Runs a block and returns the time that it took, in seconds; 0 if the block failed."""
        first, size, offset = block.start, block.stop - block.start, block.start - self.clients.start
        parts = None if size == len(self.clients) else [one.slice(offset, offset + size) for one in self.inputs]
        columns = self.inputs if parts is None else parts
        tolerant, clients = self._tolerant, range(first, block.stop)
        present, failed, cpu = size if tolerant is None else tolerant.present(clients), 0, time.thread_time()
        try:
            if self.progress is not None:
                self.progress.started(present)
            columns = columns if tolerant is not None else [column.here() for column in columns]
            if tolerant is not None:
                failed = tolerant.run(columns, clients, streams=block.is_counted, block=block)
                self.measured.result_bytes = tolerant.result_bytes or self.measured.result_bytes
            elif block.is_counted:
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
                    self.measured.result_bytes = sum(map(bytes_per_client, results))
                self.sink.feed(first, results)
        except BaseException as error:
            self._count_failure(block, first, error, size - present)
            with self._room:
                del self._working[block.start]
                # Ctrl-C takes precedence, whichever client it interrupted.
                if first < self._error_client or not isinstance(error, Exception):
                    self._error, self._error_client = error, first
                self._room.notify_all()
            return 0.0
        seconds, cpu = time.perf_counter() - block.begin, time.thread_time() - cpu
        with self._room:
            del self._working[block.start]
            self._done += size
            self._seconds += seconds
            self._cpu += cpu
            if self._error is not None:
                self._room.notify_all()
            reached = min(self._working, default=self._next)
        if self.progress is not None:
            self.progress.finished(present - failed)
            if failed:
                self.progress.failed(failed)
        if tolerant is None:
            self.sink.took(clients, seconds)
        self.sink.reached(reached)
        return seconds

    def _count_failure(self, block: Block, first: int, error: BaseException, absent: int) -> None:
        """Counts the finished, failed and skipped clients of a failed block.

        If it is unknown which client failed, no client of the block is counted as finished.
        """
        if self.progress is None:
            return
        found = error.client_index if isinstance(error, FedstackError) else None
        # If there are several functions, each runs for the whole block before the next function starts. If one fails,
        # no client is done.
        if not block.is_counted and found is not None and len(self.program.steps) == 1:
            first = min(max(found, block.start), block.stop)
        done, left = first - block.start, block.stop - first - absent
        if done:
            self.progress.finished(done)
        failed = min(left, 1) if isinstance(error, Exception) else 0
        self.progress.failed(failed, left - failed)
