"""Defines the server of registered methods."""

from types import TracebackType

from fedstack.computations.types.language import ExecutorFactory
from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import counted
from fedstack.service.limits.limits import ServerLimits, ServiceLimits
from fedstack.service.rpc.method_service import MethodService, RegistersMethods
from fedstack.service.rpc.method_table import check_layer
from fedstack.service.server.grpc_server import GrpcServer
from fedstack.service.server.listening import place_of
from fedstack.service.server.server_thread import ServerThread
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.addresses import parse_target


class Server(RegistersMethods):
    """Serves computations under names. Made by `Server.create`.

    with Server.create("grpc", "localhost:8500") as server:
        server.register("add", add)
        server.join()
    """

    def __init__(self, service: MethodService, server: GrpcServer) -> None:
        super().__init__(service)
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
        calls_with: ClientCredentials | None = None,
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
          calls_with: What methods dial other servers with, such as the owner of a variable; by default nothing.

        Raises:
          InvalidValueError: If the layer is another one, the address is none, or other machines could reach it without
            TLS, and that was not asked for.
        """
        check_layer(rpc_layer)
        listens = parse_target(address, any_port=True)
        if listens.secure and not (credentials is not None and credentials.uses_tls):
            raise InvalidValueError(
                f"Expected a certificate for a server at {address}, found none; leave the scheme out, or give "
                "credentials"
            )
        service = MethodService(factory, limits=service_limits, calls_with=calls_with)
        server = GrpcServer(
            [service],
            **place_of(listens),
            credentials=credentials,
            insecure=insecure,
            limits=limits,
            grace_seconds=grace_seconds,
        )
        return cls(service, server)

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
        return f"<rpc.Server of {counted(len(self.methods), 'method')}, {self._thread.server!r}>"
