"""Runs client phases in another process: in one round trip, whatever the phase contains."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.portability import warn_of_differing
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.errors import (
    DeadlineExceededError,
    InvalidValueError,
    StaleSessionError,
    WorkerUnavailableError,
)
from fedstack.executors.base.aggregations import FoldArguments, inputs_are_here, partial_states
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.executors.concurrency.progress import PhaseNote, PhaseReport, observed_phase
from fedstack.executors.remote.phase_copies import PhaseCopies
from fedstack.executors.remote.phase_messages import write_phase, write_span
from fedstack.executors.remote.phase_results import ReceivedResult, read_result
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.executors.remote.remote_transfers import check_size, packer_for, receive
from fedstack.executors.remote.session_opener import SessionOpener
from fedstack.membership.ledger import Suspects
from fedstack.proto import extensions_pb2 as messages
from fedstack.transport.wire.connection_errors import BROKEN_OFF

_T = TypeVar("_T")


class RemotePhases(PhaseRunner):
    """Runs client phases at one peer, each for any number of clients, in the current session.

    Args:
      sessions: Opens the sessions that the phases run in.
    """

    def __init__(self, sessions: SessionOpener) -> None:
        self._sessions = sessions

    @property
    def has_session(self) -> bool:
        """Whether there is a session that is not known to have ended."""
        return self._sessions.current is not None

    async def open(self) -> bool:
        """Opens the session if there is none yet; returns whether the peer runs client phases in it."""
        peer = (await self._sessions.get()).session.peer
        return peer is not None and peer.phases

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        """Runs a client phase at the peer in one call.

        Args:
          phase: The phase.
          inputs: A column of exactly these clients for each input of its program.
          arguments: The server's arguments of the folds.
          clients: The indices of the clients, counted over the whole federation.

        Raises:
          CarrierError: If a leaf function cannot be sent.
          InvalidValueError: If the peer does not run phases.
          WorkerUnavailableError: If the peer has gone away.
        """
        return await self._in_session(lambda session: _run(session, phase, inputs, arguments, clients))

    async def search_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, suspects: Suspects
    ) -> None:
        """Has the peer search for a client that ends its process, in child processes of its own.

        Args:
          phase: The phase.
          inputs: A column of exactly these clients for each input of its program.
          arguments: The server's arguments of its folds.
          suspects: The clients.

        Raises:
          LeafError: If there is such a client, or several clients that do so together.
          WorkerUnavailableError: If the peer has gone away.
        """
        await self._in_session(lambda session: _search(session, phase, inputs, arguments, suspects))

    async def _in_session(self, work: Callable[[RemoteSession], Coroutine[Any, Any, _T]]) -> _T:
        keeper = await self._sessions.get()
        try:
            return await self._sessions.watched(keeper, work(keeper.session))
        except StaleSessionError:
            # The peer was restarted, or the lease expired; the work needs nothing from the old session.
            keeper = await self._sessions.get()
            return await self._sessions.watched(keeper, work(keeper.session))

    async def end(self) -> None:
        """Ends the session, on the transport's loop, so that several can end at the same time. Idempotent."""
        await self._sessions.end()

    def __repr__(self) -> str:
        return f"<RemotePhases at {self._sessions.stub.address}>"


async def _run(
    session: RemoteSession, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
) -> PhaseResult:
    peer = session.peer
    if peer is None:
        raise InvalidValueError(
            f"Expected a worker that runs client phases, found {session.stub.address}, which is a plain executor "
            "service; compose FederatingExecutors, each over one: FederatingExecutor(RemoteExecutor(…), num_clients)"
        )
    with observed_phase(phase.program, clients, session.stub.address) as note:
        return await _run_told(session, phase, inputs, arguments, clients, peer, note)


async def _run_told(
    session: RemoteSession,
    phase: Phase,
    inputs: Sequence[object],
    arguments: FoldArguments,
    clients: range,
    peer: messages.HandshakeResponse,
    note: PhaseNote | None,
) -> PhaseResult:
    copies = PhaseCopies(session)
    request, packer = await _written(session, phase, inputs, arguments, clients, peer, copies)
    if note is not None:
        write_span(current_scope().span, request.span)
        note.bytes_sent = request.ByteSize() + packer.segment_bytes
    states = partial_states(phase, arguments)
    unpacker = Unpacker(clients=len(clients), for_results=True)

    def read(response: messages.PhaseResponse) -> ReceivedResult:
        result = read_result(phase, states, clients, response, unpacker)
        copies.settle(response.kept)
        warn_of_differing(response.differing_module, session.stub.address)
        if note is not None:
            note.bytes_received = response.ByteSize() + sum(map(len, unpacker.buffers))
        return result

    async def call(report: PhaseReport) -> ReceivedResult:
        answer = session.stub.run_phase(request, packer.segments, peer.heartbeat_seconds, report.heard)
        return await receive(answer, messages.PhaseResponse, read, unpacker)

    with PhaseReport(current_scope().progress, len(clients) if phase.program.steps else 0) as report:
        try:
            received = await session.stub.io.run(call(report))
        except (WorkerUnavailableError, DeadlineExceededError, asyncio.CancelledError) as error:
            copies.give_up()  # the answer may have been in transit
            losses = current_scope().losses
            address = session.stub.address
            if losses is not None and _has_broken_off(error, address):
                losses.lose(phase, address, clients, running=report.running, find_status=lambda: _status(session))
            raise
    return received.complete()


async def _search(
    session: RemoteSession, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, suspects: Suspects
) -> None:
    peer = session.peer
    assert peer is not None, "only peers that say so are asked to search"
    clients = suspects.clients
    request, packer = await _written(session, phase, inputs, arguments, clients, peer, None)
    request.isolate = True
    request.suspect.extend(suspects.running)
    unpacker = Unpacker(max_bytes=0)

    async def call() -> None:
        answer = session.stub.run_phase(request, packer.segments, peer.heartbeat_seconds)
        await receive(answer, messages.PhaseResponse, lambda response: None, unpacker)

    await session.stub.io.run(call())


async def _written(
    session: RemoteSession,
    phase: Phase,
    inputs: Sequence[object],
    arguments: FoldArguments,
    clients: range,
    peer: messages.HandshakeResponse,
    copies: PhaseCopies | None,
) -> tuple[messages.PhaseRequest, Packer]:
    """Writes a phase for the peer of a session; on a thread if values have to be fetched first."""
    packer = packer_for(session.stub)
    carriers = session.carriers
    portable, sends_code = carriers.portable, carriers.sends_code

    def write() -> messages.PhaseRequest:
        return write_phase(phase, inputs, arguments, clients, packer, portable, carriers, copies, sends_code)

    request = write() if inputs_are_here(inputs) else await off_loop(write)
    request.executor.CopyFrom(session.executor)
    check_size(packer.segment_bytes, peer.max_value_bytes, lambda: "the values of a client phase", session.stub)
    return request, packer


def _status(session: RemoteSession) -> int | None:
    """Returns the exit status of the peer's process if its supervisor knows it."""
    return getattr(session.stub.loss(), "exit_status", None)


def _has_broken_off(error: BaseException, address: str) -> bool:
    """Returns whether the peer went away while working: it was reachable, and neither silent nor told to stop."""
    return isinstance(error, WorkerUnavailableError) and error.causes.get(address) == BROKEN_OFF.found
