"""Runs a task of a cluster in this process: one server for everything that it hosts."""

import asyncio
import contextlib
import logging
import os
import weakref
from typing import TypeVar

from fedstack.computations.values.number_checks import check_number
from fedstack.errors import AddressError, ClosedError, InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.executors.concurrency.off_loop import off_loop
from fedstack.executors.stacks.factories import local_executor_factory
from fedstack.service.cluster.server_config import ServerConfig
from fedstack.service.cluster.task import Task, task_of
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.rpc.method_service import MethodService
from fedstack.service.rpc.registering import RegistersMethods
from fedstack.service.server.grpc_server import GrpcServer
from fedstack.service.server.listening import TcpListener, place_of
from fedstack.service.server.server_thread import ServerThread
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.peers.io_loop import io_loop, start_apart
from fedstack.transport.wire.addresses import Target
from fedstack.transport.wire.cluster_spec import Cluster, ServerDef

_S = TypeVar("_S", bound="Server")
_logger = logging.getLogger(__name__)


class Server(RegistersMethods, ClosesOnExit):
    """A task of a cluster: it serves computations of other processes, methods, and whatever else it is given.

        with Server({"worker": ["localhost:0"]}) as server:
            fedstack.set_sync_remote_execution_context(server.target)

    It listens at the host and port that the cluster has for its task, and nowhere else. It stops at the end of a block,
    with `stop()`, and when nothing refers to it any more.

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

    _started = False

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
        self._config = config = config or ServerConfig()
        credentials = config.all_credentials()
        self._task = Task(definition, credentials.uses_tls)
        listens = self._task.listens
        _check_exposure(listens, credentials, config)
        self._executors = executors = ExecutorService(
            local_executor_factory(), limits=config.limits, policy=config.policy, calls_with=config.calls_with
        )
        super().__init__(MethodService(limits=config.limits))
        self._server = server = GrpcServer(
            [executors, self._methods, *config.services],
            **place_of(listens),
            credentials=credentials,
            insecure=config.insecure,
            limits=config.server_limits,
        )
        self._thread = ServerThread(server)
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _let_go, server)
        self._finalizer.atexit = False
        if start:
            try:
                self.start()
            except BaseException:
                self.stop(0)
                raise

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

    def start(self) -> None:
        """Returns when the server can be dialled. Idempotent.

        Raises:
          AddressError: If it cannot listen at the task's address; the message says why.
          ClosedError: If it has been stopped.
        """
        if self._closed:
            raise self._closed_error()
        if self._started:
            return
        self._thread.start()
        if self._config.addresses_file is not None:
            try:
                self._task.announce(self._config.addresses_file, self._server.target)
            except AddressError:
                self.stop(0)
                raise
        self._started = True

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the server has stopped; another thread, or a block that ends, stops it.

        Args:
          timeout: How long to wait, in seconds; by default as long as it takes.

        Returns:
          Whether it has stopped.

        Raises:
          ClosedError: If it has not been started.
        """
        self._check_joinable(timeout)
        return self._thread.join(timeout)

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits as `join` does, in an event loop."""
        self._check_joinable(timeout)
        return await io_loop.run(_has_stopped(self._server, timeout))

    def stop(self, grace: float | None = None) -> None:
        """Stops the server, and returns when its port is free. Idempotent.

        In a forked child it leaves the server alone: it is the parent's.

        Args:
          grace: How long running calls have, in seconds, before they are cancelled; half a minute by default. Clients
            that only are connected hold nothing up.
        """
        if grace is not None:
            check_number("grace", grace)
        self._closed = True
        self._finalizer.detach()
        if os.getpid() == self._owner:
            self._thread.stop(grace)

    def close(self) -> None:
        """Stops the server; see `stop`."""
        self.stop()

    def _entered(self) -> None:
        self.start()

    async def __aenter__(self: _S) -> _S:
        await off_loop(self.start)
        return await super().__aenter__()

    def _check_joinable(self, timeout: float | None) -> None:
        if timeout is not None:
            check_number("timeout", timeout)
        if not (self._started or self._closed):
            raise ClosedError("Expected a server that has been started, found one that has not; call start() first")

    def __repr__(self) -> str:
        state = "stopped" if self._closed else f"at {self.target}" if self._started else "not started"
        return f"<Server of {self._task}, {state}>"


def _check_exposure(listens: Target, credentials: ServerCredentials, config: ServerConfig) -> None:
    """Checks that whoever is not known cannot run any code."""
    is_private = bool(listens.socket_path) or TcpListener(listens.host, listens.port).is_private
    if config.policy.runs_anything and not (is_private or credentials.client_root_certificates):
        raise InvalidValueError(
            f"Expected certificates of all who may run any code, found that {listens.host} lets in others; give "
            "client_root_certificates in ServerConfig.credentials, listen at a loopback address, or allow less in "
            "ServerConfig.policy (see SECURITY.md)"
        )


async def _has_stopped(server: GrpcServer, timeout: float | None) -> bool:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(server.wait(), timeout)
    return server.has_stopped


def _let_go(server: GrpcServer) -> None:
    """Stops a server that nothing refers to any more: a finalizer, which only says so to the loop."""
    io_loop.call_soon(lambda: start_apart(_stop_forgotten(server)))


async def _stop_forgotten(server: GrpcServer) -> None:
    with contextlib.suppress(ClosedError):  # it has not been started
        target = server.target
        _logger.warning("The server at %s stops, as nothing refers to it any more; keep it in a variable", target)
    await server.stop(0)
