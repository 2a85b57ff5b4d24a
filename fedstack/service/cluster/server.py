"""Runs a task of a cluster in this process: one server for everything that it hosts."""

from fedstack.executors.stacks.factories import local_executor_factory
from fedstack.service.cluster.server_config import ServerConfig, checked_config
from fedstack.service.cluster.task import Task, task_of
from fedstack.service.data.consumer.reference_reader import ReferenceReader
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.rpc.method_service import MethodService
from fedstack.service.rpc.registering import RegistersMethods
from fedstack.service.server.grpc_server import GrpcServer
from fedstack.service.server.listening import place_of
from fedstack.service.server.owned_server import OwnedServer
from fedstack.transport.wire.cluster_spec import Cluster, ServerDef


class Server(RegistersMethods, OwnedServer):
    """A task of a cluster: it serves computations of other processes, methods, and whatever else it is given.

        with Server({"worker": ["localhost:0"]}) as server:
            fedstack.set_sync_remote_execution_context(server.target)

    It listens at the host (or `ServerConfig.host`) and port of its task, and nowhere else. It stops at the end of a
    block, with `stop()`, and when nothing refers to it any more.

    Args:
      server_or_cluster_def: The task as a `ServerDef`, or the cluster: a `ClusterSpec` or whatever one is made of.
      job_name: The task's job; by default that of the definition, or the only one.
      task_index: Its index in the job; by default that of the definition, or of the only task.
      protocol: How it is dialled; there is only "grpc".
      config: How it serves; by default without TLS, on loopback addresses only, and no code of clients.
      start: Whether to start it at once, else `start()` or a block does.

    Raises:
      MembershipError: If the cluster has no such task, or it is not plain which is meant.
      AddressError: If it cannot listen at the task's address.
      InvalidValueError: If the configuration does not fit the address.
    """

    def __init__(
        self,
        server_or_cluster_def: "ServerDef | Cluster",
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ServerConfig | None = None,
        start: bool = True,
    ) -> None:
        definition = task_of(server_or_cluster_def, job_name, task_index, protocol)
        self._config = config = checked_config(config)
        credentials = config.all_credentials()
        self._task = Task(definition, credentials.uses_tls, config.host)
        reads = ReferenceReader(config.calls_with, config.data_services) if config.data_services else None
        self._executors = executors = ExecutorService(
            local_executor_factory(data_backend=reads),
            limits=config.limits,
            policy=config.policy,
            calls_with=config.calls_with,
            reads=reads,
        )
        RegistersMethods.__init__(self, MethodService(limits=config.limits, calls_with=config.calls_with))
        server = GrpcServer(
            [executors, self._methods, *config.services],
            **place_of(self._task.listens),
            credentials=credentials,
            insecure=config.insecure,
            limits=config.server_limits,
        )
        OwnedServer.__init__(self, server, start)

    @staticmethod
    def create_local_server(config: ServerConfig | None = None, start: bool = True) -> "Server":
        """Returns a server for this machine alone, at any port that is free: the only task of the job `localhost`.

        Args:
          config: How it serves.
          start: Whether to start it at once.
        """
        return Server({"localhost": ["localhost:0"]}, config=config, start=start)

    @property
    def target(self) -> str:
        """The address to dial, with the real port: `grpc://host:port`, `grpcs://host:port` with TLS, or `unix:/path`.

        Raises:
          ClosedError: If it listens at any port that is free, and has not been started.
        """
        return self._task.target(self._server.target if self._task.listens.has_any_port else "")

    @property
    def server_def(self) -> ServerDef:
        """The task and its cluster; once the server has been started, with the real port."""
        return self._task.bound_at(self._server.target) if self._started else self._task.definition

    def _has_started(self) -> None:
        if self._config.addresses_file is not None:
            self._task.announce(self._config.addresses_file, self._server.target)

    def __repr__(self) -> str:
        return f"<Server of {self._task}, {self._state}>"
