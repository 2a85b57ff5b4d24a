"""Runs blocks of clients of which some may fail or be absent.

A block runs over whole columns first. If a client fails, the clients of the block run again one by one, and so do those
of all further blocks, unless the program prefers columns. Nothing stands in for a client that has failed or is absent.
"""

import functools
import itertools
import time
from collections.abc import Callable, Sequence

import attrs

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.interpreter import ProgramRunner, prefers_columns, run_columns
from fedstack.computations.plan.program import Program
from fedstack.computations.values.columns import Column, ListColumn
from fedstack.computations.values.shared_columns import bytes_per_client
from fedstack.errors import ClientLeftOutError, ClientTimeoutError, FedstackError
from fedstack.executors.base.block import Block
from fedstack.executors.base.phase_sink import ResultStream, Sink
from fedstack.executors.base.timed_calls import TimedCalls, TooLate
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.survivors.ending import left_out
from fedstack.executors.survivors.tolerance import Tolerance, is_own, may_run_again
from fedstack.foundations.traceback_filter import without_frames
from fedstack.transport.wire.frames import RunningClients

# A worker leaves this many clients of a phase to other workers because they have failed. Further ones run again here.
_MOST_ELSEWHERE = 1000


@attrs.frozen(eq=False)
class _Failed:
    """A client that has failed.

    Attributes:
      error: Its error.
      runs_again: Whether another worker is to run it.
      has_run: Whether it has begun.
    """

    error: FedstackError
    runs_again: bool
    has_run: bool = True


@attrs.define(eq=False)
class _TimedClient:
    """A client that runs within a time limit, and may go on running. The closure that runs it keeps this alive.

    Attributes:
      client: Its index.
      name: The names of its functions.
      begin: When it began, as returned by `time.perf_counter`.
    """

    client: int
    name: str
    begin: float

    def work(self) -> list[RunningClients]:
        """Returns the work of the client; see `ReportsWork`."""
        return [RunningClients(self.client, 1, self.name, time.perf_counter() - self.begin, self.client)]


