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
        raise InvalidValueError(f"Expected worker_addresses as a list of addresses, found {given!r}")
    return None if given is None else tuple(given)


@attrs.frozen
class DispatcherConfig:
    """The configuration of a `DispatchServer`. An attribute that is `None` has its default.

    Attributes:
      port: The port; 0 for any free port.
      protocol: `"grpc"`, or `"grpc+local"` for consumers and workers in this process only.
      work_dir: The folder of the journal; it is created if it does not exist.
      fault_tolerant_mode: Whether to keep the dispatcher's state in the journal, so that passes continue after a
        restart. Requires `work_dir`.
      worker_addresses: The workers that may attend, as `host`, `host:port` or `host:%port%`; `None` for any.
      job_gc_check_interval_ms: The interval between checks for abandoned passes; by default a minute. -1 for never.
      job_gc_timeout_ms: How long a pass without consumers is kept; by default 5 minutes. A pass that may be resumed is
        kept longer. -1 for as long as there is room.
      worker_timeout_ms: The silence after which a worker is lost; by default 5 seconds.
      consumer_timeout_ms: The silence after which a consumer is lost; by default 10 seconds.
      resume_timeout_ms: How long a pass without consumers is kept if it may be resumed; by default a day. -1 as above.
      host: A name or an address of this machine. Any address but a loopback address needs TLS.
      credentials: The certificate and key for TLS, and the requirements on clients.
      token_file: A file with one token per line; a client must present one of them.
      worker_token_file: A file with one token per line; a data worker must present one of them to attend. If clients
        must authenticate, workers attend only with such a token or at one of the `worker_addresses`.
      insecure: Whether other machines may connect without TLS.
      limits: The limits on what clients may use of the dispatcher.
      server_limits: The limits on what clients may use of the server itself.

    Raises:
      InvalidValueError: If a number is out of range, or the journal has no folder.
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
                "Expected a work_dir for fault_tolerant_mode, found none; give a folder for the journal"
            )

    def service(self) -> DispatchService:
        """Returns the dispatcher for `ServerConfig.services`; the server of a task decides where and how it serves.

        Raises:
          JournalError: If another dispatcher uses the journal, or it is damaged.
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
        """Returns the folder of the journal; `None` if it is kept in memory."""
        if self.work_dir is None:
            return None
        if not self.fault_tolerant_mode:
            _logger.warning("Without fault_tolerant_mode the dispatcher writes nothing to its work_dir")
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
    """The dispatcher of a data service: it registers datasets and divides the work on them among data workers.

        dispatcher = DispatchServer(DispatcherConfig(work_dir="/srv/dispatcher", fault_tolerant_mode=True))
        worker = WorkerServer(WorkerConfig(dispatcher_address=dispatcher.target))

    It stops at the end of a `with` block, on `stop()`, or when nothing refers to it any more.

    Args:
      config: The configuration.
      start: Whether to start at once; otherwise `start()` or a `with` block starts it.
      port, protocol: Replacements for a configuration; see `DispatcherConfig`.

    Raises:
      InvalidValueError: If the configuration does not fit the address.
      AddressError: If it cannot listen on its port; the message says why.
      JournalError: If another dispatcher uses the journal, or it is damaged.
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
            raise InvalidValueError(f"Expected a DispatcherConfig, found {config!r}; a port goes into port=")
        elif port is not None or protocol is not None:
            raise InvalidValueError("Expected a configuration or its parts, found both; give one of them")
        service = config.service()
        try:
            server = Host([service], HostConfig.of(config))
        except BaseException:
            io_loop.run_sync(service.close())
            raise
        super().__init__(server, start)

    @property
    def target(self) -> str:
        """The address to dial, with the real port: `grpc://host:port`, or `grpcs://host:port` with TLS.

        Raises:
          ClosedError: If it has not been started.
        """
        return self.server.url
