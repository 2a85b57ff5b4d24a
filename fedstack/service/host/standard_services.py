"""The standard gRPC services of every server: health checking and reflection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2

from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.foundations.error_text import name_text
from fedstack.transport.peers.methods import Method, Service, StreamMethod, UnaryMethod
from fedstack.transport.wire.status import Code, StatusError

_MAX_REQUEST_BYTES = 64 << 10
HEALTH_SERVICE = "grpc.health.v1.Health"
# Two names for the same service with the same messages. Newer tools try the second name first.
_REFLECTION = "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection"

_Status = health_pb2.HealthCheckResponse


class HealthService(Service):
    """Reports to load balancers and supervisors whether a server accepts work.

    It reports SERVING for the server (the empty name) and for each of the server's services until `drain()` is called,
    and NOT_SERVING afterwards. There are two reasons not to use the servicer in grpcio-health-checking: when one of
    several watchers of a service disconnects, that servicer forgets all but one of the other watchers, and its watches
    would delay a server that waits for its calls to end.

    Args:
      names: The full names of the services.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names) | {""}
        self._draining = asyncio.Event()

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        return {HEALTH_SERVICE: {"Check": UnaryMethod(self._check), "Watch": StreamMethod(self._watch)}}

    def drain(self) -> None:
        """Reports NOT_SERVING from now on. Current watchers receive this status, and their calls end."""
        self._draining.set()

    async def close(self) -> None:
        self.drain()

    async def _check(self, request: bytes) -> bytes:
        name = _name_in(request)
        if name not in self._names:
            known = ", ".join(sorted(self._names - {""}))
            raise StatusError(
                Code.NOT_FOUND,
                f"Expected the name of a service of this server ({known}), found {name_text(name)!r}; correct the name",
            )
        return self._answer()

    async def _watch(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        request = await anext(requests, None)
        if request is None:
            raise InvalidValueError(f"The call of {HEALTH_SERVICE}/Watch ended without a message; send one message")
        known = _name_in(request) in self._names
        if not known:
            yield _Status(status=_Status.SERVICE_UNKNOWN).SerializeToString()
        elif not self._draining.is_set():
            yield self._answer()
        await self._draining.wait()
        if known:
            yield self._answer()

    def _answer(self) -> bytes:
        status = _Status.NOT_SERVING if self._draining.is_set() else _Status.SERVING
        return _Status(status=status).SerializeToString()


def _name_in(request: bytes) -> str:
    """Returns the service name in a request. The size is limited, because clients need no token for health checks."""
    if len(request) > _MAX_REQUEST_BYTES:
        raise ResourceLimitError(
            f"Expected a request of at most {_MAX_REQUEST_BYTES} bytes, found a request of {len(request)} bytes; send "
            "only the name of a service"
        )
    return health_pb2.HealthCheckRequest.FromString(request).service


class ReflectionService(Service):
    """Describes a server's services, including itself, to tools such as grpcurl.

    The descriptors of the services are copied into a separate pool. The executor service shares its name with a service
    of other systems but has different messages, and another package may have registered that name in the process's
    default pool.

    Args:
      services: The services to describe.

    Raises:
      ImportError: If grpcio-reflection is not installed.
    """

    def __init__(self, services: Sequence[Service]) -> None:
        try:
            from grpc_reflection.v1alpha import reflection, reflection_pb2
        except ModuleNotFoundError as error:
            raise ImportError('Server reflection needs grpcio-reflection: pip install "fedstack[server]"') from error
        names = [*(name for service in services for name in service.methods), _REFLECTION[0]]
        own = {file.name: file for service in services for file in service.descriptors}
        # The stub declares the method as a coroutine; it is an asynchronous generator.
        self._read = reflection_pb2.ServerReflectionRequest.FromString
        self._servicer: Any = reflection.aio.ReflectionServicer(names, pool=_pool_of(names, own))

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        method = StreamMethod(self._info)
        return {name: {"ServerReflectionInfo": method} for name in _REFLECTION}

    async def _info(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        parsed = (self._read(request) async for request in requests)
        async for response in self._servicer.ServerReflectionInfo(parsed, None):
            yield response.SerializeToString()


def _pool_of(names: Sequence[str], own: Mapping[str, FileDescriptorProto]) -> descriptor_pool.DescriptorPool:
    """Returns a pool with the files of the named services and all files that these import.

    Args:
      names: The full names of the services.
      own: Files that take precedence over those in the default pool, by name.
    """
    default = descriptor_pool.Default()
    pool = descriptor_pool.DescriptorPool()
    added = set[str]()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        file = own.get(name)
        if file is None:
            file = FileDescriptorProto()
            default.FindFileByName(name).CopyToProto(file)
        for dependency in file.dependency:
            add(dependency)
        pool.AddSerializedFile(file.SerializeToString())

    for name in own:
        add(name)
    described = {f"{file.package}.{service.name}" for file in own.values() for service in file.service}
    for name in sorted(set(names) - described):
        with contextlib.suppress(KeyError):  # a service without a descriptor is listed but not described
            add(default.FindServiceByName(name).file.name)
    return pool
