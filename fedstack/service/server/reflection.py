"""Describes a server's services to tools such as grpcurl: the service `grpc.reflection.v1alpha.ServerReflection`."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from fedstack.transport.peers.methods import Method, Service, StreamMethod

try:
    from grpc_reflection.v1alpha import reflection, reflection_pb2
except ModuleNotFoundError as error:
    raise ImportError('server reflection needs grpcio-reflection: pip install "fedstack[server]"') from error

REFLECTION_SERVICE = reflection.SERVICE_NAME
# The later name of the same service with the same messages; newer tools ask for it first.
_LATER_NAME = "grpc.reflection.v1.ServerReflection"


class ReflectionService(Service):
    """Describes services, and itself.

    Their files are copied into a pool of their own: the executor service has the name that other systems gave it, with
    messages of ours, and in the pool of the process that name may be theirs.

    Args:
      services: The services to describe.
    """

    def __init__(self, services: Sequence[Service]) -> None:
        names = [name for service in services for name in service.methods] + [REFLECTION_SERVICE]
        own = {file.name: file for service in services for file in service.descriptors}
        # Its stub takes the method for a coroutine; it is an asynchronous generator.
        self._servicer: Any = reflection.aio.ReflectionServicer(names, pool=_pool_of(names, own))

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        method = StreamMethod(self._info)
        return {name: {"ServerReflectionInfo": method} for name in (REFLECTION_SERVICE, _LATER_NAME)}

    async def _info(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async def parsed() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            async for request in requests:
                yield reflection_pb2.ServerReflectionRequest.FromString(request)

        async for response in self._servicer.ServerReflectionInfo(parsed(), None):
            yield response.SerializeToString()


def _pool_of(names: Sequence[str], own: Mapping[str, FileDescriptorProto]) -> descriptor_pool.DescriptorPool:
    """Returns a pool with the files that services came with, those that define the others, and all they import."""
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
        with contextlib.suppress(KeyError):  # a service without a description is listed, that is all
            add(default.FindServiceByName(name).file.name)
    return pool
