"""Serves the extensions for fedstack's own clients: leases, ids chosen by clients, values of any size, phases."""

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from fedstack._version import __version__
from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.payload_sizes import is_quick
from fedstack.computations.leaves.leaf_runtimes import allowed_carriers
from fedstack.computations.leaves.work_scope import change_scope
from fedstack.computations.types.language import Type
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.executors.concurrency.progress import ObservedCounts, ProgressCounts
from fedstack.executors.remote.phase_messages import read_span
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.executors.worker.phase_pipeline import Outbox
from fedstack.executors.worker.receiving import Received, receive
from fedstack.executors.worker.work import Work
from fedstack.proto import extensions_pb2 as messages
from fedstack.proto.executor_pb2 import ExecutorId
from fedstack.service.executor import held_values
from fedstack.service.executor.creations import Creations, Starts, Updates
from fedstack.service.executor.executor_group import cardinalities_of
from fedstack.service.executor.phase_service import run_phase
from fedstack.service.executor.requests import control, in_turns
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.executor.session import Session
from fedstack.service.host.limits import add_limits
from fedstack.transport.peers.executor_stub import PROTOCOL, check_protocol, process_digest
from fedstack.transport.peers.methods import Answers, ExchangeMethod, Method, ServerFacts, UploadMethod
from fedstack.transport.wire.parcels import Incoming, Parcel

# The interval at which a client is told how many of its clients are done, if the client ends the phase at some number.
_COUNTED_SECONDS = 0.1


