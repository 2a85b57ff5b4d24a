"""Defines the server of registered methods."""

from pathlib import Path
from types import TracebackType

from fedstack.computations.leaves.declared_types import ParameterTypes
from fedstack.computations.types.language import ExecutorFactory
from fedstack.service.limits.limits import ServerLimits, ServiceLimits
from fedstack.service.rpc.arguments import check_layer
from fedstack.service.rpc.method_service import MethodService
from fedstack.service.server.grpc_server import GrpcServer
from fedstack.service.server.server_thread import ServerThread
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.addresses import parse_target


class Server:
    """Serves computations under names. Made by `Server.create`.

    with Server.create("grpc", "localhost:8500") as server:
        server.register("add", add)
        server.join()
    """

    def __init__(self, service: MethodService, server: GrpcServer) -> None:
        self._service = service
        self._thread = ServerThread(server)

    @classmethod
    def create(
        cls,
        rpc_layer: str,
        address: str,
        credentials: ServerCredentials | None = None,
        *,
        insecure: bool = False,
        factory: ExecutorFactory | None = None,
        limits: ServerLimits | None = None,
        service_limits: ServiceLimits | None = None,
        grace_seconds: float = 30.0,
    ) -> "Server":
        """Returns a server that does not listen yet.

        Args:
          rpc_layer: How calls travel: `"grpc"`.
          address: `host:port`, where port 0 is any that is free (`target` tells it), or `unix:/path`. The server
            listens there and nowhere else.
          credentials: The certificate and key for TLS, and what is asked of clients.
          insecure: Whether other machines may reach it without TLS.
          factory: Makes the executors that run methods; by default a local stack.
          limits: How much clients may have of the server.
          service_limits: How much they may send in a call.
          grace_seconds: How long running calls have by default when the server stops.

        Raises:
          InvalidValueError: If the layer is another one, the address is none, or other machines could reach it without
            TLS, and that was not asked for.
        """
        check_layer(rpc_layer)
        listens = parse_target(address, any_port=True)
        service = MethodService(factory, limits=service_limits)
        server = GrpcServer(
            [service],
            host=listens.host or "localhost",
            port=listens.port,
            unix_socket=Path(listens.socket_path) if listens.socket_path else None,
            credentials=credentials,
            insecure=insecure,
            limits=limits,
            grace_seconds=grace_seconds,
        )
        return cls(service, server)

    def register(
        self,
        name: str,
        computation: object,
        inline: bool = False,
        *,
        parameter_types: ParameterTypes = None,
        result_type: object = None,
    ) -> None:
        """Registers a method, before or after the start. Clients that are there find it when they next look for it.

        Args:
          name: What clients call it. One that is no identifier is reached by `Client.call` only.
          computation: A computation, leaf or federated, or a Python function.
          inline: Whether it runs on the server's event loop, where everything else waits meanwhile: for functions of a
            few microseconds that wait for nothing. They answer sooner by a change of threads.
          parameter_types: For a Python function, its types: see `fedstack.python_computation`.
          result_type: For a Python function, what it returns; `()` for nothing. Left out, it is taken from the
            annotation or else from one call on zeros.

        Raises:
          InvalidValueError: If the name is taken, or one that clients have themselves.
          InvalidComputationError: If it is no computation, or types do not fit the function.
        """
        self._service.register(name, computation, inline, parameter_types=parameter_types, result_type=result_type)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return self._service.names

    @property
    def target(self) -> str:
        """The address to dial from this machine, with the real port.

        Raises:
          ClosedError: If the server has not been started.
        """
        return self._thread.target

    def start(self) -> None:
        """Returns when clients can call. Idempotent.

        Raises:
          AddressError: If it cannot listen there, as where another server does; the message has the reason.
        """
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the server has stopped, at most `timeout` seconds; returns whether it has."""
        return self._thread.join(timeout)

    def stop(self, grace: float | None = None) -> None:
        """Takes no new calls, lets running ones come to their end, and frees the port. Idempotent.

        Args:
          grace: How many seconds running calls have before they are cancelled; `grace_seconds` by default.
        """
        self._thread.stop(grace)

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> "Server":
        await io_loop.run(self._thread.server.start())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await io_loop.run(self._thread.server.stop())

    def __repr__(self) -> str:
        return f"<rpc.Server of {len(self.methods)} methods, {self._thread.server!r}>"
