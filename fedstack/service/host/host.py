"""The class behind all fedstack servers. It serves any services over gRPC or inside this process."""

import asyncio
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from fedstack.errors import AddressError, ClosedError, FedstackError, InvalidValueError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted
from fedstack.service.host.calls.call_router import CallRouter
from fedstack.service.host.calls.call_table import NOBODY, CallCounts, caller_at, caller_with
from fedstack.service.host.config import HostConfig, check_exposure
from fedstack.service.host.doors.grpc_door import GrpcDoor
from fedstack.service.host.doors.stream_door import StreamDoor
from fedstack.service.host.limits import ServerLimits, check_descriptors, most_connections
from fedstack.service.host.listening import LOCAL, check_free, dialled, let_go_of_sockets, servers_here
from fedstack.service.host.standard_services import HealthService, ReflectionService
from fedstack.service.host.status import StallMeter, StatusService
from fedstack.transport.grpc.channels import ANY_COMPRESSION, COMPRESSION, SERVER_OPTIONS
from fedstack.transport.grpc.credential_files import token_matches
from fedstack.transport.grpc.credentials import ServerCredentials, server_credentials
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.peers.methods import ServerFacts, Service

_logger = logging.getLogger(__name__)

# The time limit in seconds for cancelled calls to end.
_LAST_SECONDS = 5.0
_SPARE_CALLS = 1000
_MOST_OPTION = (1 << 31) - 1


