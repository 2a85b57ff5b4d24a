"""Runs client phases that came by wire."""

import contextlib

from fedstack.computations.columns import Column
from fedstack.computations.language import CLIENTS, FederatedType, Type
from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.executors.phase_messages import ReceivedPhase, check_first_client, computations_of, read_phase
from fedstack.executors.phase_results import write_result
from fedstack.executors.placed_executor import PlacedExecutor, partial_states
from fedstack.proto.extensions_pb2 import PhaseRequest, PhaseResponse
from fedstack.service.held_values import known_payload, phase_executor
from fedstack.service.received_frames import ReadAll
from fedstack.service.service_core import ARRAY_SPARE_BYTES, ServiceCore
from fedstack.service.sessions import Session, check_new_id
from fedstack.transport.packing import Packer


async def run_phase(
    core: ServiceCore, session: Session, request: PhaseRequest, read_all: ReadAll
) -> tuple[PhaseResponse, Packer]:
    """Runs a phase in the executor of a session.

    Args:
      core: The rules.
      session: The session. If it has a number of clients, that is the phase's too.
      request: The phase.
      read_all: Reads the bytes that belong to it.

    Returns:
      What the clients contributed, and the bytes that belong to it.
    """
    core.check_clients(request.clients)
    check_first_client(request)
    for message in request.input:
        if message.keep:
            check_new_id(message.keep)
    with core.sessions.executor_for(session, request.clients) as stack:
        executor = phase_executor(stack)
        for computation in computations_of(request):
            await core.admit(computation)
        unpacker = core.unpacker(request.clients)
        received = read_phase(request, unpacker, lambda value_id: _find_kept(session, value_id))
        size = sum(message.value.ByteSize() for message in request.input) + sum(map(len, unpacker.buffers))
        core.check_size(size, len(request.input) * ARRAY_SPARE_BYTES)
        await read_all(unpacker)
        phase, arguments, clients = received.phase, received.arguments, received.clients
        result = await executor.run_phase(phase, received.inputs, arguments, clients)
        packer = Packer(core.limits.chunking.large_bytes)
        response = write_result(phase, partial_states(phase, arguments), result, packer)
        response.kept.extend(_keep(session, executor, request, received))
        return response, packer


def _find_kept(session: Session, value_id: str) -> tuple[Column, Type]:
    """Returns what an earlier phase left in the session, and the type of its members.

    Raises:
      StatusError: If there is nothing of that id.
      InvalidValueError: If it is no values of clients.
    """
    known = known_payload(session.find(value_id))
    if known is None or not isinstance(known[0], Column) or not isinstance(known[1], FederatedType):
        raise InvalidValueError(
            f"Expected the id of an input that was kept as `kept`, found that of another value, {value_id[:80]!r}"
        )
    return known[0], known[1].member


def _keep(session: Session, executor: PlacedExecutor, request: PhaseRequest, received: ReceivedPhase) -> list[str]:
    """Keeps the inputs that the client wants to refer to, as far as there is room; returns their ids."""
    kept: list[str] = []
    phase = received.phase
    for message, column, member, size in zip(request.input, received.inputs, phase.input_types, received.input_bytes):
        if message.keep and not message.kept and not session.has(message.keep):
            with contextlib.suppress(ResourceLimitError):
                session.add(executor.known(column, FederatedType(member, CLIENTS)), size, message.keep)
                kept.append(message.keep)
    return kept
