"""Serves services: one class for all servers of fedstack, behind gRPC or inside this process."""

import asyncio
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from fedstack.errors import AddressError, ClosedError, FedstackError, InvalidValueError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted
from fedstack.service.host.call_router import CallRouter, Metadata
from fedstack.service.host.call_stream import Context
from fedstack.service.host.call_table import NOBODY, CallCounts, caller_at, caller_with
from fedstack.service.host.config import HostConfig, check_exposure
from fedstack.service.host.limits import ServerLimits
from fedstack.service.host.listening import LOCAL, check_free, dialled, let_go_of_sockets, servers_here
from fedstack.service.host.standard_services import HealthService, ReflectionService
from fedstack.service.host.status import StallMeter, StatusService
from fedstack.transport.grpc.channels import ANY_COMPRESSION, COMPRESSION, SERVER_OPTIONS
from fedstack.transport.grpc.credential_files import bearer_token, token_matches
from fedstack.transport.grpc.credentials import ServerCredentials, server_credentials
from fedstack.transport.grpc.grpc_module import grpc
from fedstack.transport.peers.fork_guard import fork_guard
from fedstack.transport.peers.methods import ServerFacts, Service

try:
    import resource
except ModuleNotFoundError:  # not a system of that kind
    resource = None

_logger = logging.getLogger(__name__)

# How long cancelled calls may take to end.
_LAST_SECONDS = 5.0
_SPARE_CALLS = 1000
_MOST_OPTION = (1 << 31) - 1