class Host:
    """A server for any services. Listens, serves, drains and stops.

    All fedstack servers are built on this class: `GrpcServer` for programs with an event loop, `ServerThread` for other
    programs, and the servers with particular services (`Server`, `rpc.Server`, `DispatchServer`, `WorkerServer`,
    `fedstack serve`). Besides its services, a host serves health, status and reflection. With the protocol `grpc+local`
    it has no socket: connections within this process call the methods directly, without limits.

    All coroutines of a host run on the event loop on which `start()` was called. In a process that also dials other
    servers, this is the transport's loop (`io_loop`).

    Args:
      services: The services to host. The host closes them when it stops.
      config: The configuration; by default the server listens on any free port of the loopback interface.

    Raises:
      InvalidValueError: If other machines could reach the server without TLS and `insecure` is not set, or if the
        credentials cannot be read.
    """

    def __init__(self, services: Sequence[Service], config: HostConfig | None = None) -> None:
        self._config = config = config or HostConfig()
        self._services = tuple(services)
        self._listens = config.listens
        self._credentials = config.all_credentials()
        self._tokens = self._credentials.renewed_tokens()
        self._is_local = config.protocol == LOCAL
        self._has_local_callers = self._listens.is_local
        if not (self._is_local or self._listens.is_local):
            runs_code = any(service.runs_code for service in services)
            check_exposure(config.host, self._credentials, insecure=config.insecure, runs_code=runs_code)
        self._facts = ServerFacts(
            asks_for_token=bool(self._credentials.tokens),
            asks_for_certificate=self._credentials.client_root_certificates is not None,
            is_local=self._is_local or self._listens.is_local,
        )
        self._meter = StallMeter()
        self.call_counts = CallCounts()
        status = StatusService(
            services,
            self._facts,
            self.call_counts,
            self._meter.counts,
            config.server_limits,
            lambda: (self._streams.connections, self._streams.target),
        )
        served = [*services, status]
        self._health = HealthService([name for service in served for name in service.methods])
        self._router = CallRouter(
            served,
            is_allowed=self._is_allowed,
            limits=config.server_limits,
            caller=self._caller,
            background=[self._health, *_reflection_of([*served, self._health], wanted=config.reflection)],
            public=[self._health],  # so that supervisors need no token
            counts=self.call_counts,
        )
        self._streams = StreamDoor(self._router, self._credentials, config.server_limits)
        self._door = GrpcDoor(self._router, served, self._streams.open_stream if config.streams else None)
        for service in services:
            service.attach(self._facts)
        self._server: grpc.aio.Server | None = None
        self._ending: tuple[asyncio.Task[None], asyncio.Task[None]] | None = None
        self._stopped = asyncio.Event()
        self._grace_seconds = 0.0
        renew_after_fork(self)

    def renew(self) -> None:
        """Releases the server's sockets in a forked child. The parent continues to serve at the address."""
        if self._server is not None and not self._stopped.is_set():
            let_go_of_sockets(self._facts.target)
            if self._streams.target:
                let_go_of_sockets(self._streams.target)

    @property
    def target(self) -> str:
        """The address to dial from this machine, with the actual port.

        Raises:
          ClosedError: If the server has not been started.
        """
        if not self.has_started:
            raise ClosedError("The server has not been started; call start() first")
        return self._facts.target

    @property
    def url(self) -> str:
        """The target with its scheme: `grpc://host:port`, or `grpcs://host:port` with TLS.

        Raises:
          ClosedError: If the server has not been started.
        """
        if self._is_local or self._listens.socket_path:
            return self.target
        return f"grpc{'s' * self._credentials.uses_tls}://{self.target}"

    @property
    def has_started(self) -> bool:
        """Whether the server was started. This remains true after the server has stopped."""
        return bool(self._facts.target)

    @property
    def running_calls(self) -> int:
        """The number of calls that run now, for which `stop` would wait. May be read on any thread."""
        return self._router.running

    @property
    def has_stopped(self) -> bool:
        """Whether the server has stopped."""
        return self._stopped.is_set()

    async def start(self) -> None:
        """Starts the server, and returns when clients can dial it. Idempotent.

        Raises:
          AddressError: If the server cannot listen on its address.
          InvalidValueError: If the server's certificates are invalid.
          ResourceLimitError: If this process may open too few files.
          ClosedError: If the server was stopped, or this process was forked from a process that uses gRPC.
        """
        if self._ending is not None:
            raise ClosedError("The server has been stopped; create a new server")
        if self.has_started:
            return
        if self._is_local:
            self._facts.target = servers_here.add(self._services, self._config.port)
        else:
            await self._listen()
        for service in self._services:
            service.started()

    async def _listen(self) -> None:
        check_descriptors()
        fork_guard.begin()
        check_free(self._listens)
        server = grpc.aio.server(handlers=[self._door], options=self._options())
        try:
            port = self._bind(server)
            if self._config.streams:
                self._streams.listen(self._listens, self._config.stream_port)
        except FedstackError:
            # gRPC frees a server's resources when the server stops, and only a started server can be stopped.
            await server.start()
            await server.stop(None)
            raise
        self._server = server
        self._facts.target = dialled(self._listens, port)
        await server.start()
        self._meter.start()
        _logger.info("Listening on %s", self._facts.target)

    async def wait(self) -> None:
        """Waits until the server has stopped."""
        await self._stopped.wait()

    async def stop(self, grace: float | None = None) -> None:
        """Waits for running calls, then closes the services. Idempotent.

        The health service immediately reports NOT_SERVING, and the services accept no new clients. While calls run or
        clients fetch their results, the server still accepts calls that these clients may need, such as lease renewals.
        Afterwards, or after the grace period, the server rejects all calls with an error that lets clients retry on
        another server.

        Args:
          grace: The time in seconds after which running calls are cancelled; by default `grace_seconds`. If this method
            is called several times, the earliest deadline applies.
        """
        self._health.drain()
        self._streams.drain()
        for service in self._services:
            service.drain()
        seconds = self._config.grace_seconds if grace is None else grace
        self._facts.stops_within(seconds)
        self._grace_seconds = seconds if self._ending is None else min(seconds, self._grace_seconds)
        if self._ending is None:
            idle = asyncio.ensure_future(self._becomes_idle())
            self._ending = idle, asyncio.ensure_future(self._stop(idle))
        idle, stopping = self._ending
        timer = asyncio.get_running_loop().call_later(seconds, idle.cancel)
        stopping.add_done_callback(lambda _: timer.cancel())
        await asyncio.shield(stopping)

    async def _stop(self, idle: "asyncio.Task[None]") -> None:
        await asyncio.wait([idle])
        if idle.cancelled() and self._router.running and self._grace_seconds:
            calls, seconds = counted(self._router.running, "call"), self._grace_seconds
            _logger.warning("Stopping %s that did not end within the grace period of %g s", calls, seconds)
        self._meter.stop()
        try:
            await Deadline(_LAST_SECONDS).wait(self._router.end_calls())
        except asyncio.TimeoutError:
            _logger.warning("Stopping although %s did not end in time", counted(self._router.running, "cancelled call"))
        servers_here.remove(self._facts.target)
        await self._streams.close(_LAST_SECONDS)
        if self._server is not None:
            await self._server.stop(_LAST_SECONDS)
        for service in self._services:
            try:
                await service.close()
            except Exception:  # one failing service must not affect the remaining services
                _logger.exception("Could not close %r", service)
        self._stopped.set()

    async def _becomes_idle(self) -> None:
        """Returns when no call is running and clients have fetched their results."""
        await self._router.wait_idle()
        for service in self._services:
            try:
                await service.handed_over()
            except Exception:  # one failing service must not affect the remaining services
                _logger.exception("Could not wait for clients to fetch the results of %r", service)
        await self._router.wait_idle()  # wait for the calls that fetched the last results

    def _bind(self, server: grpc.aio.Server) -> int:
        address = self._listens.address
        try:
            if self._credentials.uses_tls:
                return server.add_secure_port(address, server_credentials(self._credentials))
            return server.add_insecure_port(address)
        except RuntimeError as error:
            reason = self._credentials.why_unusable()
            if reason is not None:
                raise InvalidValueError(f"The server at {address} cannot use its credentials: {reason}") from error
            # Another process has bound the address since the check.
            raise AddressError(f"gRPC cannot listen on {address}; choose another address") from error

    def _options(self) -> list[tuple[str, int | str]]:
        limits = self._config.server_limits
        handshake_ms = math.ceil(limits.handshake_seconds * 1000)
        options = {
            **dict(SERVER_OPTIONS),
            "grpc.max_allowed_incoming_connections": most_connections(limits),
            # More than the limits of the router, so that the router refuses excess calls with a helpful error. Calls
            # beyond gRPC's own limit would wait at the client.
            "grpc.max_concurrent_streams": limits.max_calls + limits.max_watches + _SPARE_CALLS,
            "grpc.server_handshake_timeout_ms": handshake_ms,
            "grpc.http2.settings_timeout": handshake_ms,
            "grpc.max_connection_idle_ms": math.ceil(limits.idle_seconds * 1000),
            "grpc.max_receive_message_length": limits.max_message_bytes,
        }
        if self._config.compression:
            options[COMPRESSION] = ANY_COMPRESSION
        # gRPC accepts 32-bit integers, and interprets the largest duration as no limit.
        return [(name, min(v, _MOST_OPTION) if isinstance(v, int) else v) for name, v in options.items()]

    def _is_allowed(self, token: str | None) -> bool:
        allowed = self._tokens.get()
        return not allowed or (token is not None and token_matches(token, allowed))

    def _caller(self, peer: str, token: str | None) -> str:
        """Returns a caller's name, derived from its token if there are several tokens, otherwise from its address."""
        tokens = self._tokens.get()
        if len(tokens) > 1 and token is not None and token_matches(token, tokens):
            return caller_with(token)
        return NOBODY if self._has_local_callers else caller_at(peer)

    def __repr__(self) -> str:
        if self._stopped.is_set():
            state = "stopped"
        elif not self.has_started:
            state = "not started"
        else:
            state = f"at {self._facts.target}, {counted(self._router.running, 'call')} running"
        return f"<{type(self).__name__} {state}>"