class ExecutorExtensions:
    """The methods of `fedstack.v1.ExecutorExtensions`.

    Args:
      core: The shared state of the service.
    """

    def __init__(self, core: ServiceCore) -> None:
        self._core = core
        self._creations = Creations(core)
        self._starts = Starts(core)
        self._updates = Updates(self._creations)
        self.server: ServerFacts | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by name."""
        return {
            "Handshake": control(messages.HandshakeRequest, self.handshake),
            "OpenSession": control(messages.OpenSessionRequest, self.open_session),
            "RenewLease": control(messages.RenewLeaseRequest, self.renew_lease),
            "Evaluate": ExchangeMethod(self.evaluate),
            "Start": ExchangeMethod(self.start),
            "Update": UploadMethod(self.update),
            "RunPhase": ExchangeMethod(self.run_phase),
            "FindStores": control(messages.FindStoresRequest, self.find_stores),
            "ShortenPhase": control(messages.ShortenPhaseRequest, self.shorten_phase),
        }

    async def handshake(self, request: messages.HandshakeRequest) -> messages.HandshakeResponse:
        """Returns the version, the features and the limits of this server.

        Raises:
          ProtocolVersionError: If the client uses a different version of the protocol.
          WorkerUnavailableError: If this server is stopping.
        """
        check_protocol(request.protocol, request.version, "the client")
        self._core.check_takes_clients()  # a client that is refused here does not use this server
        policy, limits = self._core.policy, self._core.limits
        return messages.HandshakeResponse(
            protocol=PROTOCOL,
            version=__version__,
            same_process=bool(request.nonce) and request.process_digest == process_digest(request.nonce),
            phases=isinstance(self._core.factory, ResourceManagingExecutorFactory),
            threads=self._core.max_threads,
            leaf_runtimes=allowed_carriers(policy),
            allowed_modules=policy.modules,
            missing_modules=await off_loop(lambda: policy.missing_modules) if policy.modules else (),
            python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
            max_value_bytes=limits.max_value_bytes,
            heartbeat_seconds=limits.heartbeat_seconds,
            asks_for_token=self.server is not None and self.server.asks_for_token,
            isolates=bool(sys.executable),
            stores=self._core.admission.stores is not None,
        )

    async def find_stores(self, request: messages.FindStoresRequest) -> messages.FindStoresResponse:
        """Returns which of some stores of clients' states this server has."""
        stores, ids = self._core.admission.stores, list(request.id)
        found = () if stores is None else await off_loop(lambda: stores.find(ids))
        return messages.FindStoresResponse(id=found)

    async def open_session(self, request: messages.OpenSessionRequest) -> messages.OpenSessionResponse:
        """Opens a session with a lease. The server limits the duration of the lease."""
        longest = self._core.limits.lease_seconds
        lease = min(request.lease_seconds, longest) if request.lease_seconds > 0 else longest
        session = self._core.open(cardinalities_of(request.cardinalities), lease)
        if request.HasField("worker_index"):
            session.closures = attrs.evolve(session.closures, worker_index=request.worker_index)
        return messages.OpenSessionResponse(executor=ExecutorId(id=session.id), lease_seconds=lease)

    async def renew_lease(self, request: messages.RenewLeaseRequest) -> messages.RenewLeaseResponse:
        """Renews the leases of sessions, and returns the ids of unknown sessions."""
        unknown = [one async for one in in_turns(request.executor) if not self._core.sessions.renew(one.id)]
        return messages.RenewLeaseResponse(unknown=unknown)

    def _differing(self, creations: Iterable[messages.Creation]) -> Sequence[str]:
        """Returns the names of the functions' modules whose versions differ between the client and this server."""
        return self._core.admission.differing_modules(
            one.computation for one in creations if one.HasField("computation")
        )

    async def update(self, incoming: Incoming) -> bytes:
        """Replaces a value of a session; see `Updates`."""
        received = await receive(incoming, messages.UpdateRequest)
        session = self._core.find(received.message.executor)
        await self._core.run(session, self._updates.run(session, received))
        return messages.UpdateResponse().SerializeToString()

    async def _received(
        self, session: Session, creations: Iterable[messages.Creation], received: Received[Any]
    ) -> None:
        """Creates values, reading the bytes that follow the message."""
        await self._creations.create(session, creations, received)
        await received.end()

    async def evaluate(self, incoming: Incoming) -> Answers:
        """Creates values of any size, and computes a value if the request names one."""
        received = await receive(incoming, messages.EvaluateRequest)
        request = received.message
        session = self._core.find(request.executor)
        value_id = request.value_ref.id
        packer = self._core.packer()
        is_quick_to_create = incoming.is_here and not any(one.HasField("computation") for one in request.creation)
        if is_quick_to_create:
            await self._received(session, request.creation, received)
            known = held_values.known_payload(session.find(value_id)) if value_id else None
            if known is not None and is_quick(*known):
                yield self._parcel(_answer_of(packer, *known), packer)
                return
        progress = ProgressCounts()
        if is_quick_to_create:
            work = self._computed(session, value_id, packer, progress)
        else:
            work = self._evaluated(session, received, packer, progress)
        running = Work(self._core.run(session, work))
        async for beat in running.beats(progress, self._core.limits.heartbeat_seconds):
            yield beat
        yield self._parcel(running.result(), packer)
        session.delivered(value_id)

    async def _evaluated(
        self,
        session: Session,
        received: Received[messages.EvaluateRequest],
        packer: Packer,
        progress: ProgressCounts,
    ) -> bytes:
        request = received.message
        await self._received(session, request.creation, received)
        told = messages.EvaluateResponse(differing_module=self._differing(request.creation))
        # In protobuf, two concatenated messages are read as a single message with the fields of both.
        return told.SerializeToString() + await self._computed(session, request.value_ref.id, packer, progress)

    async def _computed(self, session: Session, value_id: str, packer: Packer, progress: ProgressCounts) -> bytes:
        """Computes a value if `value_id` is not empty, and returns the encoded answer."""
        if not value_id:
            return b""
        pull = self._core.pull(session, value_id)
        progress.watch(pull.progress)
        await pull.wait()
        type_spec = session.find(value_id).type_signature
        return await held_values.written(
            session.executor, pull.result(), type_spec, functools.partial(_answer_of, packer)
        )

    async def start(self, incoming: Incoming) -> Answers:
        """Cancels values, creates values of any size, and runs values, as the request specifies."""
        received = await receive(incoming, messages.StartRequest)
        request = received.message
        session = self._core.find(request.executor)
        progress = ProgressCounts()

        async def create_and_run() -> messages.StartResponse:
            for ref in request.cancel_ref:
                session.cancel(ref.id)
            await self._received(session, request.creation, received)
            session.started.waiting = request.waiting
            outcomes = await self._starts.run(session, [ref.id for ref in request.value_ref], progress)
            return messages.StartResponse(outcome=outcomes, differing_module=self._differing(request.creation))

        running = Work(self._core.run(session, create_and_run()))
        async for beat in running.beats(progress, self._core.limits.heartbeat_seconds):
            yield beat
        yield Parcel(running.result().SerializeToString())

    async def run_phase(self, incoming: Incoming) -> Answers:
        """Runs a client phase."""
        progress = ObservedCounts()

        async def receive_and_run() -> Parcel:
            received = await receive(incoming, messages.PhaseRequest)
            progress.span = read_span(received.message.span)
            change_scope(progress=progress, span=progress.span)  # affects only this task
            session = self._core.find(received.message.executor)
            self._core.running.watch(progress, session.id)
            if received.message.tolerance.ends:  # the sender counts the clients that are done
                outbox.tell_often()
            return await self._core.run(session, run_phase(self._core, session, received, outbox))

        work = Work(receive_and_run(), interruptible=True)
        outbox = Outbox(work.interrupt, progress)
        try:
            async for beat in work.beats(progress, self._core.limits.heartbeat_seconds):
                yield beat
                if outbox.tells_often:
                    work.look_seconds = _COUNTED_SECONDS
                for parcel in outbox.drain():
                    yield parcel
        finally:
            outbox.close()
        change_scope(span=progress.span)  # for the log line if the phase fails
        last = work.result()
        for parcel in outbox.drain():
            yield parcel
        yield last

    async def shorten_phase(self, request: messages.ShortenPhaseRequest) -> messages.ShortenPhaseResponse:
        """Ends a running phase before its last clients, so that another worker can run them."""
        outbox = self._core.find(request.executor).outbox_of(request.id)
        if request.ends and outbox is not None:
            outbox.ending.end()
            return messages.ShortenPhaseResponse(ends=True)
        standing = await outbox.leave(request.clients_per_second) if outbox and outbox.leave else None
        if standing is None:
            return messages.ShortenPhaseResponse()
        return messages.ShortenPhaseResponse(stop=standing.stop, done=standing.done)

    def _parcel(self, header: bytes, packer: Packer) -> Parcel:
        return Parcel(header, packer.segments, self._core.limits.chunking.chunk_bytes)

    @property
    def sessions(self) -> list[messages.GetStatusResponse.Session]:
        """The sessions for the status report, with only the information that is available without delay."""
        return [
            messages.GetStatusResponse.Session(
                id=session.id[:8],
                clients=session.clients,
                values=len(session),
                bytes=session.bytes,
                lease_seconds_left=self._core.sessions.seconds_left(session.id),
                started_running=len(session.started.running),
                started_ended=session.started.ended,
                started_failed=session.started.failed,
                started_waiting=session.started.waiting if session.started.running else 0,
            )
            for session in self._core.sessions
        ]

    def report(self, status: messages.GetStatusResponse) -> None:
        """Adds the sessions, the running work and the limits of the service to a status."""
        status.session.extend(self.sessions)
        for session in self._core.sessions:
            status.values += len(session)
            status.bytes += session.bytes
            status.running += session.running
            for phase in session.phases:
                counts = phase.counts
                status.phase.add(
                    session=session.id[:8],
                    first_client=phase.clients.start,
                    clients=len(phase.clients),
                    done=counts.done,
                    running=counts.running_now(counts.work()),
                    failed=counts.failures,
                    handed_in=phase.handed_in,
                    left=phase.left,
                    origin=phase.origin,
                    lost=counts.lost,
                    moved=counts.moved,
                    twice=counts.twice,
                )
        status.max_threads = max(status.max_threads, self._core.max_threads)
        status.abandoned_threads += self._core.abandoned.count
        add_limits(status, self._core.limits)
        for work, session_id in self._core.running.longest():
            work.write(status.work.add(session=session_id[:8]))


def _answer_of(packer: Packer, payload: object, type_spec: Type) -> bytes:
    """Returns the encoded answer for a payload. Passes large arrays to the packer."""
    response = messages.EvaluateResponse()
    packer.pack(response.value, payload, type_spec, "result")
    return response.SerializeToString()