class Host:
    """The life of a server: it listens, serves, drains and stops, and gives its services their address.

    Everything that serves is one of these, with a face: `GrpcServer` for programs with an event loop, `ServerThread`
    for others, and the servers that have services of their own (`Server`, `rpc.Server`, `DispatchServer`,
    `WorkerServer`, `fedstack serve`). Beside the services it serves health, status and reflection. With the protocol
    `grpc+local` it has no socket: connections of this process call the methods right away, within no limits.

    Its coroutines run on one event loop, that of `start()`: the transport's (`io_loop`) in a process that also dials.

    Args:
      services: The services, which it closes when it stops.
      config: The configuration; by default it serves at any port of the loopback device.

    Raises:
      InvalidValueError: If others could reach the server without TLS and `insecure` is not set, or credentials cannot
        be read.
    """

    def __init__(self, services: Sequence[Service], config: HostConfig | None = None) -> None:
        self._config = config = config or HostConfig()
        self._services = tuple(services)
        self._listens = config.listens
        self._credentials = config.all_credentials()
        self._tokens = self._credentials.renewed_tokens()
        self._is_local = config.protocol == LOCAL
        if not (self._is_local or self._listens.is_local):
            runs_code = any(service.runs_code for service in services)
            check_exposure(config.host, self._credentials, insecure=config.insecure, runs_code=runs_code)
        self._facts = ServerFacts(
            asks_for_token=bool(self._credentials.tokens),
            asks_for_certificate=self._credentials.client_root_certificates is not None,
        )
        self._meter = StallMeter()
        self.call_counts = CallCounts()
        status = StatusService(services, self._facts, self.call_counts, self._meter.counts, config.server_limits)
        served = [*services, status]
        self._health = HealthService([name for service in served for name in service.methods])
        self._router = CallRouter(
            served,
            is_allowed=self._is_allowed,
            limits=config.server_limits,
            caller=self._caller,
            background=[self._health, *_reflection_of([*served, self._health], wanted=config.reflection)],
            public=[self._health],  # supervisors need no token
            counts=self.call_counts,
        )
        for service in services:
            service.attach(self._facts)
        self._server: grpc.aio.Server | None = None
        self._ending: tuple[asyncio.Task[None], asyncio.Task[None]] | None = None
        self._stopped = asyncio.Event()
        renew_after_fork(self)

    def renew(self) -> None:
        """Leaves the address to the parent, which serves, in a forked child."""
        if self._server is not None and not self._stopped.is_set():
            let_go_of_sockets(self._facts.target)

    @property
    def target(self) -> str:
        """The address to dial from this machine, with the real port.

        Raises:
          ClosedError: If the server has not been started.
        """
        if not self.has_started:
            raise ClosedError("Expected a started server, found one that was not started; call start() first")
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
        """Whether it has an address, which it keeps when it has stopped."""
        return bool(self._facts.target)

    @property
    def has_stopped(self) -> bool:
        """Whether it has stopped."""
        return self._stopped.is_set()

    async def start(self) -> None:
        """Returns when the server can be dialled. Idempotent.

        Raises:
          AddressError: If it cannot listen at its address.
          InvalidValueError: If its certificates are invalid.
          ClosedError: If it was stopped, or this process was forked from one that uses gRPC.
        """
        if self._ending is not None:
            raise ClosedError("Expected a running server, found one that was stopped; create a new one")
        if self.has_started:
            return
        if self._is_local:
            self._facts.target = servers_here.add(self._services, self._config.port)
        else:
            await self._listen()
        for service in self._services:
            service.started()

    async def _listen(self) -> None:
        fork_guard.begin()
        check_free(self._listens)
        server = grpc.aio.server(handlers=[self._router], options=self._options())
        try:
            port = self._bind(server)
        except FedstackError:
            # gRPC frees a server's resources when it stops, and it stops only started servers.
            await server.start()
            await server.stop(None)
            raise
        self._server = server
        self._facts.target = dialled(self._listens, port)
        await server.start()
        self._meter.start()
        _logger.info("Listening at %s", self._facts.target)

    async def wait(self) -> None:
        """Returns when the server has stopped."""
        await self._stopped.wait()

    async def stop(self, grace: float | None = None) -> None:
        """Waits for running calls, then closes the services. Idempotent.

        From the start, health reports NOT_SERVING, and services take no new clients. While calls run, or clients fetch
        their results, the server still accepts calls that these may need, such as the renewal of a lease. After that,
        or after the grace, it sends callers elsewhere.

        Args:
          grace: How many seconds running calls have until they are cancelled; `grace_seconds` by default. Of several
            calls of this method, the shortest time counts.
        """
        self._health.drain()
        for service in self._services:
            service.drain()
        seconds = self._config.grace_seconds if grace is None else grace
        self._facts.stops_within(seconds)
        if self._ending is None:
            idle = asyncio.ensure_future(self._becomes_idle())
            self._ending = idle, asyncio.ensure_future(self._stop(idle))
        idle, stopping = self._ending
        timer = asyncio.get_running_loop().call_later(seconds, idle.cancel)
        stopping.add_done_callback(lambda _: timer.cancel())
        await asyncio.shield(stopping)

    async def _stop(self, idle: "asyncio.Task[None]") -> None:
        await asyncio.wait([idle])
        self._meter.stop()
        try:
            await Deadline(_LAST_SECONDS).wait(self._router.end_calls())
        except asyncio.TimeoutError:
            _logger.warning("Stopping before the end of %s", counted(self._router.running, "call"))
        servers_here.remove(self._facts.target)
        if self._server is not None:
            await self._server.stop(_LAST_SECONDS)
        for service in self._services:
            try:
                await service.close()
            except Exception:  # close the others all the same
                _logger.exception("Closing %r failed", service)
        self._stopped.set()

    async def _becomes_idle(self) -> None:
        """Returns when no call is running and clients have fetched their results."""
        await self._router.wait_idle()
        for service in self._services:
            try:
                await service.handed_over()
            except Exception:  # wait for the others all the same
                _logger.exception("Waiting until %r has handed over its results failed", service)
        await self._router.wait_idle()  # for the last of those calls

    def _bind(self, server: grpc.aio.Server) -> int:
        address = self._listens.address
        try:
            if self._credentials.uses_tls:
                return server.add_secure_port(address, server_credentials(self._credentials))
            return server.add_insecure_port(address)
        except RuntimeError as error:
            reason = self._credentials.why_unusable()
            if reason is not None:
                raise InvalidValueError(f"{reason}; for the server at {address}") from error
            # The address was taken after the check.
            raise AddressError(f"gRPC cannot listen at {address}") from error

    def _options(self) -> list[tuple[str, int | str]]:
        limits = self._config.server_limits
        handshake_ms = math.ceil(limits.handshake_seconds * 1000)
        options = {
            **dict(SERVER_OPTIONS),
            "grpc.max_allowed_incoming_connections": _most_connections(limits),
            # One more, so that the limit is enforced here, and not by gRPC; further calls wait at the client.
            "grpc.max_concurrent_streams": limits.max_calls + limits.max_watches + _SPARE_CALLS,
            "grpc.server_handshake_timeout_ms": handshake_ms,
            "grpc.http2.settings_timeout": handshake_ms,
            "grpc.max_connection_idle_ms": math.ceil(limits.idle_seconds * 1000),
            "grpc.max_receive_message_length": limits.max_message_bytes,
        }
        if self._config.compression:
            options[COMPRESSION] = ANY_COMPRESSION
        # gRPC takes 32-bit numbers, and the largest time means no limit.
        return [(name, min(v, _MOST_OPTION) if isinstance(v, int) else v) for name, v in options.items()]

    def _is_allowed(self, metadata: Metadata) -> bool:
        allowed = self._tokens.get()
        return not allowed or token_matches(bearer_token(metadata), allowed)

    def _caller(self, context: Context) -> str:
        """Returns the name of a caller: by its token if there are several, since addresses may be shared."""
        tokens = self._tokens.get()
        if len(tokens) > 1:
            token = bearer_token(cast("Metadata", context.invocation_metadata() or ()))
            if token_matches(token, tokens):
                return caller_with(token)
        return NOBODY if self._listens.is_local else caller_at(context.peer())

    def __repr__(self) -> str:
        if self._stopped.is_set():
            state = "stopped"
        elif not self.has_started:
            state = "not started"
        else:
            state = f"at {self._facts.target}, {counted(self._router.running, 'call')} running"
        return f"<{type(self).__name__} {state}>"


class GrpcServer(Host):
    """A server of services, with health and reflection.

    Args:
      services: The services, which it closes when it stops.
      host: A name or address of this machine. Any but loopback needs TLS.
      port: The port; 0 for any free port.
      unix_socket: The path of a socket to listen at, instead of host and port.
      credentials: The certificate and key for TLS, and what clients have to show.
      insecure: Whether other machines may reach the server without TLS.
      reflection: Whether tools can list the services.
      limits: The limits of the server.
      compression: Whether to accept compressed messages; a small one may expand to the largest message.
      grace_seconds: How long running calls may take by default when the server stops.

    Raises:
      InvalidValueError: If a number is out of range, or others could reach the server without TLS and `insecure` is not
        set.
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
            grace_seconds=grace_seconds,
        )
        super().__init__(services, config)


def _most_connections(limits: ServerLimits) -> int:
    """Returns the most connections; each is a file descriptor, which a process needs for other things, too."""
    if resource is None:
        return limits.max_connections
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return limits.max_connections
    return max(1, min(limits.max_connections, descriptors * 3 // 4))


def _reflection_of(services: Sequence[Service], *, wanted: bool) -> Sequence[Service]:
    try:
        return [ReflectionService(services)] if wanted else []
    except ImportError as error:
        _logger.info("Tools cannot list the services: %s", error)
        return []
