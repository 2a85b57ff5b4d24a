"""Runs a client phase, from serialized request to serialized response, independently of services and connections.

    receive → admit → run → reply

`receive` (`receiving.py`) reads the message. `admit` checks the content of the message and allocates buffers for its
arrays, without running or loading any code from the sender. Then the bytes of the arrays are read. `run` loads the
functions and runs the phase, and `reply` serializes the contributions of the clients. `answer` performs all steps after
`receive`.

A `PhaseHost` encapsulates the differences between workers. The executor service creates a host for each session. A
process that searches for a client that crashes workers has its own host. A worker that is started by another execution
engine can also have its own host.
"""

import abc
import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import attrs

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.payload_sizes import is_quick
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.portability import Fleet, check_fleet
from fedstack.computations.leaves.work_scope import change_scope, current_scope
from fedstack.computations.plan.plan import plans
from fedstack.computations.types.language import CLIENTS, FederatedType, Type, computation_pb2
from fedstack.computations.types.type_sizes import count_leaves
from fedstack.computations.types.type_structure import contains_sequence
from fedstack.computations.values.columns import Column
from fedstack.errors import InvalidValueError
from fedstack.executors.base.hand_ins import Contribution, HandIn, Headway, Leave
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.concurrency.leaf_threads import LOOP_BYTES, off_loop
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.folds.aggregations import partial_states
from fedstack.executors.remote.phase_copies import (
    Offered,
    computations_of,
    packed_functions_of,
    unpack_functions,
    values_of,
)
from fedstack.executors.remote.phase_messages import ReceivedPhase, check_first_client, read_phase
from fedstack.executors.remote.phase_results import write_result
from fedstack.executors.stored.stored_results import ResultWriter
from fedstack.executors.survivors.ending import Ending
from fedstack.executors.survivors.failure_messages import read_tolerance
from fedstack.executors.survivors.outcomes import Telling
from fedstack.executors.worker.receiving import Admission, Received
from fedstack.proto import extensions_pb2 as messages
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.transport.wire.frames import CHUNK_BYTES
from fedstack.transport.wire.parcels import Incoming, Parcel

# The allowance for the dtype and shape of an array, in bytes.
ARRAY_SPARE_BYTES = 64
# Serializing or parsing this many clients or tensors takes about a millisecond.
_FEW_CLIENTS = 1000
_FEW_LEAVES = 200
# The minimum time between two contributions that a sender may ask for, in seconds.
_LEAST_SECONDS = 0.05


class PhaseHost(abc.ABC):
    """Provides the engines and resources with which phases run.

    This base class keeps no inputs between phases; subclasses may.

    Args:
      admission: Checks incoming phases.
    """

    def __init__(self, admission: Admission) -> None:
        self.admission = admission

    @abc.abstractmethod
    def lend(self, clients: int) -> AbstractContextManager[PhaseRunner]:
        """Returns a context manager that yields a runner of phases for the given number of clients."""

    def unpacker(self, clients: int, rest: Incoming) -> Unpacker:
        """Returns an unpacker for a phase.

        Args:
          clients: The number of clients.
          rest: The source of the bytes of the arrays.
        """
        admission = self.admission
        return Unpacker(max_bytes=admission.max_bytes, clients=clients, stores=admission.stores, mapped=rest.mapped)

    @property
    def chunk_bytes(self) -> int:
        """The maximum number of bytes in a chunk of a response, for transports that split responses."""
        return CHUNK_BYTES

    def packer(self) -> Packer:
        """Returns a packer for a result."""
        return Packer()

    def check_new_id(self, value_id: str) -> None:
        """Checks the id under which the sender wants an input to be kept."""
        return

    def find(self, value_id: str) -> tuple[Column, Type]:
        """Returns an input that was kept by an earlier phase, and the type of its members.

        Raises:
          InvalidValueError: If no input is kept under this id.
        """
        raise InvalidValueError(
            f"Expected a phase that contains all its inputs, found a reference to the kept input {value_id[:80]!r}; "
            "send the input with the phase, because this worker keeps no inputs"
        )

    async def keep(self, value_id: str, column: Column, member: Type, size: int) -> bool:
        """Keeps an input for later phases if the host supports it and has room, and returns whether it was kept."""
        return False


@attrs.frozen
class AdmittedPhase:
    """A checked phase, which can run as soon as the buffers of its unpacker are filled.

    Attributes:
      request: The message.
      phase: The parsed message.
      unpacker: The unpacker that contains the buffers.
      leaves: The leaf computations to load.
      functions: The packed functions that the sender may refer to later, if they are kept.
    """

    request: PhaseRequest
    phase: ReceivedPhase
    unpacker: Unpacker
    leaves: Sequence[computation_pb2.Computation]
    functions: Sequence[Offered]


