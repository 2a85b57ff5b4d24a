"""Runs a dispatcher of the data service in this process."""

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import attrs

from fedstack.errors import InvalidValueError
from fedstack.foundations.number_checks import MOST_BYTES, whole_number_validator
from fedstack.service.data.dispatcher.dispatch_service import DispatchService, Times
from fedstack.service.data.dispatcher.journal import Journal
from fedstack.service.host.config import MOST_PORT, HostConfig, tokens_in
from fedstack.service.host.host import Host
from fedstack.service.host.limits import DispatcherLimits, ServerLimits
from fedstack.service.host.listening import GRPC
from fedstack.service.host.server_thread import OwnedServer
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.peers.io_loop import io_loop

_logger = logging.getLogger(__name__)
_count = attrs.validators.optional(whole_number_validator(1, MOST_BYTES))
# Means "never", as in TensorFlow's data service.
_NEVER = -1


def _count_or_never(config: object, attribute: "attrs.Attribute[int | None]", value: int | None) -> None:
    if value != _NEVER:
        _count(config, attribute, value)


def _addresses(given: Sequence[str] | None) -> tuple[str, ...] | None:
    found: list[object] | None = None if given is None or isinstance(given, str) else list(given)
    if given is not None and (found is None or not all(isinstance(one, str) and one for one in found)):
        raise InvalidValueError(f"Expected worker_addresses to be a list of non-empty addresses, found {given!r}")
    return None if given is None else tuple(given)


