"""Runs each client phase in another process with a single round trip."""

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
    """Runs client phases on a peer, in the current session and for any number of clients.

    Args:
      sessions: Opens the sessions in which the phases run.
    """

    def __init__(self, sessions: SessionOpener) -> None:
        self._sessions = sessions

    @property
    def has_session(self) -> bool:
        """Whether a session is open and not known to have ended."""
        return self._sessions.current is not None

    async def open(self) -> bool:
        """Opens a session unless one is open, and returns whether the peer supports client phases."""
        peer = (await self._sessions.get()).session.peer
        return peer is not None and peer.phases

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        """Runs a client phase on the peer in a single call.

        Args:
          phase: The phase.
          inputs: For each input of the phase's program, a column of exactly the given clients.
          arguments: The server's arguments to the folds.
          clients: The indices of the clients in the whole federation.

        Raises:
          CarrierError: If a leaf function cannot be sent.
          InvalidValueError: If the peer does not run phases.
          WorkerUnavailableError: If the peer is no longer reachable.
        """
        return await self._in_session(lambda session: _run(session, phase, inputs, arguments, clients))

    async def search_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, suspects: Suspects
    ) -> None:
        """Asks the peer to find a client that crashes its process, by running the suspects in child processes.

        Args:
          phase: The phase.
          inputs: For each input of the phase's program, a column of exactly the clients to search.
          arguments: The server's arguments to the folds.
          suspects: The suspected clients.

        Raises:
          LeafError: If a client crashes the process, or several clients do so together.
          WorkerUnavailableError: If the peer is no longer reachable.
        """
        await self._in_session(lambda session: _search(session, phase, inputs, arguments, suspects))

    async def _in_session(self, work: Callable[[RemoteSession], Coroutine[Any, Any, _T]]) -> _T:
        keeper = await self._sessions.get()
        try:
            return await self._sessions.watched(keeper, work(keeper.session))
        except StaleSessionError:
            # The peer was restarted or the lease expired. The work does not depend on the old session, so it is
            # repeated in a new one.
            keeper = await self._sessions.get()
            return await self._sessions.watched(keeper, work(keeper.session))

    async def end(self) -> None:
        """Ends the session. Idempotent.

        This coroutine runs on the transport's event loop, so that several sessions can be ended concurrently.
        """
        await self._sessions.end()

    def __repr__(self) -> str:
        return f"<RemotePhases at {self._sessions.stub.address}>"


async def _run(
    session: RemoteSession, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
) -> PhaseResult:
    peer = session.peer
    if peer is None:
        raise InvalidValueError(
            f"Expected a worker that runs client phases, found {session.stub.address}, which is an executor service "
            "without fedstack's extensions; wrap its executor: FederatingExecutor(RemoteExecutor(…), num_clients)"
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
            copies.give_up()  # the peer may have kept inputs even though the response was not received
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
    assert peer is not None, "only peers that report the feature are asked to search"
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
    """Returns the request to run a phase on a session's peer, and the packer that holds the request's large arrays.

    If values have to be fetched first, the request is written on a thread.
    """
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
    """Returns the exit status of the peer's process; `None` if its supervisor does not know it."""
    return getattr(session.stub.loss(), "exit_status", None)


def _has_broken_off(error: BaseException, address: str) -> bool:
    """Returns whether the peer's process was lost during the work.

    This excludes peers that could not be reached, stopped responding or were asked to stop.
    """
    return isinstance(error, WorkerUnavailableError) and error.causes.get(address) == BROKEN_OFF.found
