"""Defines the executor service: what a server is given to run other processes' computations."""

import time
from collections.abc import Mapping, Sequence

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from fedstack.computations.codec.references import ReadBlocks
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
    """Runs computations of other processes on the executors of a factory.

    Each client has a session of its own. Nothing is shared but the threads and the loaded leaf functions.

    Args:
      factory: Makes the executors; it is closed with the service.
      limits: The limits for clients.
      policy: The leaf computations that clients may bring: by default neither modules nor code.
      extensions: Whether clients may use more than the plain executor service.
      clock: Returns the time in seconds.
      client_credentials: The credentials with which functions dial other servers, such as the owner of a variable.
      reads: Reads sequences that clients refer to; by default references are not allowed.
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
    ) -> None:
        limits, policy = limits or ServiceLimits(), policy or CarrierPolicy()
        self._core = ServiceCore(factory, limits, policy, clock, client_credentials, reads)
        self._group = ExecutorGroup(self._core)
        self._extensions = ExecutorExtensions(self._core) if extensions else None

    def attach(self, server: ServerFacts) -> None:
        """Reports the server that serves this, in handshakes and in the status."""
        if self._extensions is not None:
            self._extensions.server = server

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        """The methods by the full names of their gRPC services."""
        methods: dict[str, Mapping[str, Method]] = {EXECUTOR_GROUP: self._group.methods}
        if self._extensions is not None:
            methods[EXTENSIONS] = self._extensions.methods
        return methods

    @property
    def descriptors(self) -> tuple[FileDescriptorProto, ...]:
        """Describes the executor service, which has a package of its own on the wire and nowhere else."""
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
        """Returns what the service holds and has done."""
        status = extensions_pb2.GetStatusResponse()
        (self._extensions or ExecutorExtensions(self._core)).report(status)
        return status

    async def report(self, status: extensions_pb2.GetStatusResponse) -> None:
        (self._extensions or ExecutorExtensions(self._core)).report(status)

    def drain(self) -> None:
        """Opens no more sessions; existing ones continue."""
        self._core.drain()

    async def handed_over(self) -> None:
        await self._core.sessions.handed_over()

    async def close(self) -> None:
        """Ends all sessions and closes the factory. Idempotent."""
        await self._core.close()

    def __repr__(self) -> str:
        return f"<ExecutorService with {len(self._core.sessions)} sessions>"