@attrs.frozen
class DispatcherConfig:
    """The configuration of a `DispatchServer`. An attribute that is `None` has its default value.

    Attributes:
      port: The port; 0 for any free port.
      protocol: `"grpc"`, or `"grpc+local"` to serve consumers and workers in this process only.
      work_dir: The folder of the journal, which is created if it does not exist.
      fault_tolerant_mode: Whether to keep the dispatcher's state in the journal, so that passes continue after a
        restart. Requires `work_dir`.
      worker_addresses: The addresses of the workers that may register, as `host`, `host:port` or `host:%port%`; `None`
        for any address.
      job_gc_check_interval_ms: The interval between checks for abandoned passes; by default one minute. -1 disables the
        checks.
      job_gc_timeout_ms: The time for which a pass without consumers is kept; by default 5 minutes. A pass that may be
        resumed is kept for `resume_timeout_ms`. -1 keeps passes until the dispatcher reaches a limit.
      worker_timeout_ms: The time without a message after which a worker is considered lost; by default 5 seconds.
      consumer_timeout_ms: The time without a message after which a consumer is considered lost; by default 10 seconds.
      resume_timeout_ms: The time for which a pass without consumers is kept if it may be resumed; by default one day.
        -1 keeps such passes until the dispatcher reaches a limit.
      host: A name or an address of this machine. TLS is required unless `host` is a loopback address.
      credentials: The certificate and key for TLS, and the server's requirements for clients.
      token_file: A file with one token per line. A client must present one of the tokens.
      worker_token_file: A file with one token per line. A data worker must present one of the tokens to register. If
        clients must authenticate, workers can register only with one of these tokens or at one of `worker_addresses`.
      insecure: Whether other machines may connect without TLS.
      limits: The resource limits for clients of the dispatcher.
      server_limits: The resource limits for clients of the server itself.

    Raises:
      InvalidValueError: If a number is out of range, or `fault_tolerant_mode` is set without `work_dir`.
    """

    port: int = attrs.field(default=0, validator=whole_number_validator(0, MOST_PORT))
    protocol: str = GRPC
    work_dir: str | os.PathLike[str] | None = None
    fault_tolerant_mode: bool = False
    worker_addresses: tuple[str, ...] | None = attrs.field(default=None, converter=_addresses)
    job_gc_check_interval_ms: int | None = attrs.field(default=None, validator=_count_or_never)
    job_gc_timeout_ms: int | None = attrs.field(default=None, validator=_count_or_never)
    worker_timeout_ms: int | None = attrs.field(default=None, validator=_count)
    consumer_timeout_ms: int | None = attrs.field(default=None, validator=_count, kw_only=True)
    resume_timeout_ms: int | None = attrs.field(default=None, validator=_count_or_never, kw_only=True)
    host: str = attrs.field(default="127.0.0.1", kw_only=True)
    credentials: ServerCredentials | None = attrs.field(default=None, kw_only=True)
    token_file: str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    worker_token_file: str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    insecure: bool = attrs.field(default=False, kw_only=True)
    limits: DispatcherLimits = attrs.field(factory=DispatcherLimits, kw_only=True)
    server_limits: ServerLimits = attrs.field(factory=ServerLimits, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.fault_tolerant_mode and self.work_dir is None:
            raise InvalidValueError(
                "Expected a work_dir for fault_tolerant_mode, found None; pass a folder for the journal as work_dir"
            )

    def service(self) -> DispatchService:
        """Returns a dispatcher for `ServerConfig.services`.

        The server that runs the dispatcher determines the address and the credentials.

        Raises:
          JournalError: If another dispatcher uses the journal, or the journal is damaged.
        """
        journal = Journal(self._folder())
        try:
            return DispatchService(
                journal,
                worker_addresses=self.worker_addresses,
                worker_tokens=tokens_in(self.worker_token_file),
                times=self.times(),
                limits=self.limits,
            )
        except BaseException:
            journal.close()
            raise

    def _folder(self) -> Path | None:
        """Returns the folder of the journal, or `None` if the journal is kept in memory."""
        if self.work_dir is None:
            return None
        if not self.fault_tolerant_mode:
            _logger.warning("The dispatcher does not use its work_dir, because fault_tolerant_mode is not set")
            return None
        return Path(self.work_dir)

    def times(self) -> Times:
        """Returns the dispatcher's timeouts and intervals."""
        given = {
            "worker": self.worker_timeout_ms,
            "consumer": self.consumer_timeout_ms,
            "check": self.job_gc_check_interval_ms,
            "idle": self.job_gc_timeout_ms,
            "resume": self.resume_timeout_ms,
        }
        seconds = {name: math.inf if ms == _NEVER else ms / 1000 for name, ms in given.items() if ms is not None}
        return Times(**seconds)


class DispatchServer(OwnedServer):
    """Runs the dispatcher of a data service, which registers datasets and assigns their splits to data workers.

        dispatcher = DispatchServer(DispatcherConfig(work_dir="/srv/dispatcher", fault_tolerant_mode=True))
        worker = WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target))

    The server stops at the end of a `with` block, when `stop()` is called, or when it is garbage-collected.

    Args:
      config: The configuration.
      start: Whether to start the server immediately; otherwise `start()` or a `with` block starts it.
      port, protocol: Alternatives to `config` that set only these attributes; see `DispatcherConfig`.

    Raises:
      InvalidValueError: If the configuration does not fit the address.
      AddressError: If the server cannot listen on its port; the message contains the reason.
      JournalError: If another dispatcher uses the journal, or the journal is damaged.
    """

    def __init__(
        self,
        config: DispatcherConfig | None = None,
        start: bool = True,
        *,
        port: int | None = None,
        protocol: str | None = None,
    ) -> None:
        if config is None:
            config = DispatcherConfig(port or 0, protocol or GRPC)
        elif not isinstance(cast(object, config), DispatcherConfig):
            raise InvalidValueError(f"Expected a DispatcherConfig, found {config!r}; pass a port as port=")
        elif port is not None or protocol is not None:
            raise InvalidValueError(
                "Expected either config, or port and protocol, found both; set port and protocol in the config"
            )
        service = config.service()
        try:
            server = Host([service], HostConfig.of(config))
        except BaseException:
            io_loop.run_sync(service.close())
            raise
        super().__init__(server, start)

    @property
    def target(self) -> str:
        """The address for clients, with the actual port: `grpc://host:port`, or `grpcs://host:port` with TLS.

        Raises:
          ClosedError: If the server has not been started.
        """
        return self.server.url
