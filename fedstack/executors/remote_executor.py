"""Defines the executor that runs everything in another process, behind an executor service."""

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

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
from fedstack.computations.types.traceback_filter import without_own_frames
from fedstack.computations.types.type_structure import fields_of, join_path
from fedstack.computations.values.federated_values import check_clients, normalize_argument
from fedstack.computations.values.number_checks import (
    MOST_CLIENTS,
    check_bool,
    check_whole_number,
    checked_cardinalities,
)
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import (
    ClosedError,
    DeadlineExceededError,
    FedstackError,
    ForeignValueError,
    InvalidComputationError,
    InvalidValueError,
    StaleSessionError,
    TypeMismatchError,
    WorkerUnavailableError,
)
from fedstack.executors.base.lazy_executor import (
    check_argument,
    foreign_value_error,
    literal_of,
    pairs_of,
    to_declared_type,
)
from fedstack.executors.base.placed_executor import FoldArguments
from fedstack.executors.concurrency.sync_driver import need_event_loop
from fedstack.executors.folds.phase_sink import PhaseResult
from fedstack.executors.remote.extended_session import open_session
from fedstack.executors.remote.lost_ranges import Suspects
from fedstack.executors.remote.remote_phases import run_remote_phase, search_remote_phase
from fedstack.executors.remote.remote_sessions import RemoteSession, checked_stub, naming_the_worker
from fedstack.executors.remote.remote_structs import compute_streamed, compute_whole, put_streamed
from fedstack.executors.remote.remote_values import RemoteValue, naming_intrinsics
from fedstack.executors.remote.session_keeper import SessionKeeper
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

_T = TypeVar("_T")


