"""Runs a task of a cluster in this process: one server for everything that it hosts."""

import ipaddress
import os
from collections.abc import Iterable
from typing import cast

import attrs

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import InvalidValueError
from fedstack.executors.factories import local_executor_factory
from fedstack.service.cluster.task import ClusterTask, task_of
from fedstack.service.data.consumer.reference_reader import ReferenceReader
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.config import HostConfig, unbracketed
from fedstack.service.host.host import Host
from fedstack.service.host.limits import ServerLimits, ServiceLimits
from fedstack.service.host.server_thread import OwnedServer
from fedstack.service.rpc.method_service import MethodService
from fedstack.service.rpc.server import RegistersMethods
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials, check_client_credentials
from fedstack.transport.peers.methods import Service
from fedstack.transport.wire.addresses import TargetResolver, address_of
from fedstack.transport.wire.cluster_spec import Cluster, ServerDef


def _services(services: Iterable[Service]) -> tuple[Service, ...]:
    if not isinstance(cast(object, services), Iterable):
        raise InvalidValueError(f"Expected services in a list, found {describe(services)}; write [service] for one")
    return tuple(services)


def _addresses(addresses: "str | TargetResolver | Iterable[str | TargetResolver]") -> tuple[str, ...]:
    several = isinstance(cast(object, addresses), Iterable) and not isinstance(addresses, (str, TargetResolver))
    found = tuple(map(address_of, cast("Iterable[str]", addresses if several else (addresses,))))
    for address in found:
        if not isinstance(cast(object, address), str):
            raise InvalidValueError(f"Expected data_services as addresses of dispatchers, found {describe(address)}")
    return found


@attrs.frozen
class ServerConfig:
    """The configuration of a `Server` and its services. The port is that of the cluster.

    Attributes:
      credentials: The certificate and key for TLS, and what clients have to show.
      token_file: A file of tokens, one a line; clients need one of them. It is read again when it changes.
      insecure: Whether other machines may reach the server without TLS.
      policy: The leaf computations that clients may bring: by default neither modules nor code.
      limits: The limits of the executor service.
      services: More services; they belong to one server, which closes them when it stops.
      server_limits: The limits of the server itself.
      addresses_file: A file to which the server adds its address when it listens; see `wait_for_addresses`.
      client_credentials: The credentials with which functions dial other servers, such as the owner of a variable: a
        certificate and token of their own. By default none, even if `credentials` has a certificate.
      host: The name or address of this machine to listen at, if it differs from the cluster's address, which others
        dial: for example 0.0.0.0 in a container. The port is that of the cluster.
      data_services: The dispatchers whose datasets clients' computations may refer to: addresses, or jobs of a cluster
        with one task. They and their data workers are dialled with `client_credentials`. By default none.
    """

    credentials: ServerCredentials | None = None
    token_file: str | os.PathLike[str] | None = None
    insecure: bool = False
    policy: CarrierPolicy = attrs.field(factory=CarrierPolicy)
    limits: ServiceLimits = attrs.field(factory=ServiceLimits)
    services: tuple[Service, ...] = attrs.field(default=(), converter=_services)
    server_limits: ServerLimits = attrs.field(factory=ServerLimits)
    addresses_file: str | os.PathLike[str] | None = None
    client_credentials: ClientCredentials | None = None
    host: str = attrs.field(default="", converter=unbracketed)
    data_services: tuple[str, ...] = attrs.field(default=(), converter=_addresses)

    def __attrs_post_init__(self) -> None:
        check_client_credentials(self.client_credentials)
        given = [("policy", self.policy, CarrierPolicy), ("limits", self.limits, ServiceLimits)]
        given += [("server_limits", self.server_limits, ServerLimits), ("host", self.host, str)]
        for name, value, kind in [*given, *(("services", service, Service) for service in self.services)]:
            if not isinstance(cast(object, value), kind):
                raise InvalidValueError(f"Expected {name} as {kind.__name__}, found {describe(value)}")
        if ":" in self.host and not _is_ipv6(self.host):
            raise InvalidValueError(
                f"Expected host as a name or an address without a port, found {self.host!r}; "
                "the port is that of the cluster"
            )

    def all_credentials(self) -> ServerCredentials:
        """Returns the credentials with the tokens of the file.

        Raises:
          InvalidValueError: If that cannot be read, or the credentials have tokens themselves.
        """
        return HostConfig.of(self).all_credentials()

    def executor_service(self, clients: int = 0, threads: int | None = None) -> ExecutorService:
        """Returns the executor service.

        Args:
          clients: The number of clients for requests that do not give it.
          threads: The most threads that run functions; by default there is no limit.
        """
        reads = None
        if self.data_services:
            # Without datasets, a worker starts sooner without importing the data service.

            reads = ReferenceReader(self.client_credentials, self.data_services)
        return ExecutorService(
            local_executor_factory(clients, max_concurrent_clients=threads, data_backend=reads),
            limits=self.limits,
            policy=self.policy,
            client_credentials=self.client_credentials,
            reads=None if reads is None else reads.blocks,
        )

    def method_service(self) -> MethodService:
        """Returns the service of methods, which has none yet."""
        return MethodService(limits=self.limits, client_credentials=self.client_credentials)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


