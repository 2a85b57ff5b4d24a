"""The RPC server, which registers computations under names and runs them for clients."""

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
    """The base class of servers with registered methods: the RPC server and the server of a cluster's task.

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
        """Registers a method, before or after the server starts.

        Connected clients find the new method when they pass its name to `Client.call`, or after `Client.refresh`.

        Args:
          name: The name for clients. A name that is not an identifier is available only through `Client.call`.
          computation: A leaf or federated computation, or a Python function.
          inline: Whether the method runs on the server's event loop, which saves a thread switch. All other work
            on the loop waits meanwhile, so use this only for functions that take a few microseconds and never block.
          parameter_types: The parameter types of a Python function; see `fedstack.python_computation`.
          result_type: The result type of a Python function; `()` for no result. By default, the type comes from the
            return annotation or, if there is none, from one call on zeros.

        Raises:
          InvalidValueError: If the name is already registered or invalid, or types are passed for a computation.
          InvalidComputationError: If `computation` is neither a computation nor a function, or the types do not match
            the function.
        """
        self._methods.register(name, computation, inline, parameter_types=parameter_types, result_type=result_type)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the registered methods."""
        return self._methods.names


class Server(RegistersMethods, ServerThread):
    """Serves registered computations. Create a server with `Server.create`.

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
          rpc_layer: The transport for calls; must be `"grpc"`.
          address: The only address to listen on: `host:port`, where port 0 means any free port (see `target`), or
            `unix:/path`.
          credentials: The certificate and key for TLS, and the credentials that clients have to present.
          insecure: Whether other machines may reach the server without TLS.
          factory: Creates the executors that run methods; by default a local stack.
          limits: The limits of the server, such as the number of connections and calls.
          service_limits: The limits of a call, such as the size of its arguments.
          grace_seconds: The default time limit for running calls when the server stops.
          client_credentials: The credentials with which methods dial other servers, such as the owner of a variable; by
            default none.

        Raises:
          InvalidValueError: If the layer is not supported, the address is invalid, or other machines could reach the
            server without TLS although `insecure` is not set.
        """
        check_layer(rpc_layer)
        listens = parse_target(address, any_port=True)
        if listens.secure and not (credentials is not None and credentials.uses_tls):
            raise InvalidValueError(
                f"The server at {address} needs a certificate; pass credentials, or omit the scheme from the address"
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
