"""The server that runs a task of a cluster in this process, and provides all of the task's services."""

import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import attrs

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.values.tensor_values import describe
from fedstack.data.client_states.store_folders import ClientStateFolders, folders_of
from fedstack.errors import InvalidValueError
from fedstack.executors.factories import local_executor_factory
from fedstack.foundations.public_names import refuses_others
from fedstack.service.cluster.task import ClusterTask, task_of
from fedstack.service.data.consumer.reference_reader import ReferenceReader
from fedstack.service.data.consumer.service_states import ServiceStates
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
        raise InvalidValueError(
            f"Expected a list of services, found {describe(services)}; write [service] for a single service"
        )
    return tuple(services)


def _addresses(addresses: "str | TargetResolver | Iterable[str | TargetResolver]") -> tuple[str, ...]:
    several = isinstance(cast(object, addresses), Iterable) and not isinstance(addresses, (str, TargetResolver))
    found = tuple(map(address_of, cast("Iterable[str]", addresses if several else (addresses,))))
    for address in found:
        if not isinstance(cast(object, address), str):
            raise InvalidValueError(
                f"Expected data_services to contain addresses of dispatchers, found {describe(address)}"
            )
    return found


@refuses_others
@attrs.frozen
class ServerConfig:
    """The configuration of a `Server` and its services. The cluster definition determines the port.

    Attributes:
      credentials: The certificate and key for TLS, and the credentials that clients have to present.
      token_file: A file of tokens, one per line; clients must send one of them. The server rereads the file when it
        changes.
      insecure: Whether other machines may reach the server without TLS.
      policy: The leaf computations that clients may send; by default neither references to modules nor code.
      limits: The limits of the executor service.
      services: Additional services. Each belongs to one server, which closes the service when the server stops.
      server_limits: The limits of the server itself.
      addresses_file: A file to which the server appends its address when it starts; see `wait_for_addresses`.
      client_credentials: The certificate and token with which functions dial other servers, such as the owner of a
        variable. By default there are none, even if `credentials` has a certificate.
      host: The name or address of this machine to listen on, if it differs from the address in the cluster definition,
        which other tasks dial. For example, use 0.0.0.0 in a container.
      data_services: Addresses of dispatchers, or jobs of a cluster with one task each. Clients' computations may refer
        to the datasets of these dispatchers, and to the clients' states that their data workers have. The server dials
        the dispatchers and their data workers with `client_credentials`. By default there are none.
      client_states: Folders with clients' states, such as those of runs, which this machine shares with the programs
        that own them. The server reads and writes the states there, so that they do not travel with the clients. By
        default there are none.
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
    client_states: tuple[Path, ...] = attrs.field(default=(), converter=folders_of)

    def __attrs_post_init__(self) -> None:
        check_client_credentials(self.client_credentials)
        given = [("policy", self.policy, CarrierPolicy), ("limits", self.limits, ServiceLimits)]
        given += [("server_limits", self.server_limits, ServerLimits), ("host", self.host, str)]
        for name, value, kind in [*given, *(("services", service, Service) for service in self.services)]:
            if not isinstance(cast(object, value), kind):
                raise InvalidValueError(f"Expected {name} of type {kind.__name__}, found {describe(value)}")
        if ":" in self.host and not _is_ipv6(self.host):
            raise InvalidValueError(
                f"Expected host to be a name or an address without a port, found {self.host!r}; specify the port in "
                "the cluster definition"
            )

    def all_credentials(self) -> ServerCredentials:
        """Returns the credentials, including the tokens in `token_file`.

        Raises:
          InvalidValueError: If the file cannot be read, or if both `credentials` and the file contain tokens.
        """
        return HostConfig.of(self).all_credentials()

    def executor_service(self, clients: int = 0, threads: int | None = None) -> ExecutorService:
        """Creates the executor service.

        Args:
          clients: The number of clients for requests that do not specify a number.
          threads: The maximum number of threads that run functions; by default there is no limit.
        """
        reads, stores = None, ClientStateFolders(self.client_states) if self.client_states else None
        if self.data_services:
            reads = ReferenceReader(self.client_credentials, self.data_services)
            stores = ServiceStates(reads, self.data_services, stores or ClientStateFolders(()))
        return ExecutorService(
            local_executor_factory(clients, max_concurrent_clients=threads, data_backend=reads),
            limits=self.limits,
            policy=self.policy,
            client_credentials=self.client_credentials,
            reads=None if reads is None else reads.blocks,
            stores=stores,
        )

    def method_service(self) -> MethodService:
        """Creates the service for registered methods, which has no methods yet."""
        return MethodService(limits=self.limits, client_credentials=self.client_credentials)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


class Server(RegistersMethods, OwnedServer):
    """Serves a task of a cluster: computations that other processes send, registered methods, and additional services.

        with Server({"worker": ["localhost:0"]}) as server:
            fedstack.set_sync_remote_execution_context(server.target)

    The server listens only on the host (or `ServerConfig.host`) and the port of its task. It stops at the end of a
    `with` block, when `stop()` is called, and when it is garbage-collected.

    Args:
      server_or_cluster_def: The task as a `ServerDef`, or the cluster in any form that `ClusterSpec` accepts.
      job_name: The job of the task; by default the job in the definition, or the cluster's only job.
      task_index: The index of the task in the job; by default the index in the definition, or that of the only task.
      protocol: The protocol; only "grpc" is supported.
      config: The configuration; by default without TLS, for loopback addresses only, and without code from clients.
      start: Whether to start the server immediately. Otherwise, call `start()` or use a `with` block.

    Raises:
      MembershipError: If the cluster has no such task, or if several tasks match.
      AddressError: If the server cannot listen on the task's address.
      InvalidValueError: If the configuration does not match the address.
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
                f"Expected config of type fedstack.service.ServerConfig, found {describe(config)}; "
                "pass ServerConfig(...)"
            )
        self._addresses_file = config.addresses_file
        self._task = ClusterTask(definition, config.all_credentials().uses_tls, config.host)
        RegistersMethods.__init__(self, config.method_service())
        self._executors = config.executor_service()
        services = [self._executors, self._methods, *config.services]
        OwnedServer.__init__(self, Host(services, HostConfig.of(config, self._task.listens)), start)

    @staticmethod
    def create_local_server(config: ServerConfig | None = None, start: bool = True) -> "Server":
        """Creates a server for this machine only, on any free port. It is the only task of the job `localhost`.

        Args:
          config: The configuration of the server.
          start: Whether to start the server immediately.
        """
        return Server({"localhost": ["localhost:0"]}, config=config, start=start)

    @property
    def target(self) -> str:
        """The address to dial, with the actual port: `grpc://host:port`, `grpcs://host:port` with TLS, or `unix:/path`.

        Raises:
          ClosedError: If the task listens on any free port and the server has not been started.
        """
        return self._task.target(self.server.target if self._task.listens.has_any_port else "")

    @property
    def server_def(self) -> ServerDef:
        """The definition of the task and its cluster. After the start of the server, it contains the actual port."""
        return self._task.bound_at(self.server.target) if self.server.has_started else self._task.definition

    def _has_started(self) -> None:
        if self._addresses_file is not None:
            self._task.announce(self._addresses_file, self.server.target)

    def __repr__(self) -> str:
        return f"<Server of {self._task}, {self._state}>"
