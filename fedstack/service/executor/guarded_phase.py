"""Runs clients of a phase in child processes, so that a client that ends its process does not end the worker.

A caller asks for this once clients of the phase have ended other workers. A child runs one range of clients after the
other, and the worker passes on what each range has contributed. If the child ends, the clients that were running run
again, each alone. A client that ends its process again, and this time a new one, has failed. If failures are tolerated,
the phase goes on without the client.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from fedstack.computations.codec.packing import Packer
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.errors import FedstackError, LeafError
from fedstack.executors.base.hand_ins import Headway, estimated_rate, kept_until
from fedstack.executors.composing_executor import skipped
from fedstack.executors.concurrency.leaf_threads import CORES, LeafThreads, off_loop
from fedstack.executors.concurrency.observed_phases import name_of
from fedstack.executors.folds.aggregate_state import BLOCK
from fedstack.executors.folds.aggregations import partial_states
from fedstack.executors.remote.phase_messages import ReceivedPhase
from fedstack.executors.remote.phase_results import write_result
from fedstack.executors.survivors.ending import left_out
from fedstack.executors.survivors.failure_messages import failed_in, read_tolerance
from fedstack.executors.worker.phase_pipeline import Outbox, PhaseHost, admit
from fedstack.executors.worker.receiving import Received
from fedstack.foundations.process_endings import ending_of, users_lines_in
from fedstack.membership.ledger import may_be_its_own
from fedstack.proto.extensions_pb2 import PhaseRequest, PhaseResponse, Status
from fedstack.service.executor.isolated_phase import ForChildren, content_of
from fedstack.service.executor.isolation_child import ChildOptions, views_of
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.executor.serving_child import Died, RangeAnswer, ServingChild
from fedstack.transport.wire.parcels import Parcel
from fedstack.transport.wire.status import error_from_status

# The number of clients of the first range, and of all. Ranges stop growing if they take this long.
_FIRST, _MOST, _ENOUGH_SECONDS = 2 * BLOCK, 16 * BLOCK, 0.25
# A client whose process is killed from outside runs again, but not more often than this: it may exhaust the memory.
_MOST_KILLED = 3


async def run_guarded(core: ServiceCore, host: PhaseHost, received: Received[PhaseRequest], outbox: Outbox) -> Parcel:
    """Runs a phase in child processes, and returns the last response.

    Args:
      core: The shared state of the service.
      host: The host on which the phase would run.
      received: The request of the phase.
      outbox: Receives the responses that precede the last one.

    Raises:
      LeafError: If a client ends its process and no failures are tolerated.
    """
    request = received.message
    admitted = await admit(received, ForChildren(host.admission))
    await received.fill(admitted.unpacker)
    request.guarded = False
    content = await off_loop(lambda: content_of(request, admitted.phase))
    with host.lend(request.clients) as engine:
        leaf_threads = engine.leaf_threads
    most_threads = leaf_threads.max_threads if leaf_threads else CORES
    options = ChildOptions(
        admitted.phase.clients, 0.0, most_threads, CarrierPolicy(*core.policy.rules), core.limits, serves=True
    )
    async with core.isolated:
        guarded = _Guarded(admitted.phase, request, lambda: ServingChild(options, content), outbox, host.chunk_bytes)
        try:
            return await guarded.run()
        finally:
            await guarded.close()


class _Guarded:
    """One run of a phase in child processes."""

    def __init__(
        self,
        phase: ReceivedPhase,
        request: PhaseRequest,
        start: Callable[[], ServingChild],
        outbox: Outbox,
        chunk_bytes: int,
    ) -> None:
        self._phase = phase
        self._start = start
        self._outbox = outbox
        self._chunk_bytes = chunk_bytes
        outbox.admitted(request, phase.clients)
        self._tolerance = read_tolerance(request, outbox.ending)
        self._tells = request.tells
        self._child = start()
        self._threads = LeafThreads(1, work_ends=True)
        self._next, self._stop = phase.clients.start, phase.clients.stop
        self._running = 0
        self._begun = time.monotonic()
        self._steps = len(phase.phase.program.steps)
        self._returned: Counter[int] = Counter()  # of the clients of a range, how many functions have returned
        self._progress = current_scope().progress

    async def run(self) -> Parcel:
        if self._progress is not None:
            self._progress.expect(len(self._phase.clients))
        self._outbox.begun(self._leave)
        unwatch = self._outbox.ending.watch(lambda: self._child.end())
        try:
            return await self._run_ranges()
        finally:
            unwatch()

    @property
    def _is_over(self) -> bool:
        """Whether nobody waits for clients that are not done."""
        return self._outbox.ending.is_over

    def _note(self, client: int) -> None:
        """Counts a client as done once all of its functions have returned: the phase may end while its range runs."""
        self._returned[client] += 1
        if self._returned[client] == self._steps and self._progress is not None:
            self._progress.finished(1)

    async def _run_ranges(self) -> Parcel:
        progress, size = self._progress, _FIRST
        while True:
            stop = min((self._next // BLOCK * BLOCK) + size, self._stop)
            clients, begin = range(self._next, max(stop, self._next)), time.monotonic()
            self._next, self._running = clients.stop, len(clients)
            self._returned.clear()
            if progress is not None:
                progress.started(len(clients))
            responses = await self._responses_of(clients)
            self._running = 0
            failed = sum(failed_in(response) for _, response, _ in responses)
            if progress is not None:
                counted = sum(count >= self._steps for count in self._returned.values())
                done = max(counted, len(clients) - failed)  # a client that was done may fail when it runs again
                progress.finished(done - counted)
                progress.failed(len(clients) - done)
            is_last = self._next >= self._stop
            for index, (part, response, data) in enumerate(responses):
                if is_last and index == len(responses) - 1:
                    if self._stop != self._phase.clients.stop:
                        response.shortened = len(part)
                    return self._parcel(response, data, is_last=True)
                response.handed_in = len(part)
                self._outbox.handed_in += len(part)
                self._outbox.put(self._parcel(response, data, is_last=False))
            if self._is_over:
                size = len(self._phase.clients)
            elif time.monotonic() - begin < _ENOUGH_SECONDS:
                size = min(2 * size, _MOST)

    def _parcel(self, response: PhaseResponse, data: bytes, *, is_last: bool) -> Parcel:
        segments = [memoryview(data)] if data else []
        return Parcel(response.SerializeToString(), segments, self._chunk_bytes, is_last=is_last)

    async def _leave(self, rate: float) -> Headway:
        """Leaves clients that have not begun to another worker; see `Leave`."""
        done = self._next - self._phase.clients.start - self._running
        if rate > 0:
            own = estimated_rate(done, self._running, time.monotonic() - self._begun, rate)
            self._stop = kept_until(range(self._next, self._stop), self._running, own, rate)
        return Headway(self._stop, done)

    async def _responses_of(self, clients: range) -> Sequence[tuple[range, PhaseResponse, bytes]]:
        """Runs clients, and returns the responses for them: one, or one for each if some of them end the child."""
        if self._is_over:
            return [(clients, *self._without(clients, again={client: left_out(client) for client in clients}))]
        answer = await self._answer(clients)
        if not isinstance(answer, Died):
            return [(clients, *_read(answer))]
        suspects = sorted(set(answer.running) & set(clients)) or clients  # or it died before any client ran
        found: list[tuple[range, PhaseResponse, bytes]] = []
        start = clients.start
        for client in suspects:
            alone = range(client, client + 1)
            if start < client:
                found += await self._responses_of(range(start, client))
            again = await self._alone(alone)
            found.append((alone, *(self._failed(client, again) if isinstance(again, Died) else _read(again))))
            start = client + 1
        return [*found, *(await self._responses_of(range(start, clients.stop)))] if start < clients.stop else found

    async def _alone(self, client: range) -> RangeAnswer | Died:
        """Runs a client alone, until it ends a new process or none."""
        killed = 0
        while True:
            is_new = self._child.is_new
            answer = await self._answer(client)
            if not isinstance(answer, Died):
                return answer
            if not may_be_its_own(answer.status):
                killed += 1
            if killed == _MOST_KILLED or (is_new and may_be_its_own(answer.status)):
                return answer

    async def _answer(self, clients: range) -> RangeAnswer | Died:
        """Runs clients in the child. If the child has ended, the next clients run in another one."""
        answer = await self._threads.run(lambda: self._child.run(clients, self._note), self._child.kill)
        if answer is None:
            raise asyncio.CancelledError
        if isinstance(answer, Died):
            self._child.close()
            self._child = self._start()
            for client in [client for client in clients if self._returned[client] < self._steps]:
                del self._returned[client]
        return answer

    def _failed(self, client: int, died: Died) -> tuple[PhaseResponse, bytes]:
        """Returns the response for a client that has ended its process.

        Raises:
          LeafError: If failures are not tolerated.
        """
        name = name_of(self._phase.phase.program)
        error = LeafError(
            f"{name!r} crashed its process with {ending_of(died.status)}; at client {client}"
            f"{users_lines_in(died.said)}",
            computation_name=name,
            client_index=client,
        )
        if self._tolerance is None:
            raise error
        response, content = self._without(range(client, client + 1), {client: error})
        if self._tells:
            response.ran.add(first_client=client, clients=1)  # here, for a time that is not known
        return response, content

    def _without(
        self,
        clients: range,
        errors: Mapping[int, FedstackError] | None = None,
        again: Mapping[int, FedstackError] | None = None,
    ) -> tuple[PhaseResponse, bytes]:
        """Returns the response for clients none of which is done; see `skipped`."""
        phase = self._phase.phase
        absent = set(self._tolerance.absent_in(clients) if self._tolerance is not None else ())
        again = {client: error for client, error in (again or {}).items() if client not in absent}
        states = partial_states(phase, self._phase.arguments)
        result = skipped(phase, self._phase.arguments, clients, errors or {}, again)
        packer = Packer()
        response = write_result(phase, states, result, packer)
        return response, b"".join(bytes(view) for segment in packer.segments for view in views_of(segment))

    async def close(self) -> None:
        """Ends the child."""
        await off_loop(self._child.close)
        self._threads.close()


def _read(answer: RangeAnswer) -> tuple[PhaseResponse, bytes]:
    """Returns the response of a child.

    Raises:
      Exception: The error of the phase.
    """
    if answer.failed:
        status = Status.FromString(answer.header)
        error = error_from_status(status.code, status.message, answer.header, "a child process")
        raise error from error.__cause__
    return PhaseResponse.FromString(answer.header), answer.data
