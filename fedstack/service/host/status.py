"""Reports the status of a server (`fedstack.v1.ServerStatus`), and measures how long its event loop is blocked."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from fedstack._version import __version__
from fedstack.computations.leaves.compilations import compilations
from fedstack.executors.concurrency.thread_pool import count_threads
from fedstack.observe.events import LoopStalled
from fedstack.observe.observers import observers
from fedstack.proto.extensions_pb2 import GetStatusRequest, GetStatusResponse
from fedstack.service.host.calls.call_table import CallCounts
from fedstack.service.host.limits import ServerLimits, add_limits
from fedstack.transport.peers.executor_stub import STATUS
from fedstack.transport.peers.methods import Method, ServerFacts, Service, UnaryMethod

_logger = logging.getLogger(__name__)
# A loop whose heartbeat is later than this counts as blocked.
STALL_SECONDS = 0.1
# Shorter stalls are common on busy machines and hurt nobody; status, metrics and events have them.
_SECONDS_TO_WARN = 1.0
_BEAT_SECONDS = 0.1
_SECONDS_BETWEEN_WARNINGS = 60.0


class StallCounts:
    """Counts late heartbeats of an event loop, and decides which of them to log.

    Args:
      clock: Returns the time in seconds.

    Attributes:
      stalls: The number of beats that were more than `STALL_SECONDS` late.
      longest_seconds: The longest delay in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stalls = 0
        self.longest_seconds = 0.0
        self._clock = clock
        self._due: float | None = None
        self._quiet_until = 0.0

    def expect(self, seconds: float) -> None:
        """Sets the time of the next expected beat to `seconds` from now."""
        self._due = self._clock() + seconds

    def beat(self) -> float | None:
        """Records a beat, and returns its delay in seconds if the delay should be logged, otherwise `None`."""
        now = self._clock()
        late = 0.0 if self._due is None else now - self._due
        if late <= STALL_SECONDS:
            return None
        self.stalls += 1
        self.longest_seconds = max(self.longest_seconds, late)
        if observers.present:
            observers.tell(LoopStalled(seconds=late))
        if late < _SECONDS_TO_WARN or now < self._quiet_until:
            return None
        self._quiet_until = now + _SECONDS_BETWEEN_WARNINGS
        return late

    def __repr__(self) -> str:
        return f"<StallCounts {self.stalls} stalls, {self.longest_seconds:.3f} s the longest>"


class StallMeter:
    """Measures stalls of the running event loop between `start` and `stop`.

    Attributes:
      counts: The stalls so far.
    """

    def __init__(self) -> None:
        self.counts = StallCounts()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts measuring."""
        self._next()

    def stop(self) -> None:
        """Stops measuring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> None:
        self.counts.expect(_BEAT_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        late = self.counts.beat()
        if late is not None:
            _logger.warning(
                "The server's event loop was blocked for %.1f s, and all clients had to wait (%d times so far); check "
                "for very large messages, code that does not release Python's GIL, or a busy or suspended machine",
                late,
                self.counts.stalls,
            )
        self._next()


class StatusService(Service):
    """Collects the reports of a server's services (`Service.report`), and adds facts about the whole server.

    Args:
      services: The services.
      facts: The facts that the server shares with its services.
      calls: The counts of ended calls.
      stalls: The counts of stalls of the server's event loop.
      limits: The limits of the server itself.
      streams: Returns how many streams are open, and where the server accepts them.
    """

    def __init__(
        self,
        services: Sequence[Service],
        facts: ServerFacts,
        calls: CallCounts,
        stalls: StallCounts,
        limits: ServerLimits,
        streams: Callable[[], tuple[int, str]] = lambda: (0, ""),
    ) -> None:
        self._streams = streams
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
        """Returns the current status of the server and of its services."""
        status = GetStatusResponse(
            version=__version__, uptime_seconds=time.monotonic() - self._started, process=os.getpid()
        )
        status.threads, status.busy_threads = count_threads()
        status.resident_bytes = resident_bytes()
        status.compilations, status.compilations_from_cache = compilations.count, compilations.from_cache
        status.compilation_seconds = compilations.seconds
        for method, code, count in self._calls:
            status.calls.add(method=method, code=code, count=count)
        status.stalls, status.longest_stall_seconds = self._stalls.stalls, self._stalls.longest_seconds
        status.streams, status.streams_at = self._streams()
        left = self._facts.seconds_until_stop
        if left is not None:
            status.seconds_until_stop = left
        add_limits(status, self._limits)
        for service in self._services:
            await service.report(status)
        return status


def resident_bytes() -> int:
    """Returns the resident memory of this process in bytes.

    On systems that report only the peak memory, returns the peak; on systems that report neither, returns 0.
    """
    try:
        with open("/proc/self/statm") as file:  # on Linux: sizes in pages; the second is the resident size
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
