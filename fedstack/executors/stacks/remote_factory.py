"""Makes the stacks that run client work on workers in other processes."""

from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor
from fedstack.errors import InvalidValueError
from fedstack.executors.data_executor import DataBackend
from fedstack.executors.federating_executor import FederatingExecutor
from fedstack.executors.leaf_executor import LeafExecutor
from fedstack.executors.reference_resolving_executor import ReferenceResolvingExecutor
from fedstack.executors.remote.phases.remote_phases import RemotePhases
from fedstack.executors.remote.sessions.session_opener import SessionOpener
from fedstack.executors.remote.worker_stubs import WorkerTargets, make_stubs
from fedstack.executors.remote.workers import Worker, Workers
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.executors.stacks.factories import unplaced_stack
from fedstack.executors.stacks.resource_factory import ResourceManagingExecutorFactory
from fedstack.executors.stacks.worker_sessions import WorkerSessions
from fedstack.executors.stacks.workers_executor import WorkersExecutor
from fedstack.foundations.number_checks import MOST_CLIENTS, check_bool, check_number, check_whole_number
from fedstack.foundations.public_names import takes_options
from fedstack.transport.grpc.credentials import ClientCredentials


class RemoteExecutorFactory(ResourceManagingExecutorFactory):
    """A factory over workers; made by `remote_executor_factory`."""

    def __init__(
        self,
        workers: Workers,
        default_num_clients: int,
        *,
        max_fanout: int,
        dispose_batch_size: int,
        stream_structs: bool,
        data_backend: DataBackend | None,
        source: object = None,
    ) -> None:
        def make_remote(worker: Worker) -> RemoteExecutor:
            return RemoteExecutor(worker.stub, dispose_batch_size, stream_structs)

        sessions = WorkerSessions(workers, lambda worker: RemotePhases(SessionOpener(worker.stub, dispose_batch_size)))

        def stack(cardinalities: CardinalitiesType) -> Executor:
            server = unplaced_stack(LeafExecutor(), data_backend)
            clients = cardinalities[CLIENTS]
            if not clients:
                return ReferenceResolvingExecutor(FederatingExecutor(server, 0))
            return ReferenceResolvingExecutor(
                WorkersExecutor(
                    server, workers, clients, max_fanout=max_fanout, sessions=sessions, make_remote=make_remote
                )
            )

        super().__init__(stack, default_num_clients=default_num_clients)
        self._sessions = sessions
        self._workers = workers
        self._source = source  # a pool ends its processes when nobody refers to it

    @property
    def workers(self) -> Workers:
        """The workers."""
        return self._workers

    def end(self) -> None:
        self._workers.close([phases.end for phases in self._sessions])

    def __repr__(self) -> str:
        return f"<RemoteExecutorFactory over {self._workers!r}>"


@takes_options()
def remote_executor_factory(
    targets: WorkerTargets,
    default_num_clients: int = 0,
    max_fanout: int = 100,
    dispose_batch_size: int = 20,
    stream_structs: bool = False,
    *,
    credentials: ClientCredentials | None = None,
    connect_seconds: float = 10.0,
    data_backend: DataBackend | None = None,
) -> RemoteExecutorFactory:
    """Returns a factory of stacks that run the work of clients on workers, and the server's work here.

    Each client phase is spread evenly over the workers that are ready when it begins. A worker that dies costs the
    round: the context runs it again on those left, with the same result.

    Args:
      targets: Addresses (`localhost:8000`, `grpcs://host:8000`, `unix:/path`), a `ClusterSpec` or a job of one,
        channels, stubs, what resolves to addresses, or a `local_worker_pool`. A channel that has failed dials again in
        gRPC's own time, in the end up to two minutes later; an address is used as soon as the worker is there.
      default_num_clients: The number of clients of computations whose arguments do not tell.
      max_fanout: The most children of one composing executor.
      dispose_batch_size: How many values a remote executor disposes of in one call.
      stream_structs: Whether structs go to peers without extensions leaf by leaf.
      credentials: Certificates and the token for the workers, where these are addresses: channels and stubs bring their
        own.
      connect_seconds: How long to wait for the first worker.
      data_backend: Resolves `data` blocks at the server that are not functions.

    Raises:
      InvalidValueError: If an address or a number cannot be right.
      ClosedError: If the pool is closed.
    """
    check_whole_number("default_num_clients", default_num_clients, 0, MOST_CLIENTS)
    check_whole_number("max_fanout", max_fanout, 2)
    check_whole_number("dispose_batch_size", dispose_batch_size, 1)
    check_number("connect_seconds", connect_seconds, endless=True)
    stubs = make_stubs(targets, credentials)
    if not stubs:
        raise InvalidValueError("Expected at least one worker, found none; give its address, as in 'localhost:8000'")
    return RemoteExecutorFactory(
        Workers([Worker(stub) for stub in stubs], connect_seconds),
        default_num_clients,
        max_fanout=max_fanout,
        dispose_batch_size=dispose_batch_size,
        stream_structs=check_bool("stream_structs", stream_structs),
        data_backend=data_backend,
        source=targets,
    )
