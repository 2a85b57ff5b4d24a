"""Runs a client phase that another process has sent: bytes in, bytes out, without a service or a connection.

    receive → admit → run → reply

`receive` (`receiving.py`) reads the message. `admit` checks its content and allocates buffers for its arrays; it runs
and loads nothing of the sender's. Then the bytes of the arrays are read. `run` loads the functions and runs the phase,
and `reply` writes the contributions of the clients. `answer` does all of it after `receive`.

The differences between workers are in their `PhaseHost`. The executor service makes one for a session, a process that
searches for a client that ends it makes its own, and so can a worker that another engine starts.
"""

import abc
from collections.abc import Sequence
from contextlib import AbstractContextManager

import attrs

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.payload_sizes import is_quick
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.plan.plan import plans
from fedstack.computations.types.language import CLIENTS, FederatedType, Type, computation_pb2
from fedstack.computations.types.type_sizes import count_leaves
from fedstack.computations.types.type_structure import contains_sequence
from fedstack.computations.values.columns import Column
from fedstack.errors import InvalidValueError
from fedstack.executors.base.aggregations import partial_states
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.concurrency.leaf_threads import LOOP_BYTES, off_loop
from fedstack.executors.remote.phase_messages import (
    ReceivedPhase,
    check_first_client,
    computations_of,
    read_phase,
)
from fedstack.executors.remote.phase_results import write_result
from fedstack.executors.worker.receiving import Admission, Received
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.transport.wire.frames import CHUNK_BYTES
from fedstack.transport.wire.parcels import Parcel

# The bytes of an array's dtype and shape.
ARRAY_SPARE_BYTES = 64
# Writing or reading so many clients, or tensors, takes about a millisecond.
_FEW_CLIENTS = 1000
_FEW_LEAVES = 200


class PhaseHost(abc.ABC):
    """Provides what phases run with. Keeps nothing between them unless a subclass does.

    Args:
      admission: Checks incoming phases.
    """

    def __init__(self, admission: Admission) -> None:
        self.admission = admission

    @abc.abstractmethod
    def lend(self, clients: int) -> AbstractContextManager[PhaseRunner]:
        """Lends an engine for phases of so many clients."""

    def unpacker(self, clients: int) -> Unpacker:
        """Returns an unpacker for a phase of so many clients."""
        return Unpacker(max_bytes=self.admission.max_bytes, clients=clients)

    @property
    def chunk_bytes(self) -> int:
        """The most bytes in a piece of a response, for transports that cut it."""
        return CHUNK_BYTES

    def packer(self) -> Packer:
        """Returns a packer for a result."""
        return Packer()

    def check_new_id(self, value_id: str) -> None:
        """Checks the id that the sender has chosen for an input to keep."""
        return

    def find(self, value_id: str) -> tuple[Column, Type]:
        """Returns an input that an earlier phase has kept, and the type of its members.

        Raises:
          InvalidValueError: If there is none.
        """
        raise InvalidValueError(
            f"Expected a phase with all its inputs, found a reference to a kept one, {value_id[:80]!r}"
        )

    async def keep(self, value_id: str, column: Column, member: Type, size: int) -> bool:
        """Keeps an input for later phases, if there is room; returns whether it does."""
        return False


@attrs.frozen
class AdmittedPhase:
    """A phase that may run once the buffers of its unpacker are filled.

    Attributes:
      request: The message.
      phase: The parsed message.
      unpacker: Has the buffers.
      leaves: The functions to load.
    """

    request: PhaseRequest
    phase: ReceivedPhase
    unpacker: Unpacker
    leaves: Sequence[computation_pb2.Computation]


async def admit(received: Received[PhaseRequest], host: PhaseHost) -> AdmittedPhase:
    """Checks a phase, and allocates the buffers of its arrays.

    Args:
      received: The message.
      host: The host that will run the phase.

    Raises:
      FedstackError: If the phase is malformed, has a function that is not allowed, or is too large.
    """
    request, admission = received.message, host.admission
    computations = computations_of(request)
    admission.check_clients(request.clients)
    check_first_client(request)
    for message in request.input:
        if message.keep:
            host.check_new_id(message.keep)

    def read() -> AdmittedPhase:
        leaves = [leaf for computation in computations for leaf in admission.check(computation)]
        unpacker = host.unpacker(request.clients)
        found = read_phase(request, unpacker, host.find)
        size = sum(message.value.ByteSize() for message in request.input) + sum(map(len, unpacker.buffers))
        admission.check_size(size, len(request.input) * ARRAY_SPARE_BYTES)
        return AdmittedPhase(request, found, unpacker, leaves)

    # A short program may have many steps, and a short message many clients.
    is_short = received.size <= LOOP_BYTES and request.clients <= _FEW_CLIENTS
    is_known = is_short and all(map(plans.knows_content, computations))
    return read() if is_known else await off_loop(read)


async def run(admitted: AdmittedPhase, engine: PhaseRunner, host: PhaseHost) -> PhaseResult:
    """Runs an admitted phase, in the scope of the current work."""
    await host.admission.load(admitted.leaves)
    found = admitted.phase
    return await engine.run_phase(found.phase, found.inputs, found.arguments, found.clients)


async def reply(admitted: AdmittedPhase, result: PhaseResult, engine: PhaseRunner, host: PhaseHost) -> Parcel:
    """Returns the contributions of the clients, written on a thread if that takes long."""
    phase, packer = admitted.phase.phase, host.packer()
    kept = await _kept(admitted, host)

    def write() -> bytes:
        response = write_result(phase, partial_states(phase, admitted.phase.arguments), result, packer)
        response.kept.extend(kept)
        response.differing_module.extend(host.admission.differing_modules(computations_of(admitted.request)))
        return response.SerializeToString()

    streamed = next((member for _, member in phase.held if contains_sequence(member)), None)
    if streamed is not None:  # a stream runs user code
        return Parcel(await engine.finish(write, streamed), packer.segments, host.chunk_bytes)
    held = [(column, FederatedType(member, CLIENTS)) for column, (_, member) in zip(result.columns, phase.held)]
    folded = sum(count_leaves(fold.member) for fold in phase.folds)
    is_small = folded <= _FEW_LEAVES and all(is_quick(column, type_spec) for column, type_spec in held)
    header = write() if is_small else await off_loop(write)
    return Parcel(header, packer.segments, host.chunk_bytes)


async def _kept(admitted: AdmittedPhase, host: PhaseHost) -> list[str]:
    """Keeps the inputs that the sender wants to refer to later; returns the ids of those that were kept."""
    found = admitted.phase
    inputs = zip(admitted.request.input, found.inputs, found.phase.input_types, found.input_bytes)
    return [
        message.keep
        for message, column, member, size in inputs
        if message.keep and not message.kept and await host.keep(message.keep, column, member, size)
    ]


async def answer(received: Received[PhaseRequest], host: PhaseHost) -> Parcel:
    """Admits a received phase, reads the bytes of its arrays, runs it, and replies."""
    admitted = await admit(received, host)
    with host.lend(received.message.clients) as engine:
        await received.fill(admitted.unpacker)
        return await reply(admitted, await run(admitted, engine, host), engine, host)
