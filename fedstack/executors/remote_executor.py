"""Defines the executor that runs everything in another process, behind an executor service."""

from collections.abc import Sequence

from fedstack.computations.plan.graph import declared_type
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import (
    CLIENTS,
    CardinalitiesType,
    ConcreteComputation,
    Executor,
    FunctionType,
    StructType,
    Type,
    array_pb2,
    computation_pb2,
)
from fedstack.computations.types.type_structure import fields_of, join_path
from fedstack.computations.values.federated_values import check_clients, normalize_argument
from fedstack.computations.values.number_checks import MOST_CLIENTS, check_bool, checked_cardinalities
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import (
    ClosedError,
    ForeignValueError,
    InvalidComputationError,
    InvalidValueError,
    TypeMismatchError,
)
from fedstack.executors.base.lazy_executor import (
    check_argument,
    foreign_value_error,
    literal_of,
    pairs_of,
    to_declared_type,
)
from fedstack.executors.base.placed_executor import FoldArguments
from fedstack.executors.folds.phase_sink import PhaseResult
from fedstack.executors.remote.remote_phases import RemotePhases
from fedstack.executors.remote.remote_recorder import RemoteRecorder
from fedstack.executors.remote.remote_values import RemoteValue
from fedstack.executors.remote.session_opener import SessionOpener
from fedstack.transport.peers.executor_stub import ExecutorStub