class Server(RegistersMethods, OwnedServer):
    """A task of a cluster: it serves computations of other processes, methods, and further services.

        with Server({"worker": ["localhost:0"]}) as server:
            fedstack.set_sync_remote_execution_context(server.target)

    It listens at the host (or `ServerConfig.host`) and port of its task, and nowhere else. It stops at the end of a
    block, with `stop()`, and when nothing refers to it any more.

    Args:
      server_or_cluster_def: The task as a `ServerDef`, or the cluster in any form that a `ClusterSpec` takes.
      job_name: The task's job; by default that of the definition, or the only one.
      task_index: Its index in the job; by default that of the definition, or of the only task.
      protocol: The protocol; there is only "grpc".
      config: The configuration; by default without TLS, on loopback addresses only, and without code of clients.
      start: Whether to start it at once; otherwise `start()` or a block does.

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
        config = ServerConfig() if config is None else config
        if not isinstance(cast(object, config), ServerConfig):
            raise InvalidValueError(
                f"Expected config as fedstack.service.ServerConfig, found {describe(config)}; write ServerConfig(...)"
            )
        self._addresses_file = config.addresses_file
        self._task = ClusterTask(definition, config.all_credentials().uses_tls, config.host)
        RegistersMethods.__init__(self, config.method_service())
        self._executors = config.executor_service()
        services = [self._executors, self._methods, *config.services]
        OwnedServer.__init__(self, Host(services, HostConfig.of(config, self._task.listens)), start)

    @staticmethod
    def create_local_server(config: ServerConfig | None = None, start: bool = True) -> "Server":
        """Returns a server for this machine only, at any free port: the only task of the job `localhost`.

        Args:
          config: The configuration.
          start: Whether to start it at once.
        """
        return Server({"localhost": ["localhost:0"]}, config=config, start=start)

    @property
    def target(self) -> str:
        """The address to dial, with the real port: `grpc://host:port`, `grpcs://host:port` with TLS, or `unix:/path`.

        Raises:
          ClosedError: If it listens at any port that is free, and has not been started.
        """
        return self._task.target(self.server.target if self._task.listens.has_any_port else "")

    @property
    def server_def(self) -> ServerDef:
        """The task and its cluster; once the server has started, with the real port."""
        return self._task.bound_at(self.server.target) if self.server.has_started else self._task.definition

    def _has_started(self) -> None:
        if self._addresses_file is not None:
            self._task.announce(self._addresses_file, self.server.target)

    def __repr__(self) -> str:
        return f"<Server of {self._task}, {self._state}>"
