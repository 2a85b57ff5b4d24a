"""Tells what a server holds and has done, whatever it serves: the service `fedstack.v1.ServerStatus`."""

import os
import sys
import time
from collections.abc import Mapping, Sequence

from fedstack._version import __version__
from fedstack.executors.concurrency.thread_pool import count_threads
from fedstack.proto.extensions_pb2 import GetStatusRequest, GetStatusResponse
from fedstack.service.host.call_table import CallCounts
from fedstack.service.host.limits import ServerLimits, add_limits
from fedstack.service.host.stall_meter import StallCounts
from fedstack.transport.peers.executor_stub import STATUS
from fedstack.transport.peers.methods import Method, ServerFacts, Service, UnaryMethod


class StatusService(Service):
    """Asks the services of a server what they hold (`Service.report`), and adds what is true of the whole.

    Args:
      services: The services.
      facts: What they know of their server.
      calls: Counts the calls that have ended.
      stalls: How often its loop stood still.
      limits: Its own limits.
    """

    def __init__(
        self,
        services: Sequence[Service],
        facts: ServerFacts,
        calls: CallCounts,
        stalls: StallCounts,
        limits: ServerLimits,
    ) -> None:
        self._services = tuple(services)
        self._facts = facts
        self._calls = calls
        self._stalls = stalls
        self._limits = limits
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
        for method, code, count in self._calls:
            status.calls.add(method=method, code=code, count=count)
        status.stalls, status.longest_stall_seconds = self._stalls.stalls, self._stalls.longest_seconds
        left = self._facts.seconds_until_stop
        if left is not None:
            status.seconds_until_stop = left
        add_limits(status, self._limits)
        for service in self._services:
            await service.report(status)
        return status


def resident_bytes() -> int:
    """Returns the bytes of memory that this process has; the most that it has had where only that is known, else 0."""
    try:
        with open("/proc/self/statm") as file:  # on Linux: sizes in pages, of which the second is the resident one
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return _most_resident_bytes()


def _most_resident_bytes() -> int:
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
