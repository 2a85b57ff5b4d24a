"""Defines the server of registered methods."""

from fedstack.computations.leaves.declared_types import ParameterTypes
from fedstack.computations.types.language import ExecutorFactory
from fedstack.errors import InvalidValueError
from fedstack.foundations.error_text import counted
from fedstack.service.host.config import HostConfig
from fedstack.service.host.host import Host
from fedstack.service.host.limits import ServerLimits, ServiceLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.service.rpc.method_service import MethodService
from fedstack.service.rpc.method_table import check_layer
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
from fedstack.transport.wire.addresses import parse_target


class RegistersMethods:
    """The base of servers with methods: a server with methods only, and a task of a cluster.

    Args:
      methods: The service that runs the methods.
    """

    def __init__(self, methods: MethodService) -> None:
        self._methods = methods

    def register(
        self,
        name: str,
        computation: object,
        inline: bool = False,
        *,
        parameter_types: ParameterTypes = None,
        result_type: object = None,
    ) -> None:
        """Registers a method, before or after the start. Existing clients find it when they next look for it.

        Args:
          name: The name for clients. A name that is not an identifier is available through `Client.call` only.
          computation: A computation, leaf or federated, or a Python function.
          inline: Whether it runs on the server's event loop, where everything else waits meanwhile: for functions that
            take a few microseconds and never wait. They save a switch of threads.
          parameter_types: For a Python function, its parameter types: see `fedstack.python_computation`.
          result_type: For a Python function, its result type; `()` for no result. By default, it is taken from the
            annotation, or else from one call on zeros.

        Raises:
          InvalidValueError: If the name is taken, or is an attribute of clients.
          InvalidComputationError: If it is not a computation, or the types do not fit the function.
        """
        self._methods.register(name, computation, inline, parameter_types=parameter_types, result_type=result_type)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return self._methods.names


class Server(RegistersMethods, ServerThread):
    """Serves computations under names. Create it with `Server.create`.

    with Server.create("grpc", "localhost:8500") as server:
        server.register("add", add)
        server.join()
    """

    def __init__(self, service: MethodService, server: Host) -> None:
        RegistersMethods.__init__(self, service)
        ServerThread.__init__(self, server)

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
        client_credentials: ClientCredentials | None = None,
    ) -> "Server":
        """Returns a server that is not listening yet.

        Args:
          rpc_layer: The transport of calls: `"grpc"`.
          address: `host:port`, where port 0 means any free port (see `target`), or `unix:/path`. The server listens
            there and nowhere else.
          credentials: The certificate and key for TLS, and the requirements on clients.
          insecure: Whether other machines may reach it without TLS.
          factory: Creates the executors that run methods; by default a local stack.
          limits: How much of the server clients may use.
          service_limits: How much clients may send in a call.
          grace_seconds: How long running calls have by default when the server stops.
          client_credentials: Credentials that methods use to dial other servers, such as the owner of a variable; by
            default none.

        Raises:
          InvalidValueError: If the layer is not supported, the address is invalid, or other machines could reach it
            without TLS although `insecure` is not set.
        """
        check_layer(rpc_layer)
        listens = parse_target(address, any_port=True)
        if listens.secure and not (credentials is not None and credentials.uses_tls):
            raise InvalidValueError(
                f"Expected a certificate for a server at {address}, found none; leave the scheme out, or give "
                "credentials"
            )
        service = MethodService(factory, limits=service_limits, client_credentials=client_credentials)
        config = HostConfig(
            host=listens.host,
            port=listens.port,
            unix_socket=listens.socket_path or None,
            credentials=credentials,
            insecure=insecure,
            server_limits=limits or ServerLimits(),
            grace_seconds=grace_seconds,
        )
        return cls(service, Host([service], config))

    def __repr__(self) -> str:
        return f"<rpc.Server of {counted(len(self.methods), 'method')}, {self._state}>"
