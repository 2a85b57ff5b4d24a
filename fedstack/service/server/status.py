"""Tells what a server holds and has done, whatever it serves: the service `fedstack.v1.ServerStatus`."""

import time
from collections.abc import Mapping, Sequence

from fedstack._version import __version__
from fedstack.executors.concurrency.thread_pool import count_threads
from fedstack.proto.extensions_pb2 import GetStatusRequest, GetStatusResponse
from fedstack.service.limits.limits import add_limits
from fedstack.service.processes.resident_memory import resident_bytes
from fedstack.transport.peers.executor_stub import STATUS
from fedstack.transport.peers.methods import Method, Server, Service, UnaryMethod


class StatusService(Service):
    """Asks the services of a server what they hold (`Service.report`), and adds what is true of the whole.

    Args:
      services: The services.
      server: Their server.
    """

    def __init__(self, services: Sequence[Service], server: Server) -> None:
        self._services = tuple(services)
        self._server = server
        self._started = time.monotonic()

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        return {STATUS: {"GetStatus": UnaryMethod(self._get_status)}}

    async def _get_status(self, request: bytes) -> bytes:
        GetStatusRequest.FromString(request)
        return (await self.status()).SerializeToString()

    async def status(self) -> GetStatusResponse:
        """Returns what the server holds and has done."""
        status = GetStatusResponse(version=__version__, uptime_seconds=time.monotonic() - self._started)
        status.threads, status.busy_threads = count_threads()
        status.resident_bytes = resident_bytes()
        server = self._server
        for method, code, count in server.calls:
            status.calls.add(method=method, code=code, count=count)
        status.stalls, status.longest_stall_seconds = server.stalls, server.longest_stall_seconds
        left = server.seconds_until_stop
        if left is not None:
            status.seconds_until_stop = left
        for limits in server.limits:
            add_limits(status, limits)
        for service in self._services:
            await service.report(status)
        return status
