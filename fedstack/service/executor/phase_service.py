"""Runs client phases that came by wire."""

import contextlib
from collections.abc import Callable

from fedstack.computations.plan.plan import plans
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import CLIENTS, FederatedType, Type
from fedstack.computations.types.type_sizes import count_leaves
from fedstack.computations.types.type_structure import contains_sequence
from fedstack.computations.values.columns import Column
from fedstack.computations.values.payload_sizes import is_quick
from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.executors.base.placed_executor import PlacedExecutor, partial_states
from fedstack.executors.concurrency.off_loop import LOOP_BYTES, off_loop
from fedstack.executors.folds.phase_sink import PhaseResult
from fedstack.executors.remote.phase_messages import ReceivedPhase, check_first_client, computations_of, read_phase
from fedstack.executors.remote.phase_results import write_result
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.service.executor.held_values import known_payload, phase_executor
from fedstack.service.executor.isolated_phase import search_phase
from fedstack.service.executor.received_frames import ReadAll
from fedstack.service.executor.service_core import ARRAY_SPARE_BYTES, ServiceCore
from fedstack.service.executor.sessions import Session, check_new_id
from fedstack.transport.wire.packing import Packer

# What is written or read of so many clients, or tensors, takes about a millisecond.
_FEW_CLIENTS = 1000
_FEW_LEAVES = 200


async def run_phase(
    core: ServiceCore, session: Session, request: PhaseRequest, header_bytes: int, read_all: ReadAll
) -> tuple[bytes, Packer]:
    """Runs a phase in the executor of a session.

    Args:
      core: The rules.
      session: The session. If it has a number of clients, that is the phase's too.
      request: The phase.
      header_bytes: The size of that message.
      read_all: Reads the bytes that belong to it.

    Returns:
      The message with what the clients contributed, serialized, and the bytes that belong to it; nothing of a search
      for clients that end their process.
    """
    if request.isolate:
        await search_phase(core, session, request, read_all)
        return b"", Packer()
    core.check_clients(request.clients)
    check_first_client(request)
    for message in request.input:
        if message.keep:
            check_new_id(message.keep)
    with core.sessions.executor_for(session, request.clients) as stack:
        executor = phase_executor(stack)
        for computation in computations_of(request):
            await core.admit(computation, header_bytes)
        unpacker = core.unpacker(request.clients)

        def receive() -> ReceivedPhase:
            received = read_phase(request, unpacker, lambda value_id: _find_kept(session, value_id))
            size = sum(message.value.ByteSize() for message in request.input) + sum(map(len, unpacker.buffers))
            core.check_size(size, len(request.input) * ARRAY_SPARE_BYTES)
            return received

        # A short program may have many steps, and a short message many clients.
        is_short = header_bytes <= LOOP_BYTES and request.clients <= _FEW_CLIENTS
        is_known = is_short and all(map(plans.knows_content, computations_of(request)))
        received = receive() if is_known else await off_loop(receive)
        await read_all(unpacker)
        phase, arguments, clients = received.phase, received.arguments, received.clients
        result = await executor.run_phase(phase, received.inputs, arguments, clients)
        packer = core.packer(session)
        kept = _keep(session, executor, request, received)

        def write() -> bytes:
            response = write_result(phase, partial_states(phase, arguments), result, packer)
            response.kept.extend(kept)
            return response.SerializeToString()

        return await _written(executor, phase, result, write), packer


async def _written(executor: PlacedExecutor, phase: Phase, result: PhaseResult, write: Callable[[], bytes]) -> bytes:
    """Writes a result: on a thread if that may take long, on one for code of users if there are streams in it."""
    streamed = next((member for _, member in phase.held if contains_sequence(member)), None)
    if streamed is not None:
        return await executor.finish(write, streamed)
    held = [(column, FederatedType(member, CLIENTS)) for column, (_, member) in zip(result.columns, phase.held)]
    folded = sum(count_leaves(fold.member) for fold in phase.folds)
    if folded <= _FEW_LEAVES and all(is_quick(column, type_spec) for column, type_spec in held):
        return write()
    return await off_loop(write)


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
