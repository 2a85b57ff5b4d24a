"""Runs a data worker as a server in this process."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import attrs

from fedstack.computations.leaves.carrier_policy import CarrierPolicy, checked_carrier_policy
from fedstack.data.client_states.store_folders import folders_of
from fedstack.errors import InvalidValueError
from fedstack.foundations.number_checks import check_number
from fedstack.service.data.worker.data_worker_service import DataWorkerService
from fedstack.service.host.config import HostConfig, tokens_in
from fedstack.service.host.host import Host
from fedstack.service.host.limits import DataWorkerLimits, ServerLimits, ServiceLimits
from fedstack.service.host.listening import GRPC, connect
from fedstack.service.host.server_thread import OwnedServer
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials, check_client_credentials
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.addresses import address_of

_EVERYWHERE = ("0.0.0.0", "::")


def _roots(roots: "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]") -> tuple[str, ...]:
    given = [roots] if isinstance(roots, (str, os.PathLike)) else list(roots)
    return tuple(os.fspath(root) for root in given)


@attrs.frozen
class WorkerConfig:
    """The configuration of a data worker.

    Attributes:
      dispatcher_address: The address of the dispatcher, or a cluster job with a single task.
      worker_address: The address at which clients reach the worker, with `%port%` for its port, as in
        `"data-1:%port%"`; by default the address on which the worker listens.
      port: The port; 0 for any free port.
      protocol: `"grpc"`, or `"grpc+local"` to serve clients in this process only, without a server.
      heartbeat_interval_ms: The interval between messages to the dispatcher; by default the dispatcher sets the
        interval.
      dispatcher_timeout_ms: The maximum time to wait for the dispatcher at startup. By default the worker does not
        wait, and registers when the dispatcher becomes available.
      host: A name or an address of this machine. TLS is required unless `host` is a loopback address.
      data_roots: The folders below which the worker may read files of datasets; by default none.
      client_states: Folders with clients' states, such as those of runs, which this machine shares with the programs
        that own them. The worker reads and writes the states for executors that use the data service. By default there
        are none.
      policy: The policy that determines which functions definitions of datasets may contain. By default functions must
        not refer to modules or contain code.
      credentials: The certificate and key for TLS, and the server's requirements for clients.
      token_file: A file with one token per line. A client must present one of the tokens.
      worker_token_file: A file with the token that authorizes this worker to register with the dispatcher.
      insecure: Whether other machines may connect without TLS.
      client_credentials: The worker's own certificate and token, for its calls to the dispatcher and for calls that
        functions make to other servers.
      limits: The resource limits for clients of the worker.
      service_limits: The limits on computations and values.
      server_limits: The resource limits for clients of the server itself.

    Raises:
      InvalidValueError: If `dispatcher_address` is missing, a number is out of range, or `worker_address` is missing
        for a worker that listens on all addresses.
    """

    dispatcher_address: str = attrs.field(converter=address_of)
    worker_address: str | None = None
    port: int = 0
    protocol: str = GRPC
    heartbeat_interval_ms: float | None = None
    dispatcher_timeout_ms: float | None = None
    host: str = attrs.field(default="127.0.0.1", kw_only=True)
    data_roots: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=_roots)
    client_states: tuple[Path, ...] = attrs.field(default=(), kw_only=True, converter=folders_of)
    policy: CarrierPolicy = attrs.field(factory=CarrierPolicy, kw_only=True, converter=checked_carrier_policy)
    credentials: ServerCredentials | None = attrs.field(default=None, kw_only=True)
    token_file: str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    worker_token_file: str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    insecure: bool = attrs.field(default=False, kw_only=True)
    client_credentials: ClientCredentials | None = attrs.field(default=None, kw_only=True)
    limits: DataWorkerLimits = attrs.field(factory=DataWorkerLimits, kw_only=True)
    service_limits: ServiceLimits = attrs.field(factory=ServiceLimits, kw_only=True)
    server_limits: ServerLimits = attrs.field(factory=ServerLimits, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_client_credentials(self.client_credentials)
        if not isinstance(cast(object, self.dispatcher_address), str) or not self.dispatcher_address:
            raise InvalidValueError(
                f"Expected the address of a dispatcher, found {self.dispatcher_address!r}; pass dispatcher_address, "
                "such as the target of a DispatchServer"
            )
        for name in ("heartbeat_interval_ms", "dispatcher_timeout_ms"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        if self.host in _EVERYWHERE and self.worker_address is None:
            raise InvalidValueError(
                f"Expected a worker_address for a worker that listens on {self.host}, found None; pass the address "
                'at which clients reach the worker, as in "data-1.example:%port%"'
            )

    def service(self) -> DataWorkerService:
        """Returns a data worker for `ServerConfig.services`.

        The server that runs the data worker determines the address and the credentials.
        """
        interval = self.heartbeat_interval_ms
        return DataWorkerService(
            DispatcherStub(connect(self.dispatcher_address, self.client_credentials)),
            worker_address=self.worker_address,
            attends_seconds=None if interval is None else interval / 1000,
            worker_tokens=tokens_in(self.worker_token_file),
            limits=self.limits,
            policy=self.policy,
            data_roots=self.data_roots,
            client_states=self.client_states,
            service_limits=self.service_limits,
            client_credentials=self.client_credentials,
        )


class WorkerServer(OwnedServer):
    """A server for a data worker, which reads datasets for consumers and registers with a dispatcher.

        worker = WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target))

    The server accepts requests immediately and registers in the background. It registers again after the dispatcher was
    unavailable or has been restarted. The server stops at the end of a `with` block, when `stop()` is called, or when
    it is garbage-collected.

    Args:
      config: The configuration.
      start: Whether to start the server immediately; otherwise `start()` or a `with` block starts it.
      port, dispatcher_address, worker_address, protocol: Alternatives to `config` that set only these attributes; see
        `WorkerConfig`.

    Raises:
      InvalidValueError: If the dispatcher's address is missing, or one of the `data_roots` is not a folder.
      AddressError: If the server cannot listen on its port.
      WorkerUnavailableError: If the dispatcher does not answer within `dispatcher_timeout_ms`.
    """

    def __init__(
        self,
        config: WorkerConfig | None = None,
        start: bool = True,
        *,
        port: int = 0,
        dispatcher_address: str = "",
        worker_address: str | None = None,
        protocol: str | None = None,
    ) -> None:
        if config is None:
            config = WorkerConfig(dispatcher_address, worker_address, port, protocol or GRPC)
        elif port or dispatcher_address or worker_address or protocol:
            raise InvalidValueError(
                "Expected either config or individual attributes such as port, found both; set the attributes in the "
                "config"
            )
        self._config = config
        self._service = config.service()
        super().__init__(Host([self._service], HostConfig.of(config)), start)

    @property
    def target(self) -> str:
        """The address for clients, with the actual port: `grpc://host:port`, or `grpcs://host:port` with TLS.

        Raises:
          ClosedError: If the server has not been started.
        """
        return self.server.url

    def _has_started(self) -> None:
        if self._config.dispatcher_timeout_ms is not None:
            io_loop.run_sync(self._service.attending.wait(self._config.dispatcher_timeout_ms / 1000))