class RemoteExecutor(Executor):
    """Keeps values and runs calls in another process.

    Every verb is one call that is awaited, from any event loop. `set_cardinalities` comes first. With a fedstack worker
    values have any size, long computes show a heartbeat and a create that failed on its way is repeated; with any
    other executor service everything works value by value.

    Args:
      stub: Calls the peer, as `fedstack.executors.stacks.remote_factory.make_stubs` makes it; see docs/workers.md.
        It stays open when this executor is closed.
      dispose_batch_size: How many values are disposed of in one call; a batch that does not fill goes after a second.
      stream_structs: Whether structs are sent and fetched leaf by leaf, for peers that take no large messages.
    """

    def __init__(self, stub: ExecutorStub, dispose_batch_size: int = 20, stream_structs: bool = False) -> None:
        check_whole_number("dispose_batch_size", dispose_batch_size, 1)
        self._stub = checked_stub(stub)
        self._dispose_batch_size = dispose_batch_size
        self._stream_structs = check_bool("stream_structs", stream_structs)
        self._cardinalities: CardinalitiesType | None = None
        self._keeper: SessionKeeper | None = None
        self._opening: asyncio.Task[SessionKeeper] | None = None
        self._closed = False

    @property
    def stub(self) -> ExecutorStub:
        """What calls the peer."""
        return self._stub

    def set_cardinalities(self, cardinalities: CardinalitiesType) -> None:
        """Says how many participants there are. Values that were created before are of no use any more.

        Raises:
          CardinalityError: If these are no numbers of participants by placement.
        """
        self._check_open()
        self._cardinalities = checked_cardinalities(cardinalities, MOST_CLIENTS)
        self._leave()

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
        return await self._create_value(value, type_spec, streamed=self._stream_structs)

    async def create_value_stream_structs(self, value: object, type_spec: object) -> RemoteValue:
        """Sends a value; of a struct, or a federated value of structs, each leaf in calls of its own."""
        return await self._create_value(value, type_spec, streamed=True)

    async def _create_value(self, value: object, type_spec: object, *, streamed: bool) -> RemoteValue:
        self._check_open()
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
        check_clients(payload, declared, (self._cardinalities or {}).get(CLIENTS))
        keeper = await self._session()
        session = keeper.session
        if streamed:
            value_id = await self._call(keeper, put_streamed(session, payload, declared, keeper.forget))
        else:
            packing = session.pack(payload, declared)
            value_id = await self._call(keeper, session.put(packing))
        return RemoteValue(self, keeper, value_id, declared)

    async def known(self, payload: object, type_spec: Type) -> RemoteValue:
        """Sends a payload that is known to fit its type."""
        keeper = await self._session()
        session = keeper.session
        if self._stream_structs:
            value_id = await self._call(keeper, put_streamed(session, payload, type_spec, keeper.forget))
        else:
            value_id = await self._call(keeper, session.put(session.pack(payload, type_spec)))
        return RemoteValue(self, keeper, value_id, type_spec)

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
        keeper = await self._session()
        with naming_the_worker(self._stub):
            travelling = keeper.session.travelling(computation)
        value_id = await self._call(keeper, keeper.session.put_computation(travelling))
        return RemoteValue(self, keeper, value_id, type_spec, source)

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
        keeper = function.keeper
        call = keeper.session.call(function.id, None if argument is None else argument.id)
        with naming_intrinsics(function, argument):
            value_id = await self._call(keeper, call)
        return RemoteValue(self, keeper, value_id, declared.result, (function, argument))

    async def create_struct(self, elements: object) -> RemoteValue:
        """Packs values into a struct at the peer; names are kept in the type.

        Raises:
          ForeignValueError: If a value was made by another executor.
          TypeMismatchError: If `elements` is no container of values.
        """
        self._check_open()
        pairs = pairs_of(elements)
        members = [self._own(value, join_path("element", name, i)) for i, (name, value) in enumerate(pairs)]
        names = [name for name, _ in pairs]
        types = [(n, m.type_signature) if n is not None else m.type_signature for n, m in zip(names, members)]
        keeper = await self._session()
        struct = keeper.session.struct([(name, member.id) for name, member in zip(names, members)])
        value_id = await self._call(keeper, struct)
        return RemoteValue(self, keeper, value_id, StructType(types), members)

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
        keeper = value.keeper
        value_id = await self._call(keeper, keeper.session.selection(value.id, index))
        return RemoteValue(self, keeper, value_id, fields[index][1], value)

    async def fetch(self, value: RemoteValue) -> object:
        """Computes a value at the peer and returns its payload."""
        self._check_open()
        keeper = self._own(value, "the value").keeper
        session, type_spec = keeper.session, value.type_signature
        if isinstance(type_spec, FunctionType):
            raise TypeMismatchError(f"Expected a value to compute, found a function of type {type_spec}; call it first")
        compute = compute_streamed if self._stream_structs else compute_whole
        with naming_intrinsics(value):
            return await self._call(keeper, compute(session, value.id, type_spec, keeper.forget))

    @property
    def has_session(self) -> bool:
        """Whether there is a session, which nothing has been heard of that would end it."""
        return self._keeper is not None and not self._keeper.session.lost

    async def open_for_phases(self) -> bool:
        """Opens the session, if there is none yet; returns whether the peer runs client phases in it."""
        peer = (await self._session()).session.peer
        return peer is not None and peer.phases

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        """Runs a client phase at the peer, in one call.

        Args:
          phase: What to run.
          inputs: A column of exactly those clients for each input of its program.
          arguments: The server's arguments of the folds.
          clients: The indices of the clients, counted over the whole federation.
        """
        return await self._in_session(lambda session: run_remote_phase(session, phase, inputs, arguments, clients))

    async def search_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, suspects: Suspects
    ) -> None:
        """Lets the peer look for a client that ends its process; see `search_remote_phase`."""
        await self._in_session(lambda session: search_remote_phase(session, phase, inputs, arguments, suspects))

    async def _in_session(self, work: Callable[[RemoteSession], Coroutine[Any, Any, _T]]) -> _T:
        """Does work in the session that needs nothing of what was in it."""
        keeper = await self._session()
        try:
            return await self._watched(keeper, work(keeper.session))
        except StaleSessionError:
            # The peer was started anew, or the lease ran out.
            keeper = await self._session()
            return await self._watched(keeper, work(keeper.session))

    async def _session(self) -> SessionKeeper:
        """Returns the session, opened if there is none."""
        await need_event_loop()
        keeper = self._keeper
        if keeper is not None and not keeper.session.lost:
            return keeper
        if self._cardinalities is None:
            raise InvalidValueError("Expected set_cardinalities() before anything is created, found no cardinalities")
        return await io_loop.run(self._open())

    async def _open(self) -> SessionKeeper:
        """Opens a session, once for all who ask at the same time; runs on the transport's loop."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._open_once())
            self._opening.add_done_callback(_look_at)
        return await asyncio.shield(self._opening)

    async def _open_once(self) -> SessionKeeper:
        while True:
            keeper, cardinalities = self._keeper, self._cardinalities
            if keeper is not None and not keeper.session.lost:
                return keeper
            with naming_the_worker(self._stub):
                session = await open_session(self._stub, cardinalities or {})
            keeper = SessionKeeper(session, self._dispose_batch_size)
            keeper.start()
            self._keeper = keeper
            if not self._closed and cardinalities is self._cardinalities:
                # The keeper does not know the executor: when nobody refers to that any more, the session ends too.
                weakref.finalize(self, keeper.give_up).atexit = False
                return keeper
            # Meanwhile this has been closed, or there are other numbers of participants: a session for those, then.
            self._keeper = None
            await keeper.end()
            if self._closed:
                raise ClosedError(f"Expected {self!r} to stay open while it connects, found it closed")

    async def _call(self, keeper: SessionKeeper, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs a call on the transport's loop."""
        # The inner one goes to the loop as it is: inside of another it would never be awaited if that were cancelled
        # before its first step.
        return await self._watched(keeper, io_loop.run(work))

    async def _watched(self, keeper: SessionKeeper, work: Coroutine[Any, Any, _T]) -> _T:
        """Awaits a call, and takes note if it tells that the session is lost, or the peer."""
        try:
            with naming_the_worker(self._stub):
                result = await work
            self._stub.out_of_reach = False
            return result
        except (FedstackError, asyncio.CancelledError) as error:
            if isinstance(error, StaleSessionError):
                keeper.session.lost = str(error)
                self._check_still_open()
            elif isinstance(error, (WorkerUnavailableError, DeadlineExceededError)):
                self._stub.out_of_reach = True
                self._check_still_open()
            raise without_own_frames(error).with_traceback(None) from error.__cause__

    def _own(self, value: object, role: str) -> RemoteValue:
        if not isinstance(value, RemoteValue):
            raise ForeignValueError(
                f"Expected a value of {self!r} as {role}, found {describe(value)}; use create_value"
            )
        if value.executor is not self:
            raise foreign_value_error(self, value.executor, role)
        if value.session.lost or self._keeper is None or value.session is not self._keeper.session:
            raise StaleSessionError(
                f"Expected a value of the current session at {self._stub.address} as {role}, found one of a session "
                f"that has ended: {value.session.lost or 'the cardinalities have changed'}; create it again"
            )
        return value

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("Expected an open executor, found RemoteExecutor closed; create a new one")

    def _check_still_open(self) -> None:
        if self._closed:
            raise ClosedError(
                f"Expected the executor at {self._stub.address} to stay open during a call, found it closed; close it "
                "when its calls have ended"
            ) from None

    def _leave(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            io_loop.finish(keeper.end())

    async def end(self) -> None:
        """Does what `close` does, on the transport's loop: several can be ended at the same time."""
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.end()

    def close(self) -> None:
        """Ends the session at the peer, which frees its values. Idempotent; never raises, for a dead peer neither."""
        self._closed = True
        self._leave()

    def __repr__(self) -> str:
        return f"<RemoteExecutor at {self._stub.address}{' closed' if self._closed else ''}>"


def _look_at(opening: "asyncio.Task[SessionKeeper]") -> None:
    """Takes note of an outcome that nobody may wait for any more: asyncio would complain."""
    if not opening.cancelled():
        opening.exception()


_FUNCTIONS = ("lambda", "intrinsic", "data", "xla", "tensorflow")
