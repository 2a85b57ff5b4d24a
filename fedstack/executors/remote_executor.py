"""Defines the executor that runs everything in another process, behind an executor service."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, cast

from fedstack.computations.types.language import CardinalitiesType, ConcreteComputation, array_pb2, computation_pb2
from fedstack.computations.values.federated_values import checked_cardinalities
from fedstack.errors import InvalidValueError
from fedstack.executors.base.verb_executor import VerbExecutor, to_declared_type
from fedstack.executors.base.verb_values import VerbValue
from fedstack.executors.remote.remote_phases import RemotePhases
from fedstack.executors.remote.remote_recorder import RemoteRecorder
from fedstack.executors.remote.remote_values import SessionValue
from fedstack.executors.remote.session_opener import SessionOpener
from fedstack.executors.remote.worker_stubs import WorkerTargets, make_stubs
from fedstack.foundations.number_checks import MOST_CLIENTS, check_bool, check_number
from fedstack.foundations.public_names import takes_options
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.executor_stub import ExecutorStub

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only: Python 3.10 has none


class ConnectOptions(TypedDict, total=False):
    """Options of `RemoteExecutor.connect`.

    Attributes:
      dispose_batch_size: How many values one call disposes of; a batch that does not fill goes after a second.
      stream_structs: Whether structs are sent and fetched leaf by leaf, for peers that take no large messages.
      connect_seconds: How long to wait for an unreachable worker, each time that it is needed.
    """

    dispose_batch_size: int
    stream_structs: bool
    connect_seconds: float


class RemoteExecutor(VerbExecutor):
    """Keeps values and runs calls in another process.

    Verbs are awaited, from any event loop; call `set_cardinalities` first. With a fedstack worker, values have any
    size, long computes send heartbeats, a create that was lost on its way is repeated, and small creates travel with
    the first call that needs them; with any other executor service, everything works value by value.

    `RemoteExecutor.connect(address)` makes one.

    Args:
      stub: Calls the peer. It stays open when this executor is closed.
      dispose_batch_size: How many values one call disposes of; a batch that does not fill goes after a second.
      stream_structs: Whether structs are sent and fetched leaf by leaf, for peers that take no large messages.
    """

    def __init__(self, stub: ExecutorStub, dispose_batch_size: int = 20, stream_structs: bool = False) -> None:
        self._sessions = SessionOpener(stub, dispose_batch_size)
        self._remote = RemoteRecorder(self._sessions, check_bool("stream_structs", stream_structs))
        self._closes_stub = False
        super().__init__(self._remote)

    @classmethod
    @takes_options(ConnectOptions, dispose_batch_size=20, stream_structs=False, connect_seconds=10.0)
    def connect(
        cls, target: WorkerTargets, credentials: ClientCredentials | None = None, **options: "Unpack[ConnectOptions]"
    ) -> "RemoteExecutor":
        """Returns an executor at a worker; it connects when an `async with` block begins, or on first use.

        Closing it closes the connection.

        Args:
          target: The worker: an address (`localhost:8000`, `grpcs://host:8000`, `unix:/path`), a channel, or a
            `ClusterSpec` or `local_worker_pool` of one.
          credentials: Certificates and the token, if the target is an address.
          **options: See `ConnectOptions`.

        Raises:
          InvalidValueError: If the target is not one worker, or an option has an impossible value.
          TypeError: If there is no such option.
        """
        seconds = options.get("connect_seconds", 10.0)
        check_number("connect_seconds", seconds, endless=True)
        stubs = make_stubs(target, credentials)
        if len(stubs) != 1:
            raise InvalidValueError(
                f"Expected one worker, found {len(stubs)}; give the address of one, or use several in a context: "
                "fedstack.create_sync_remote_execution_context(...)"
            )
        executor = cls(stubs[0], options.get("dispose_batch_size", 20), options.get("stream_structs", False))
        executor._sessions.connect_seconds = seconds
        executor._closes_stub = True
        return executor

    @property
    def worker_index(self) -> int | None:
        """The index of the peer among its client's workers, for functions; set it before the session opens."""
        return self._sessions.worker_index

    @worker_index.setter
    def worker_index(self, index: int | None) -> None:
        self._sessions.worker_index = index

    @property
    def stub(self) -> ExecutorStub:
        """The stub that calls the peer."""
        return self._sessions.stub

    @property
    def phases(self) -> RemotePhases:
        return RemotePhases(self._sessions)

    def set_cardinalities(self, cardinalities: CardinalitiesType) -> None:
        """Sets the numbers of participants. Values created before become unusable.

        Raises:
          CardinalityError: If these are not numbers of participants by placement.
        """
        super().check_open()
        self._sessions.restart(checked_cardinalities(cardinalities, MOST_CLIENTS))

    def check_open(self) -> None:
        """Checks that values can be created.

        Raises:
          ClosedError: After `close()`.
          InvalidValueError: Before `set_cardinalities()`.
        """
        super().check_open()
        if self._sessions.cardinalities is None:
            raise InvalidValueError("Expected set_cardinalities() before anything is created, found no cardinalities")

    def close(self) -> None:
        if not self._closed:
            super().close()
            self._sessions.close()
            if self._closes_stub:  # after the session, which says goodbye through it
                self.stub.io.finish(self.stub.close())

    async def end(self) -> None:
        """Closes the executor, on the transport's loop, and waits until the peer has freed its values. Never raises."""
        await self._sessions.end()
        self.close()

    async def _connected(self) -> None:
        await self._sessions.connect()

    async def open(self) -> None:
        """Opens the session at the peer; otherwise the first created value opens it.

        Raises:
          WorkerUnavailableError: If the peer cannot be reached.
        """
        self.check_open()
        await self._sessions.get()

    async def start(self, values: Sequence[VerbValue], waiting: int = 0) -> Mapping[VerbValue, Exception | None]:
        """Runs values, which stay at the peer, in one call if that is a fedstack worker.

        Args:
          values: The values.
          waiting: How many more values wait at the caller; the peer's status shows it.

        Returns:
          The values that ended first, each with its error, or `None` if it succeeded. Call it again with the others,
          which continue to run.

        Raises:
          WorkerUnavailableError: If the peer is gone.
          StaleSessionError: If the peer has lost the values.
        """
        owned = [cast(SessionValue, self._own(value, "a value to start")) for value in values]
        return {**await self._remote.start(owned, waiting)}

    async def stop(self, values: Sequence[VerbValue]) -> None:
        """Stops running values at the peer, which drops them. A caller that waits for one gets no outcome."""
        await self._remote.stop([cast(SessionValue, self._own(value, "a value to stop")) for value in values])

    async def create_value_stream_structs(self, value: object, type_spec: object) -> VerbValue:
        """Sends a value; a struct, or a federated value of structs, is sent leaf by leaf."""
        if isinstance(value, (ConcreteComputation, computation_pb2.Computation, array_pb2.Array)):
            return await self.create_value(value, type_spec)
        self.check_open()
        declared = to_declared_type(type_spec)
        return await self._remote.streamed(self, self.normalized(value, declared), declared)

    @property
    def label(self) -> str:
        return f"{super().label} at {self.stub.address}"