async def admit(received: Received[PhaseRequest], host: PhaseHost) -> AdmittedPhase:
    """Checks a phase and allocates the buffers for its arrays.

    Args:
      received: The message.
      host: The host that will run the phase.

    Raises:
      FedstackError: If the phase is malformed, contains a function that is not allowed, or is too large.
    """
    request, admission = received.message, host.admission
    packed, inputs = packed_functions_of(request), list(values_of(request))
    for message in [*packed, *inputs]:
        if message.keep:
            host.check_new_id(message.keep)
    admission.check_clients(request.clients)
    check_first_client(request)
    check = admission.check_size
    functions = await off_loop(lambda: unpack_functions(request, host.find, check)) if packed else ()
    computations = computations_of(request)

    def read() -> AdmittedPhase:
        leaves = [leaf for computation in computations for leaf in admission.check(computation)]
        unpacker = host.unpacker(request.clients, received.rest)
        found = read_phase(request, unpacker, host.find)
        size = sum(message.value.ByteSize() for message in inputs) + sum(map(len, unpacker.buffers))
        admission.check_size(size, len(inputs) * ARRAY_SPARE_BYTES)
        return AdmittedPhase(request, found, unpacker, leaves, functions)

    # A short program may have many steps, and a short message many clients.
    is_short = received.size <= LOOP_BYTES and request.clients <= _FEW_CLIENTS and not packed
    is_known = is_short and all(map(plans.knows_content, computations))
    return read() if is_known else await off_loop(read)


async def run(
    admitted: AdmittedPhase, engine: PhaseRunner, host: PhaseHost, outbox: "Outbox | None" = None
) -> Contribution:
    """Runs an admitted phase in the current scope.

    Args:
      admitted: The phase.
      engine: Runs the phase.
      host: The host of the phase.
      outbox: Receives what the first clients have contributed while others are running, if the sender wants it.

    Returns:
      The contribution of all clients that are neither in the outbox nor left to other workers.
    """
    if outbox is not None:
        outbox.admitted(admitted.request, admitted.phase.clients)
    enter_tolerance(admitted.request, None if outbox is None else outbox.ending)
    await load(admitted, host)
    found, seconds = admitted.phase, admitted.request.hand_in_seconds
    # A stream of a sequence runs user code while it is written, which only `reply` can do.
    if outbox is None or not seconds > 0 or any(contains_sequence(member) for _, member in found.phase.held):
        return found.clients, await engine.run_phase(found.phase, found.inputs, found.arguments, found.clients)

    stored = ResultWriter(admitted.request, found.phase, host.admission.stores)

    def take(clients: range, result: PhaseResult) -> None:
        packer = host.packer()
        stored.write(clients, result, packer)
        response = write_result(found.phase, partial_states(found.phase, found.arguments), result, packer)
        response.handed_in = len(clients)
        outbox.handed_in += len(clients)
        outbox.put(Parcel(response.SerializeToString(), packer.segments, host.chunk_bytes, is_last=False))

    wanted = max(_LEAST_SECONDS, seconds)
    functions = sum(computation.ByteSize() for computation in computations_of(admitted.request))
    hand_in = HandIn(take, wanted, outbox.is_free, outbox.begun, all_begun=outbox.all_begun, function_bytes=functions)
    return await engine.run_in_parts(found.phase, found.inputs, found.arguments, found.clients, hand_in)


async def load(admitted: AdmittedPhase, host: PhaseHost) -> None:
    """Loads the functions of an admitted phase.

    Raises:
      CarrierError: If the sender wants the same bits from all workers, and this one compiles a function in another way.
    """
    await host.admission.load(admitted.leaves)
    request = admitted.request
    if request.same_bits:
        change_scope(systems=current_scope().adding(Fleet(mixed=False)).systems)
        check_fleet(host.admission.differing_modules(computations_of(request)))


def enter_tolerance(request: PhaseRequest, ending: Ending | None = None) -> None:
    """Makes what a request says about clients that fail, and whether to tell of each, part of the current scope.

    Args:
      request: The request of a phase.
      ending: Ends the phase before all clients are done; `None` if nobody can do this.
    """
    tolerance = read_tolerance(request, ending)
    added = [*([] if tolerance is None else [tolerance]), *([Telling()] if request.tells else [])]
    if added:
        change_scope(systems=current_scope().adding(*added).systems)


