"""Runs data workers as servers of their own."""

import os
from collections.abc import Iterable
from typing import cast

import attrs

from fedstack.computations.leaves.carrier_policy import CarrierPolicy, checked_carrier_policy
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
      dispatcher_address: The address of its dispatcher; or the job of a cluster with one task.
      worker_address: The address at which clients reach the worker, with `%port%` for its port, as in
        `"data-1:%port%"`; by default the address on which it listens.
      port: The port; 0 for any free port.
      protocol: `"grpc"`, or `"grpc+local"` for this process only, without a server.
      heartbeat_interval_ms: The interval of its messages to the dispatcher; by default the dispatcher sets it.
      dispatcher_timeout_ms: How long to wait for the dispatcher at the start; by default the worker does not wait, and
        attends when the dispatcher is available.
      host: A name or an address of this machine. Any address but a loopback address needs TLS.
      data_roots: The folders below which it may read files of datasets; by default none.
      policy: Which functions the definitions of datasets may contain: by default neither modules nor code.
      credentials: The certificate and key for TLS, and the requirements on clients.
      token_file: A file with one token per line; a client must present one of them.
      worker_token_file: A file with the token that authorizes this worker at the dispatcher.
      insecure: Whether other machines may connect without TLS.
      client_credentials: The worker's own certificate and token, for its calls to the dispatcher and for the calls of
        functions to other servers.
      limits: The limits on what clients may use of the worker.
      service_limits: The limits on computations and values.
      server_limits: The limits on what clients may use of the server itself.
    """

    dispatcher_address: str = attrs.field(converter=address_of)
    worker_address: str | None = None
    port: int = 0
    protocol: str = GRPC
    heartbeat_interval_ms: float | None = None
    dispatcher_timeout_ms: float | None = None
    host: str = attrs.field(default="127.0.0.1", kw_only=True)
    data_roots: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=_roots)
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
                f"Expected the address of a dispatcher, found {self.dispatcher_address!r}; give dispatcher_address, "
                "such as a DispatchServer's target"
            )
        for name in ("heartbeat_interval_ms", "dispatcher_timeout_ms"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        if self.host in _EVERYWHERE and self.worker_address is None:
            raise InvalidValueError(
                f"Expected a worker_address for a worker that listens at {self.host}, found none; give the address "
                'at which clients reach it, as in "data-1.example:%port%"'
            )

    def service(self) -> DataWorkerService:
        """Returns the worker for `ServerConfig.services`; the server of a task decides where and how it serves."""
        interval = self.heartbeat_interval_ms
        return DataWorkerService(
            DispatcherStub(connect(self.dispatcher_address, self.client_credentials)),
            worker_address=self.worker_address,
            attends_seconds=None if interval is None else interval / 1000,
            worker_tokens=tokens_in(self.worker_token_file),
            limits=self.limits,
            policy=self.policy,
            data_roots=self.data_roots,
            service_limits=self.service_limits,
            client_credentials=self.client_credentials,
        )


class WorkerServer(OwnedServer):
    """A data worker: it reads datasets for consumers, and attends at a dispatcher.

        worker = WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target))

    It serves at once, and attends in the background; it attends again after the dispatcher was unavailable or has been
    restarted. It stops at the end of a `with` block, on `stop()`, or when nothing refers to it any more.

    Args:
      config: The configuration.
      start: Whether to start at once; otherwise `start()` or a `with` block starts it.
      port, dispatcher_address, worker_address, protocol: Replacements for a configuration; see `WorkerConfig`.

    Raises:
      InvalidValueError: If the dispatcher's address is missing, or one of the `data_roots` is not a folder.
      AddressError: If it cannot listen on its port.
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
            raise InvalidValueError("Expected a configuration or its parts, found both; give one of them")
        self._config = config
        self._service = config.service()
        super().__init__(Host([self._service], HostConfig.of(config)), start)

    @property
    def target(self) -> str:
        """The address to dial, with the real port: `grpc://host:port`, or `grpcs://host:port` with TLS.

        Raises:
          ClosedError: If it has not been started.
        """
        return self.server.url

    def _has_started(self) -> None:
        if self._config.dispatcher_timeout_ms is not None:
            io_loop.run_sync(self._service.attending.wait(self._config.dispatcher_timeout_ms / 1000))
