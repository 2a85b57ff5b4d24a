"""Runs each client phase in another process with a single round trip."""

from collections.abc import Callable, Coroutine, Sequence, Set
from typing import Any, TypeVar

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.stored_values import stores_of
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.portability import warn_of_differing
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.errors import (
    FedstackError,
    InvalidValueError,
    StaleSessionError,
    WorkerUnavailableError,
)
from fedstack.executors.base.hand_ins import END, Contribution, HandIn, Headway
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.concurrency.leaf_threads import off_loop, parsed, sized
from fedstack.executors.concurrency.observed_phases import PhaseNote, observed_phase
from fedstack.executors.concurrency.progress import PhaseReport
from fedstack.executors.folds.aggregations import FoldArguments, inputs_are_here, partial_states, slice_inputs
from fedstack.executors.folds.fold_states import FoldState
from fedstack.executors.remote.phase_copies import PhaseCopies
from fedstack.executors.remote.phase_messages import phase_template, write_origin, write_phase, write_span
from fedstack.executors.remote.phase_results import read_result
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.executors.remote.remote_transfers import SharedFiles, check_size, packer_for, receive, room_for
from fedstack.executors.remote.session_opener import SessionOpener
from fedstack.executors.stored.stored_results import ask, check_stored, folders_of_call, ids_of, stores_of_call
from fedstack.executors.survivors.failure_messages import failed_in, write_tolerance
from fedstack.executors.survivors.tolerance import Guarded, Tolerance, present_among
from fedstack.executors.survivors.unreadable_inputs import error_of_inputs
from fedstack.foundations.draws import draw_id
from fedstack.membership.ledger import Suspects
from fedstack.proto import extensions_pb2 as messages
from fedstack.transport.peers.executor_stub import Answer
from fedstack.transport.wire.connection_errors import BROKEN_OFF
from fedstack.transport.wire.parcels import Incoming

_T = TypeVar("_T")
# Asks for a single response.
_NOTHING = HandIn(lambda clients, result: None, 0.0)


class RemotePhases(PhaseRunner):
    """Runs client phases on a peer, in the current session and for any number of clients.

    Args:
      sessions: Opens the sessions in which the phases run.
    """

    def __init__(self, sessions: SessionOpener) -> None:
        self._sessions = sessions

    @property
    def session(self) -> RemoteSession | None:
        """The session, if one is open and not known to have ended."""
        keeper = self._sessions.current
        return None if keeper is None else keeper.session

    async def open(self) -> bool:
        """Opens a session unless one is open, and returns whether the peer supports client phases."""
        peer = (await self._sessions.get()).session.peer
        return peer is not None and peer.phases

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        """Runs a client phase on the peer in a single call, with a single response; see `run_in_parts`."""
        _, result = await self.run_in_parts(phase, inputs, arguments, clients, _NOTHING)
        return result

    async def run_in_parts(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, hand_in: HandIn
    ) -> Contribution:
        """Runs a client phase on the peer in a single call.

        Args:
          phase: The phase.
          inputs: For each input of the phase's program, a column of exactly the given clients.
          arguments: The server's arguments of the folds.
          clients: The indices of the clients in the whole federation.
          hand_in: Receives contributions of the first clients. If its `seconds` are 0, it receives none.

        Returns:
          The contribution of the clients that were not handed in.

        Raises:
          CarrierError: If a leaf function cannot be sent.
          InvalidValueError: If the peer does not run phases.
          WorkerUnavailableError: If the peer is no longer reachable.
        """
        run = _PhaseRun(phase, inputs, arguments, clients, hand_in)
        return await self._in_session(run.run)

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