class TolerantBlocks:
    """The blocks of one phase. Several threads may run blocks at the same time.

    Args:
      program: The linked program.
      tolerance: The conditions of the phase.
      sink: Receives the results of the clients that are present, and the errors of those that fail.
      name: The names of the functions, for error messages.

    Attributes:
      result_bytes: The size of the arrays that a client has yielded; 0 if it is not known.
    """

    def __init__(self, program: Program, tolerance: Tolerance, sink: Sink, name: str) -> None:
        self._name = name
        self._program = program
        self._tolerance = tolerance
        self._sink = sink
        self._ending = tolerance.ending
        self._keeps_columns = prefers_columns(program)
        self._runs_alone = False
        # Several threads draw from it.
        self._elsewhere = itertools.repeat(True, _MOST_ELSEWHERE if tolerance.retries_elsewhere else 0)
        self._timed = TimedCalls[list[object]](None, None)
        self.result_bytes = 0

    def present(self, clients: range) -> int:
        """Returns the number of clients that are present before the block runs."""
        return len(clients) - len(self._tolerance.absent_in(clients))

    @property
    def is_timed(self) -> bool:
        """Whether a client that takes too long is not waited for, so that clients run one by one."""
        return self._tolerance.client_seconds is not None or self._ending is not None

    @property
    def ends_early(self) -> bool:
        """Whether the phase may end before all clients are done."""
        return self._ending is not None

    def use(self, threads: LeafThreads | None) -> None:
        """Sets the threads on which clients run if their time is limited. Call `close` after the last block."""
        self._timed = TimedCalls[list[object]](threads, self._tolerance.client_seconds, self._ending)

    def close(self) -> None:
        """Lets the threads end on which clients have run."""
        self._timed.close()
        self._timed = TimedCalls[list[object]](None, None)  # the threads must not outlive their owner

    def run(self, columns: Sequence[Column], clients: range, *, streams: bool, block: Block) -> int:
        """Runs a block, and returns the number of clients that have failed.

        Args:
          columns: For each input of the program, a column of exactly the given clients.
          clients: The clients of the block.
          streams: Whether the clients run one by one in any case, because their results are large.
          block: Counts the clients that are done.

        Raises:
          Exception: An error that is not a failure of a client.
        """
        failed = 0
        for part, is_present in self._tolerance.parts(clients):
            if not is_present:
                self._sink.skip(part, {})
                continue
            start, stop = part.start - clients.start, part.stop - clients.start
            own = columns if len(part) == len(clients) else [column.slice(start, stop) for column in columns]
            is_alone = streams or len(part) == 1 or (self._runs_alone and not self._keeps_columns)
            if is_alone or not self._run_together(own, part):
                failed += self._run_alone(own, part, start, block)
        return failed

    def _run_together(self, columns: Sequence[Column], clients: range) -> bool:
        """Runs clients over whole columns, and returns whether none of them has failed."""
        first, begin = clients.start, time.perf_counter()
        try:
            here = [column.here() for column in columns]
        except FedstackError:
            return False  # whose values cannot be read shows when each client runs alone
        try:
            results = run_columns(self._program, here, first, len(clients), finds_first=False)
            self._sink.check(first, results)
        except FedstackError as error:
            if not is_own(error):
                raise
            self._runs_alone = True
            return False
        self.result_bytes = sum(map(bytes_per_client, results))
        self._sink.feed(first, results)
        self._sink.took(clients, time.perf_counter() - begin)
        return True

    def _run_alone(self, columns: Sequence[Column], clients: range, before: int, block: Block) -> int:
        """Runs clients one by one, and returns the number of clients that have failed."""
        if not self.is_timed:
            return self._run_each(columns, clients, lambda call: call(), before, block)
        with self._timed.lent() as make:
            return self._run_each(columns, clients, make, before, block)

    def _run_each(
        self,
        columns: Sequence[Column],
        clients: range,
        make: Callable[[Callable[[], list[object]]], list[object]],
        before: int,
        block: Block,
    ) -> int:
        run, sink, failed = ProgramRunner(self._program).run, self._sink, 0

        def results_of(client: int, timed: _TimedClient) -> list[object]:
            index = client - clients.start
            try:
                alone = [column.slice(index, index + 1).here() for column in columns]
            except FedstackError as error:
                error.client_index = client  # the values are the client's own, wherever they are
                raise
            results = run([column.items()[0] for column in alone], client)
            sink.check(client, [ListColumn([result]) for result in results])
            return results

        stream: ResultStream | None = None  # an empty one would stand where another block begins
        for index, client in enumerate(clients):
            begin = time.perf_counter()
            timed = _TimedClient(client, self._name, begin)
            results = self._run_client(timed, functools.partial(make, functools.partial(results_of, client, timed)))
            del timed  # only a function that is late keeps it
            if not isinstance(results, _Failed) or results.has_run:
                sink.took(range(client, client + 1), time.perf_counter() - begin)
            if isinstance(results, _Failed):
                if stream is not None:
                    stream.close()
                    stream = None
                if results.runs_again:
                    sink.leave_out(client, results.error)
                else:
                    sink.skip(range(client, client + 1), {client: results.error})
                failed += 1
            else:
                if stream is None:
                    stream = sink.stream(client)
                stream.add(results)
                if self._ending is not None:
                    self._ending.done()
            block.done = before + index + 1
        if stream is not None:
            stream.close()
        return failed

    def _run_client(self, timed: _TimedClient, call: Callable[[], list[object]]) -> "list[object] | _Failed":
        """Runs a client, and returns its results. If it fails, it may run again, here or on another worker."""
        client, tries, ending = timed.client, self._tolerance.retries, self._ending
        if ending is not None and ending.is_over:
            return _Failed(left_out(client), runs_again=ending.leaves_out, has_run=False)
        while True:
            try:
                return call()
            except (FedstackError, TooLate) as raised:
                error = self._late(timed) if isinstance(raised, TooLate) else raised
                if not is_own(error):
                    raise
            error.client_index = client
            may_repeat = may_run_again(error)
            is_unfinished = isinstance(error, ClientLeftOutError) or (may_repeat and tries > 0)
            if ending is not None and ending.is_over and is_unfinished:
                return _Failed(left_out(client), runs_again=ending.leaves_out, has_run=False)
            if may_repeat and next(self._elsewhere, False):
                return _Failed(without_frames(error), runs_again=True)
            if not may_repeat or not tries:
                return _Failed(without_frames(error), runs_again=False)
            tries -= 1

    def _late(self, timed: _TimedClient) -> ClientTimeoutError:
        client, abandoned = timed.client, current_scope().abandoned
        if abandoned is not None:
            abandoned.name(timed)
        if self._ending is not None and self._ending.is_over:
            return left_out(client)
        seconds = self._tolerance.client_seconds
        error = ClientTimeoutError(
            f"{self._name!r} took longer than client_seconds={seconds:g} at client {client}; allow more time, or find "
            "out what the function waits for"
        )
        error.computation_name = self._name
        return error
