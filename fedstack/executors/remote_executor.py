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
from fedstack.transport.peers.connection import Transport
from fedstack.transport.peers.executor_stub import ExecutorStub

if TYPE_CHECKING:
    from typing import Unpack  # for type checkers only, because Python 3.10 does not define it


class ConnectOptions(TypedDict, total=False):
    """Options of `RemoteExecutor.connect`.

    Attributes:
      dispose_batch_size: The number of values that one call disposes of. A smaller batch is sent after one second.
      stream_structs: Whether structs are sent and fetched leaf by leaf, for peers that reject large messages.
      connect_seconds: The maximum number of seconds that an operation waits for an unreachable worker.
      transport: How to reach an address: `"stream"`, `"grpc"`, or `"auto"` for a stream if there is one.
    """

    dispose_batch_size: int
    stream_structs: bool
    connect_seconds: float
    transport: Transport


class RemoteExecutor(VerbExecutor):
    """Keeps values and runs calls in another process.

    Call `set_cardinalities` before creating values. The verbs can be awaited from any event loop. A fedstack worker
    supports values of any size, sends heartbeats during long computations, and accepts small values in the same message
    as the first call that needs them; if a request to create a value is lost, it is repeated. With any other executor
    service, each value is sent and fetched in a separate call.

    Use `RemoteExecutor.connect(address)` to create an executor.

    Args:
      stub: Calls the peer. It stays open when this executor is closed.
      dispose_batch_size: The number of values that one call disposes of. A smaller batch is sent after one second.
      stream_structs: Whether structs are sent and fetched leaf by leaf, for peers that reject large messages.
    """

    def __init__(self, stub: ExecutorStub, dispose_batch_size: int = 20, stream_structs: bool = False) -> None:
        self._sessions = SessionOpener(stub, dispose_batch_size)
        self._remote = RemoteRecorder(self._sessions, check_bool("stream_structs", stream_structs))
        self._closes_stub = False
        super().__init__(self._remote)

    @classmethod
    @takes_options(ConnectOptions, dispose_batch_size=20, stream_structs=False, connect_seconds=10.0, transport="auto")
    def connect(
        cls, target: WorkerTargets, credentials: ClientCredentials | None = None, **options: "Unpack[ConnectOptions]"
    ) -> "RemoteExecutor":
        """Returns an executor that runs computations on a worker.

        The executor connects on first use or on entering an `async with` block. Closing the executor closes the
        connection.

        Args:
          target: The worker: an address (`localhost:8000`, `grpcs://host:8000`, `unix:/path`), a channel, or a
            `ClusterSpec` or `local_worker_pool` with exactly one worker.
          credentials: Certificates and the token, if the target is an address.
          **options: See `ConnectOptions`.

        Raises:
          InvalidValueError: If the target is not exactly one worker, or an option has an invalid value.
          TypeError: If an option is unknown.
        """
        seconds = options.get("connect_seconds", 10.0)
        check_number("connect_seconds", seconds, endless=True)
        stubs = make_stubs(target, credentials, options.get("transport", "auto"))
        if len(stubs) != 1:
            raise InvalidValueError(
                f"Expected one worker, found {len(stubs)} workers; pass the address of one worker, or create a context "
                "for several workers with fedstack.create_sync_remote_execution_context(...)"
            )
        executor = cls(stubs[0], options.get("dispose_batch_size", 20), options.get("stream_structs", False))
        executor._sessions.connect_seconds = seconds
        executor._closes_stub = True
        return executor

    @property
    def worker_index(self) -> int | None:
        """The index of the peer among the workers of this client. Functions can read this index.

        Set it before the session opens.
        """
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
        """Sets the numbers of participants. Values that were created earlier become unusable.

        Raises:
          CardinalityError: If `cardinalities` does not map placements to numbers of participants.
        """
        super().check_open()
        self._sessions.restart(checked_cardinalities(cardinalities, MOST_CLIENTS))

    def check_open(self) -> None:
        """Checks that values can be created.

        Raises:
          ClosedError: If the executor is closed.
          InvalidValueError: If `set_cardinalities()` has not been called.
        """
        super().check_open()
        if self._sessions.cardinalities is None:
            raise InvalidValueError("The cardinalities are not set; call set_cardinalities() before creating values")

    def close(self) -> None:
        if not self._closed:
            super().close()
            self._sessions.close()
            if self._closes_stub:  # only now, because ending the session requires the stub
                self.stub.io.finish(self.stub.close())

    async def end(self) -> None:
        """Closes the executor and waits until the peer has freed its values. Never raises.

        Call this method on the transport's event loop.
        """
        await self._sessions.end()
        self.close()

    async def _connected(self) -> None:
        await self._sessions.connect()

    async def open(self) -> None:
        """Opens the session on the peer. Without this call, the first created value opens the session.

        Raises:
          WorkerUnavailableError: If the peer cannot be reached.
        """
        self.check_open()
        await self._sessions.get()

    async def start(self, values: Sequence[VerbValue], waiting: int = 0) -> Mapping[VerbValue, Exception | None]:
        """Computes values on the peer, where the results stay. A fedstack worker receives all values in one call.

        Args:
          values: The values to compute.
          waiting: The number of further values that the caller has queued; it is shown in the peer's status.

        Returns:
          The values that finished first, each with its error or, if the value succeeded, `None`. The other values are
          still being computed; call `start` again with them.

        Raises:
          WorkerUnavailableError: If the peer is no longer reachable.
          StaleSessionError: If the peer has lost the values.
        """
        owned = [cast(SessionValue, self._own(value, "a value to start")) for value in values]
        return {**await self._remote.start(owned, waiting)}

    async def stop(self, values: Sequence[VerbValue]) -> None:
        """Stops the computation of values on the peer, and drops the values there.

        A caller that waits for one of these values receives no outcome.
        """
        await self._remote.stop([cast(SessionValue, self._own(value, "a value to stop")) for value in values])

    async def create_value_stream_structs(self, value: object, type_spec: object) -> VerbValue:
        """Sends a value to the peer. Structs and federated values of structs are sent leaf by leaf."""
        if isinstance(value, (ConcreteComputation, computation_pb2.Computation, array_pb2.Array)):
            return await self.create_value(value, type_spec)
        self.check_open()
        declared = to_declared_type(type_spec)
        return await self._remote.streamed(self, self.normalized(value, declared), declared)

    @property
    def label(self) -> str:
        return f"{super().label} at {self.stub.address}"
