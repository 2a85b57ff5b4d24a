"""Runs client phases in another process: one call there and back, whatever the phase has in it."""

import asyncio
from collections.abc import Sequence

from fedstack.computations.tasks import Phase
from fedstack.errors import CarrierError, DeadlineExceededError, WorkerUnavailableError
from fedstack.executors.phase_copies import PhaseCopies
from fedstack.executors.phase_messages import code_versions, write_phase
from fedstack.executors.phase_results import ReceivedResult, read_result
from fedstack.executors.phase_sink import PhaseResult
from fedstack.executors.placed_executor import FoldArguments, partial_states
from fedstack.executors.progress import ProgressCounts, current_progress
from fedstack.executors.remote_sessions import RemoteSession
from fedstack.executors.remote_transfers import check_size, frames_of, receive
from fedstack.proto import extensions_pb2 as messages
from fedstack.transport.frames import Heartbeat
from fedstack.transport.io_loop import io_loop
from fedstack.transport.packing import Packer, Unpacker

_MAX_RESULT_BYTES = 1 << 40


async def run_remote_phase(
    session: RemoteSession, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
) -> PhaseResult:
    """Runs a phase for a range of clients at the peer of a session.

    Raises:
      CarrierError: If a leaf function cannot travel, or the peer runs no phases.
      WorkerUnavailableError: If the peer has gone away.
    """
    peer = session.peer
    if peer is None:
        raise CarrierError(f"Expected a peer that runs client phases, found {session.stub.address}, which does not")
    packer = Packer(session.stub.chunking.large_bytes)
    copies = PhaseCopies(session)
    versions = code_versions(phase) if session.sends_code else ()
    key = session.travel_key
    request = write_phase(phase, inputs, arguments, clients, packer, session.travelling, key, copies, versions)
    request.executor.CopyFrom(session.executor)
    check_size(packer.segment_bytes, peer.max_value_bytes, "the values of a client phase", session.stub)
    states = partial_states(phase, arguments)
    unpacker = Unpacker(max_bytes=_MAX_RESULT_BYTES, clients=len(clients), for_results=True)

    def read(response: messages.PhaseResponse) -> ReceivedResult:
        result = read_result(phase, states, clients, response, unpacker)
        copies.settle(response.kept)
        return result

    report = _Report(current_progress.get(), len(clients) if phase.program.steps else 0)

    async def call() -> ReceivedResult:
        frames = session.stub.run_phase(frames_of(request, packer.segments, session.stub.chunking))
        return await receive(frames, messages.PhaseResponse, read, unpacker, peer.heartbeat_seconds, report.heard)

    try:
        received = await io_loop.run(call())
    except (WorkerUnavailableError, DeadlineExceededError, asyncio.CancelledError):
        copies.give_up()  # the answer may have been on its way
        raise
    report.finished()
    return received.complete()


class _Report:
    """Passes on to an invocation's progress what heartbeats tell."""

    def __init__(self, progress: ProgressCounts | None, clients: int) -> None:
        self._progress = progress
        self._clients = clients
        self._done = 0
        if progress is not None:
            progress.expect(clients)

    def heard(self, beat: Heartbeat) -> None:
        """Takes note of a heartbeat."""
        self._reached(min(beat.done, self._clients))

    def finished(self) -> None:
        """Takes note that all clients are done."""
        self._reached(self._clients)

    def _reached(self, done: int) -> None:
        new = done - self._done
        if self._progress is not None and new > 0:
            self._progress.started(new)
            self._progress.finished(new)
            self._done = done