class Outbox:
    """Parcels to send before the response of a phase. Any thread may add parcels.

    Args:
      notify: A function that is called on the event loop after a parcel has been added.
      counts: The numbers of clients that are done and running.

    Attributes:
      clients: The clients that the server was asked to run; none until the phase has been read.
      origin: Where the clients come from, as the request says.
      handed_in: The number of clients whose contributions have been added.
      left: The number of clients that were left to other workers.
      leave: Asks for the last clients of the phase; `None` while they cannot be left to another worker.
      ending: Ends the phase before all clients are done, if the sender may want this.
      tells_often: Whether the sender wants to know soon how many clients are done.
    """

    def __init__(self, notify: Callable[[], None], counts: ProgressCounts) -> None:
        self.counts = counts
        self.clients = range(0)
        self.origin: messages.Origin | None = None
        self.handed_in = self.left = 0
        self._notify: Callable[[], None] | None = notify
        self._loop = asyncio.get_running_loop()
        self._parcels: deque[Parcel] = deque()
        self.leave: Leave | None = None
        self.ending = Ending(leaves_out=True)
        self._all_begun = asyncio.Event()
        self.tells_often = False

    def admitted(self, request: PhaseRequest, clients: range) -> None:
        """Records which clients the server was asked to run, and where they come from."""
        self.clients = clients
        self.origin = request.origin if request.HasField("origin") else None

    def begun(self, leave: Leave) -> None:
        """Records how to ask for the last clients of the phase."""

        async def leave_and_note(rate: float) -> Headway | None:
            headway = await leave(rate)
            if headway is not None:
                self.left = self.clients.stop - headway.stop
            return headway

        self.leave = leave_and_note

    def all_begun(self) -> None:
        """Records that no further clients of the phase will begin. May be called on any thread."""
        self._loop.call_soon_threadsafe(self._all_begun.set)

    async def wait_until_begun(self) -> None:
        """Waits until no further clients of the phase will begin, or until it has ended."""
        await self._all_begun.wait()

    def is_free(self) -> bool:
        """Returns whether all parcels have been sent."""
        return not self._parcels

    def put(self, parcel: Parcel) -> None:
        """Adds a parcel."""
        self._parcels.append(parcel)
        self._loop.call_soon_threadsafe(self._tell)

    def tell_often(self) -> None:
        """Sets `tells_often`. Called on the event loop."""
        self.tells_often = True
        self._tell()

    def _tell(self) -> None:
        if self._notify is not None:
            self._notify()

    def close(self) -> None:
        """Stops notifying, which breaks the reference cycle of the work, its error's frames and this object."""
        self._notify = self.leave = None
        self._all_begun.set()

    def drain(self) -> Iterator[Parcel]:
        """Yields the parcels. Each is removed once it has been sent."""
        while self._parcels:
            yield self._parcels[0]
            self._parcels.popleft()


async def reply(
    admitted: AdmittedPhase, last: Contribution, engine: PhaseRunner, host: PhaseHost, differing: Iterable[str] = ()
) -> Parcel:
    """Returns the serialized contribution of the last clients. Large results are serialized on a thread.

    Args:
      admitted: The phase.
      last: The contribution.
      engine: The engine that ran the phase.
      host: The host of the phase.
      differing: The modules that differ from the sender's at other workers, to whose contributions this one belongs.
    """
    phase, packer, (clients, result) = admitted.phase.phase, host.packer(), last
    kept = await _kept(admitted, host)
    stored = ResultWriter(admitted.request, phase, host.admission.stores)

    def write() -> bytes:
        stored.write(clients, result, packer)
        response = write_result(phase, partial_states(phase, admitted.phase.arguments), result, packer)
        if clients.stop != admitted.phase.clients.stop:
            response.shortened = len(clients)
        response.kept.extend(kept)
        own = host.admission.differing_modules(computations_of(admitted.request))
        response.differing_module.extend(sorted({*own, *differing}))
        return response.SerializeToString()

    streamed = next((member for _, member in phase.held if contains_sequence(member)), None)
    if streamed is not None:  # a stream runs user code
        return Parcel(await engine.finish(write, streamed), packer.segments, host.chunk_bytes)
    held = [(column, FederatedType(member, CLIENTS)) for column, (_, member) in zip(result.columns, phase.held)]
    folded = sum(count_leaves(fold.member) for fold in phase.folds)
    is_small = folded <= _FEW_LEAVES and all(is_quick(column, type_spec) for column, type_spec in held)
    header = write() if is_small and not stored.writes else await off_loop(write)
    return Parcel(header, packer.segments, host.chunk_bytes)


async def _kept(admitted: AdmittedPhase, host: PhaseHost) -> list[str]:
    """Keeps the values that the sender wants to refer to later, and returns the ids of those that were kept."""
    offered = [*admitted.functions, *admitted.phase.offered]
    return [one.name for one in offered if await host.keep(one.name, one.column, one.member, one.size)]


async def answer(
    received: Received[PhaseRequest], host: PhaseHost, outbox: Outbox | None = None, previous: Outbox | None = None
) -> Parcel:
    """Admits a received phase, reads the bytes of its arrays, runs the phase, and returns the last response.

    Args:
      received: The message.
      host: The host of the phase.
      outbox: Receives the responses that precede the last one, if the sender wants any.
      previous: The outbox of a phase whose clients begin first; `None` if the clients need not wait.
    """
    admitted = await admit(received, host)
    with host.lend(received.message.clients) as engine:
        await received.fill(admitted.unpacker)
        if previous is not None:
            await previous.wait_until_begun()
        return await reply(admitted, await run(admitted, engine, host, outbox), engine, host)