class RemoteExecutor(Executor):
    """Keeps values and runs calls in another process.

    Verbs are awaited, from any event loop. `set_cardinalities` comes first. With a fedstack worker values have any
    size, long computes show a heartbeat, a create that failed on its way is repeated, and small ones go along with the
    first call that needs them; with any other executor service everything works value by value.

    Args:
      stub: Calls the peer, as `fedstack.executors.stacks.remote_factory.make_stubs` makes it; see docs/workers.md.
        It stays open when this executor is closed.
      dispose_batch_size: How many values are disposed of in one call; a batch that does not fill goes after a second.
      stream_structs: Whether structs are sent and fetched leaf by leaf, for peers that take no large messages.
    """

    def __init__(self, stub: ExecutorStub, dispose_batch_size: int = 20, stream_structs: bool = False) -> None:
        self._sessions = SessionOpener(stub, dispose_batch_size)
        self._recorder = RemoteRecorder(self._sessions, check_bool("stream_structs", stream_structs))

    @property
    def stub(self) -> ExecutorStub:
        """What calls the peer."""
        return self._sessions.stub

    def set_cardinalities(self, cardinalities: CardinalitiesType) -> None:
        """Says how many participants there are. Values that were created before are of no use any more.

        Raises:
          CardinalityError: If these are no numbers of participants by placement.
        """
        self._check_open()
        self._sessions.restart(checked_cardinalities(cardinalities, MOST_CLIENTS))

    async def open(self) -> None:
        """Opens the session at the peer, which is done anyway when something is created.

        Raises:
          WorkerUnavailableError: If the peer cannot be reached.
        """
        self._check_ready()
        await self._sessions.get()

    async def create_value(self, value: object, type_spec: object = None) -> RemoteValue:
        """Sends a value or a computation.

        Args:
          value: Anything that fits the type, a `Computation` message or object, or an `Array` message.
          type_spec: The type; it may be left out for computations.

        Raises:
          TypeMismatchError: If the value does not fit the type.
          CardinalityError: If it has values for another number of clients than `set_cardinalities` said.
          CarrierError: If a leaf function cannot travel to the peer.
          WorkerUnavailableError: If the peer cannot be reached.
          ClosedError: After `close()`.
        """
        return await self._create_value(value, type_spec, self._recorder)

    async def create_value_stream_structs(self, value: object, type_spec: object) -> RemoteValue:
        """Sends a value; of a struct, or a federated value of structs, each leaf in calls of its own."""
        return await self._create_value(value, type_spec, RemoteRecorder(self._sessions, stream_structs=True))

    async def _create_value(self, value: object, type_spec: object, recorder: RemoteRecorder) -> RemoteValue:
        self._check_ready()
        declared = None if type_spec is None else to_declared_type(type_spec)
        if isinstance(value, array_pb2.Array):
            value = literal_of(value, declared)
        if isinstance(value, ConcreteComputation):
            return await self._create_computation(value.to_proto(), declared, value)
        if isinstance(value, computation_pb2.Computation):
            return await self._create_computation(value, declared, value)
        if declared is None:
            raise TypeMismatchError(
                f"Expected a type for a value that is no computation, found none for {describe(value)}"
            )
        payload = normalize_argument(value, declared, "value")
        # The peer would refuse it too, but only when it hears of the value, later.
        check_clients(payload, declared, (self._sessions.cardinalities or {}).get(CLIENTS))
        return await recorder.payload(self, payload, declared)

    async def known(self, payload: object, type_spec: Type) -> RemoteValue:
        """Sends a payload that is known to fit its type."""
        self._check_ready()
        return await self._recorder.payload(self, payload, type_spec)

    async def _create_computation(
        self, computation: computation_pb2.Computation, declared: Type | None, source: object
    ) -> RemoteValue:
        type_spec = declared_type(computation)
        if declared is not None and not declared.is_equivalent_to(type_spec):
            raise TypeMismatchError(f"Expected a computation of type {declared}, found one of type {type_spec}")
        if isinstance(type_spec, FunctionType) and computation.WhichOneof("computation") not in _FUNCTIONS:
            raise InvalidComputationError(
                f"Expected a computation that yields a value, found a {computation.WhichOneof('computation')} that "
                f"yields a function {type_spec}; call the function inside and return its result"
            )
        return await self._recorder.embed(self, computation, type_spec, source)

    async def create_call(self, comp: object, arg: object = None) -> RemoteValue:
        """Calls a function at the peer.

        Raises:
          TypeMismatchError: If `comp` is no function, or the argument does not fit its parameter.
          ForeignValueError: If a value was made by another executor.
        """
        self._check_open()
        function = self._own(comp, "the function")
        argument = None if arg is None else self._own(arg, "the argument")
        declared = function.type_signature
        if not isinstance(declared, FunctionType):
            raise TypeMismatchError(f"Expected a function to call, found a value of type {declared}")
        check_argument(declared.parameter, argument)
        return await self._recorder.call(self, function, argument, declared.result)

    async def create_struct(self, elements: object) -> RemoteValue:
        """Packs values into a struct at the peer; names are kept in the type.

        Raises:
          ForeignValueError: If a value was made by another executor.
          TypeMismatchError: If `elements` is no container of values.
        """
        self._check_ready()
        pairs = pairs_of(elements)
        members = [(name, self._own(value, join_path("element", name, i))) for i, (name, value) in enumerate(pairs)]
        types = [(n, m.type_signature) if n is not None else m.type_signature for n, m in members]
        return await self._recorder.struct(self, members, StructType(types))

    async def create_selection(self, source: object, index: object) -> RemoteValue:
        """Selects a member at the peer.

        Raises:
          TypeMismatchError: If the source is no struct or has no such member.
        """
        self._check_open()
        value = self._own(source, "the source")
        struct = value.type_signature
        if not isinstance(struct, StructType):
            raise TypeMismatchError(f"Expected a struct to select from, found a value of type {struct}")
        fields = fields_of(struct)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(fields):
            raise TypeMismatchError(f"Expected an index from 0 to {len(fields) - 1} into {struct}, found {index!r}")
        return await self._recorder.selection(self, value, index, fields[index][1])

    async def fetch(self, value: RemoteValue) -> object:
        """Computes a value at the peer and returns its payload."""
        self._check_open()
        type_spec = self._own(value, "the value").type_signature
        if isinstance(type_spec, FunctionType):
            raise TypeMismatchError(f"Expected a value to compute, found a function of type {type_spec}; call it first")
        return await self._recorder.fetch(value)

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        """Runs a client phase at the peer; so this can be a child of a composing executor. See `RemotePhases`."""
        self._check_ready()
        return await RemotePhases(self._sessions).run_phase(phase, inputs, arguments, clients)

    def _own(self, value: object, role: str) -> RemoteValue:
        if not isinstance(value, RemoteValue):
            raise ForeignValueError(
                f"Expected a value of {self!r} as {role}, found {describe(value)}; use create_value"
            )
        if value.executor is not self:
            raise foreign_value_error(self, value.executor, role)
        self._recorder.check_current(value, role)
        return value

    def _check_open(self) -> None:
        if self._sessions.closed:
            raise ClosedError("Expected an open executor, found RemoteExecutor closed; create a new one")

    def _check_ready(self) -> None:
        self._check_open()
        if self._sessions.cardinalities is None:
            raise InvalidValueError("Expected set_cardinalities() before anything is created, found no cardinalities")

    def close(self) -> None:
        """Ends the session at the peer, which frees its values. Idempotent; never raises, for a dead peer neither."""
        self._sessions.close()

    def __repr__(self) -> str:
        return f"<RemoteExecutor at {self.stub.address}{' closed' if self._sessions.closed else ''}>"


_FUNCTIONS = ("lambda", "intrinsic", "data", "xla", "tensorflow")