class _PhaseRun:
    """One run of a phase on a peer, which may be repeated in another session for the clients that are left.

    Args:
      phase: The phase.
      inputs: The inputs of the phase for its clients.
      arguments: The server's arguments of the folds.
      clients: The clients.
      hand_in: Receives the contributions.
    """

    def __init__(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, hand_in: HandIn
    ) -> None:
        self._phase = phase
        self._inputs = inputs
        self._arguments = arguments
        self._clients = self._left = clients
        self._hand_in = hand_in
        self._tolerance = current_scope().of(Tolerance)
        self._request = messages.PhaseRequest()
        self._id = (hand_in.call_id or draw_id().hex()) if hand_in.seconds else ""

    async def run(self, session: RemoteSession) -> Contribution:
        """Runs the clients that are left in a session, and returns the contribution of those that are not handed in."""
        peer = session.peer
        if peer is None:
            raise InvalidValueError(
                f"Expected a worker that runs client phases, found {session.stub.address}, which is an executor "
                "service without fedstack's extensions; wrap its executor: FederatingExecutor(RemoteExecutor(…), "
                "num_clients)"
            )
        with observed_phase(self._phase.program, self._left, session.stub.address) as note:
            return await self._observed(session, peer, note)

    async def _observed(
        self, session: RemoteSession, peer: messages.HandshakeResponse, note: PhaseNote | None
    ) -> Contribution:
        phase, clients, address = self._phase, self._left, session.stub.address
        inputs, copies = self._inputs, PhaseCopies(session, phase)
        if clients != self._clients:
            first = self._clients.start
            inputs = slice_inputs(inputs, clients.start - first, clients.stop - first)
        request, packer = await _written(session, phase, inputs, self._arguments, clients, peer, copies)
        self._request = request
        request.hand_in_seconds, request.id = self._hand_in.seconds, self._id
        request.after = self._hand_in.after
        write_origin(request, self._hand_in.origin)
        files = current_scope().of(SharedFiles) if session.stub.connection.passes_files else None
        file = None if files is None or not packer.shared else await files.file_of(packer)
        if note is not None:
            write_span(current_scope().span, request.span)
            note.bytes_sent = request.ByteSize() + packer.segment_bytes
        with PhaseReport(current_scope().progress, present_among(clients) if phase.program.steps else 0) as report:
            self._hand_in.begun(lambda rate: self._leave(session, rate))
            beat, sent = peer.heartbeat_seconds, self._hand_in.sent
            answer = session.stub.run_phase(request, packer.segments, beat, report.heard, sent, file)
            try:
                last, response = await session.stub.io.run(self._received(answer, address, report, note))
            except BaseException as error:
                copies.give_up()  # the peer may have kept values even though the response was not received
                losses = current_scope().losses
                if losses is not None and _has_broken_off(error, address):
                    losses.lose(
                        phase, address, self._left, running=report.running, find_status=lambda: _status(session)
                    )
                raise
            copies.settle(response.kept)
            warn_of_differing(response.differing_module, address)
        return last

    async def _received(
        self, answer: Answer, address: str, report: PhaseReport, note: PhaseNote | None
    ) -> tuple[Contribution, messages.PhaseResponse]:
        """Receives the responses, hands in all but the last, and returns the last with its contribution."""
        states, clients = partial_states(self._phase, self._arguments), self._left
        async with answer as incoming:
            while True:
                response, part, result = await self._next(incoming, states, address, note)
                self._left = range(part.stop, max(part.stop, self._left.stop))
                report.left_out(failed_in(response))
                if not response.handed_in:
                    report.ends_after(present_among(range(clients.start, part.stop)))
                    return (part, result), response
                report.handed_in(present_among(range(clients.start, part.stop)))
                self._hand_in.take(part, result)
                del result  # it may be large, and the next response may be far away

    async def _next(
        self, incoming: Incoming, states: Sequence[FoldState | None], address: str, note: PhaseNote | None
    ) -> tuple[messages.PhaseResponse, range, PhaseResult]:
        """Receives a response, and returns it with its clients and their contribution."""
        header = await incoming.header()
        response = await sized(len(header), lambda: parsed(messages.PhaseResponse, header))
        part = self._part(response)
        check_stored(response, self._request, self._phase)
        folders = folders_of_call() if self._request.store else None
        unpacker = Unpacker(clients=len(part), for_results=True, stores=folders)
        received = await sized(
            len(header),
            lambda: read_result(self._phase, states, part, response, unpacker, self._tolerance, address),
        )
        size = sum(map(len, unpacker.buffers))
        if note is not None:
            note.bytes_received += response.ByteSize() + size
        async with room_for(size, part.start):
            await (incoming.read_next if response.handed_in else incoming.read_into)(unpacker.buffers)
        unpacker.finish()
        return response, part, received.complete()

    def _part(self, response: messages.PhaseResponse) -> range:
        """Returns the clients of a response."""
        # If the answer to `ShortenPhase` was lost, the worker may end earlier than is known here.
        left, is_shortened = range(self._left.start, self._clients.stop), response.HasField("shortened")
        count = response.handed_in or (response.shortened if is_shortened else len(left))
        most = len(left) - bool(response.handed_in) if self._id else 0
        if (response.handed_in or is_shortened) and count > most:
            raise InvalidValueError(
                f"Expected the contribution of clients {left.start} to {left.stop - 1}, found one of {count} clients"
                f"{' with another to follow' if response.handed_in else ''}; check that the worker runs the same "
                "version of fedstack"
            )
        return range(left.start, left.start + count)

    async def _leave(self, session: RemoteSession, rate: float) -> Headway | None:
        """Asks the peer to leave its last clients to another worker; see `Leave`."""
        request = messages.ShortenPhaseRequest(executor=session.executor, id=self._id)
        if rate == END:
            request.ends = True
        else:
            request.clients_per_second = rate
        response = await session.stub.io.run(session.stub.shorten_phase(request))
        if response.ends:
            return Headway(self._left.stop, 0)
        if not response.HasField("stop"):
            return None
        left = self._left
        if left and left.start <= response.stop < left.stop:
            self._left = range(left.start, response.stop)
        return Headway(response.stop, response.done)


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
    carriers = session.carriers
    portable, sends_code = carriers.portable, carriers.sends_code
    scope = current_scope()
    is_guarded = scope.of(Guarded) is not None and peer.isolates and not peer.same_process
    stored = stores_of_call(phase)
    stores: Set[str] = set()
    ids: dict[int, str] = {}
    if peer.stores and (stored or not inputs_are_here(inputs)):
        ids = await off_loop(lambda: ids_of(stored))
        stores = await session.stores_among([*ids.values(), *(await off_loop(lambda: list(stores_of(inputs))))])
    packer = packer_for(session.stub, stores)
    kept = None if is_guarded else copies  # the values go on to child processes, which have no copies

    def write() -> messages.PhaseRequest:
        try:
            template = phase_template(phase, portable, carriers, sends_code)
            return write_phase(template, phase, inputs, arguments, clients, packer, kept)
        except FedstackError as error:
            raise error_of_inputs(error, inputs, phase.input_types, clients) from error.__cause__

    request = write() if inputs_are_here(inputs) else await off_loop(write)
    write_tolerance(request, scope, clients)
    if not is_guarded and copies is not None:  # child processes have no stores
        ask(request, stored, ids, stores, clients)
    request.guarded = is_guarded
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
