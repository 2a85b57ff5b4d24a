"""The executor service, which runs computations for other processes."""

import time
from collections.abc import Mapping, Sequence

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from fedstack.computations.codec.references import ReadBlocks
from fedstack.computations.codec.stored_values import StoreFolders
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.types.language import ExecutorFactory
from fedstack.proto import executor_pb2, extensions_pb2
from fedstack.service.executor.executor_extensions import ExecutorExtensions
from fedstack.service.executor.executor_group import ExecutorGroup
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.executor.sessions import Clock
from fedstack.service.host.limits import ServiceLimits
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, EXTENSIONS
from fedstack.transport.peers.methods import Method, ServerFacts, Service


class ExecutorService(Service):
    """Runs computations for other processes on the executors of a factory.

    Each client has its own session. Sessions share only threads and loaded leaf functions.

    Args:
      factory: Creates the executors, and is closed with the service.
      limits: The limits for clients.
      policy: The leaf computations that clients may send; by default neither references to modules nor code.
      extensions: Whether clients may use fedstack's extensions of the plain executor service.
      clock: Returns the time in seconds.
      client_credentials: The credentials with which functions dial other servers, such as the owner of a variable.
      reads: Reads sequences that clients send as references; by default references are not allowed.
      stores: The stores of clients' states that clients' computations may use; by default none.
    """

    def __init__(
        self,
        factory: ExecutorFactory,
        *,
        limits: ServiceLimits | None = None,
        policy: CarrierPolicy | None = None,
        extensions: bool = True,
        clock: Clock = time.monotonic,
        client_credentials: ClientCredentials | None = None,
        reads: ReadBlocks | None = None,
        stores: StoreFolders | None = None,
    ) -> None:
        limits, policy = limits or ServiceLimits(), policy or CarrierPolicy()
        self._core = ServiceCore(factory, limits, policy, clock, client_credentials, reads, stores)
        self._group = ExecutorGroup(self._core)
        self._extensions = ExecutorExtensions(self._core) if extensions else None

    def attach(self, server: ServerFacts) -> None:
        """Stores the facts that handshakes report about the server."""
        self._core.attach(server)
        if self._extensions is not None:
            self._extensions.server = server

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        """The methods of the gRPC services, by the full names of these services."""
        methods: dict[str, Mapping[str, Method]] = {EXECUTOR_GROUP: self._group.methods}
        if self._extensions is not None:
            methods[EXTENSIONS] = self._extensions.methods
        return methods

    @property
    def descriptors(self) -> tuple[FileDescriptorProto, ...]:
        """The protobuf file descriptor of the plain executor service, whose package name is used only on the wire."""
        package, _, name = EXECUTOR_GROUP.rpartition(".")
        file = FileDescriptorProto(
            name="fedstack/executor_group.proto",
            package=package,
            syntax="proto3",
            dependency=[executor_pb2.DESCRIPTOR.name],
        )
        service = file.service.add(name=name)
        for method in self._group.methods:
            service.method.add(
                name=method,
                input_type=f".fedstack.v1.{method}Request",
                output_type=f".fedstack.v1.{method}Response",
            )
        return (file,)

    @property
    def runs_code(self) -> bool:
        return self._core.policy.runs_anything

    @property
    def sessions(self) -> Sequence[extensions_pb2.GetStatusResponse.Session]:
        return (self._extensions or ExecutorExtensions(self._core)).sessions

    def status(self) -> extensions_pb2.GetStatusResponse:
        """Returns the status of the service: sessions, running work and limits."""
        status = extensions_pb2.GetStatusResponse()
        (self._extensions or ExecutorExtensions(self._core)).report(status)
        return status

    async def report(self, status: extensions_pb2.GetStatusResponse) -> None:
        (self._extensions or ExecutorExtensions(self._core)).report(status)

    def drain(self) -> None:
        """Refuses new sessions; existing sessions continue."""
        self._core.drain()

    async def handed_over(self) -> None:
        await self._core.sessions.handed_over()

    async def close(self) -> None:
        """Ends all sessions and closes the factory. Idempotent."""
        await self._core.close()

    def __repr__(self) -> str:
        return f"<ExecutorService with {len(self._core.sessions)} sessions>"
