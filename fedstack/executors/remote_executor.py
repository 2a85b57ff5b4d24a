"""Defines the executor that runs everything in another process, behind an executor service."""

from fedstack.computations.types.language import CardinalitiesType, ConcreteComputation, array_pb2, computation_pb2
from fedstack.computations.values.number_checks import MOST_CLIENTS, check_bool, checked_cardinalities
from fedstack.errors import InvalidValueError
from fedstack.executors.base.verb_executor import VerbExecutor, to_declared_type
from fedstack.executors.base.verb_values import VerbValue
from fedstack.executors.remote.remote_phases import RemotePhases
from fedstack.executors.remote.remote_recorder import RemoteRecorder
from fedstack.executors.remote.session_opener import SessionOpener
from fedstack.transport.peers.executor_stub import ExecutorStub


class RemoteExecutor(VerbExecutor):
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
        self._remote = RemoteRecorder(self._sessions, check_bool("stream_structs", stream_structs))
        super().__init__(self._remote, self._sessions)

    @property
    def stub(self) -> ExecutorStub:
        """What calls the peer."""
        return self._sessions.stub

    @property
    def phases(self) -> RemotePhases:
        return RemotePhases(self._sessions)

    def set_cardinalities(self, cardinalities: CardinalitiesType) -> None:
        """Says how many participants there are. Values that were created before are of no use any more.

        Raises:
          CardinalityError: If these are no numbers of participants by placement.
        """
        super().check_open()
        self._sessions.restart(checked_cardinalities(cardinalities, MOST_CLIENTS))

    def check_open(self) -> None:
        """Checks that something can be created.

        Raises:
          ClosedError: After `close()`.
          InvalidValueError: Before `set_cardinalities()`.
        """
        super().check_open()
        if self._sessions.cardinalities is None:
            raise InvalidValueError("Expected set_cardinalities() before anything is created, found no cardinalities")

    async def open(self) -> None:
        """Opens the session at the peer, which is done anyway when something is created.

        Raises:
          WorkerUnavailableError: If the peer cannot be reached.
        """
        self.check_open()
        await self._sessions.get()

    async def create_value_stream_structs(self, value: object, type_spec: object) -> VerbValue:
        """Sends a value; of a struct, or a federated value of structs, each leaf in calls of its own."""
        if isinstance(value, (ConcreteComputation, computation_pb2.Computation, array_pb2.Array)):
            return await self.create_value(value, type_spec)
        self.check_open()
        declared = to_declared_type(type_spec)
        return await self._remote.streamed(self, self.normalized(value, declared), declared)

    @property
    def label(self) -> str:
        return f"{super().label} at {self.stub.address}"
