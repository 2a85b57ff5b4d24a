"""Tells load balancers and supervisors whether a server takes work: the service `grpc.health.v1.Health`.

The servicer that comes with grpcio-health-checking forgets all but one of those who watch the same service once one of
them leaves, and its watches would hold up a server that waits for its calls to end.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

from grpc_health.v1 import health_pb2

from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.foundations.error_text import name_text
from fedstack.transport.peers.methods import Method, Service, StreamMethod, UnaryMethod
from fedstack.transport.wire.status import Code, StatusError

_MAX_REQUEST_BYTES = 64 << 10
HEALTH_SERVICE = "grpc.health.v1.Health"

_Status = health_pb2.HealthCheckResponse


class HealthService(Service):
    """Answers SERVING for the server (the empty name) and each of its services until `drain()`, NOT_SERVING after it.

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
        """Says NOT_SERVING from now on, and to all who watch, whose calls end with it."""
        self._draining.set()

    async def close(self) -> None:
        self.drain()

    async def _check(self, request: bytes) -> bytes:
        name = _name_in(request)
        if name not in self._names:
            known = ", ".join(sorted(self._names - {""}))
            raise StatusError(Code.NOT_FOUND, f"Expected a service of this server ({known}), found {name_text(name)!r}")
        return self._answer()

    async def _watch(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        request = await anext(requests, None)
        if request is None:
            raise InvalidValueError(f"Expected a message for {HEALTH_SERVICE}/Watch, found the end of the call")
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
    """Returns the service that somebody asks about; anybody may ask, and so nobody may ask at length."""
    if len(request) > _MAX_REQUEST_BYTES:
        raise ResourceLimitError(
            f"Expected the name of a service in at most {_MAX_REQUEST_BYTES} bytes, found {len(request)}; send the name"
        )
    return health_pb2.HealthCheckRequest.FromString(request).service
