"""Runs client phases that came by wire."""

from fedstack.executors.phase_messages import check_first_client, computations_of, read_phase
from fedstack.executors.phase_results import write_result
from fedstack.executors.placed_executor import partial_states
from fedstack.proto.extensions_pb2 import PhaseRequest, PhaseResponse
from fedstack.service.held_values import phase_executor
from fedstack.service.received_frames import ReadAll
from fedstack.service.service_core import ARRAY_SPARE_BYTES, ServiceCore
from fedstack.service.sessions import Session
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
    with core.sessions.executor_for(session, request.clients) as stack:
        executor = phase_executor(stack)
        for computation in computations_of(request):
            await core.admit(computation)
        unpacker = core.unpacker(request.clients)
        received = read_phase(request, unpacker)
        size = sum(message.value.ByteSize() for message in request.input) + sum(map(len, unpacker.buffers))
        core.check_size(size, len(request.input) * ARRAY_SPARE_BYTES)
        await read_all(unpacker)
        phase, arguments, clients = received.phase, received.arguments, received.clients
        result = await executor.run_phase(phase, received.inputs, arguments, clients)
        packer = Packer(core.limits.chunking.large_bytes)
        return write_result(phase, partial_states(phase, arguments), result, packer), packer