class GrpcServer(Host):
    """A gRPC server for any services, with health and reflection.

    Args:
      services: The services to serve. The server closes them when it stops.
      host: The name or address of this machine to listen on. Addresses other than loopback require TLS.
      port: The port; 0 for any free port.
      unix_socket: The path of a Unix socket to listen on, instead of host and port.
      credentials: The certificate and key for TLS, and the credentials that clients have to present.
      insecure: Whether other machines may reach the server without TLS.
      reflection: Whether tools can list the services.
      limits: The limits of the server.
      compression: Whether to accept compressed messages; a small message may expand to the maximum size.
      streams: Whether fedstack's own clients may use streams, which are faster than gRPC.
      stream_port: The port to accept streams on; 0 for any free port.
      grace_seconds: The default time limit for running calls when the server stops.

    Raises:
      InvalidValueError: If a number is out of range, or if other machines could reach the server without TLS and
        `insecure` is not set.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        unix_socket: Path | None = None,
        credentials: ServerCredentials | None = None,
        insecure: bool = False,
        reflection: bool = True,
        limits: ServerLimits | None = None,
        compression: bool = False,
        streams: bool = True,
        stream_port: int = 0,
        grace_seconds: float = 30.0,
    ) -> None:
        config = HostConfig(
            host=host,
            port=port,
            unix_socket=unix_socket,
            credentials=credentials,
            insecure=insecure,
            reflection=reflection,
            server_limits=limits or ServerLimits(),
            compression=compression,
            streams=streams,
            stream_port=stream_port,
            grace_seconds=grace_seconds,
        )
        super().__init__(services, config)


def _reflection_of(services: Sequence[Service], *, wanted: bool) -> Sequence[Service]:
    try:
        return [ReflectionService(services)] if wanted else []
    except ImportError as error:
        _logger.info("Reflection is disabled, so tools cannot list the services: %s", error)
        return []
