"""Serves the metrics of this process to Prometheus on an HTTP page. Only this module imports `prometheus_client`.

The page has its own thread and event loop, and limits the number of clients, the time per client and the size of
requests. The servers of `prometheus_client` and of Python's standard library have none of these limits.
"""

import asyncio
import contextlib
import functools
import http
import logging
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

from fedstack.errors import AddressError
from fedstack.foundations.deadline import Deadline
from fedstack.observe.observers import Subscription, add_observer
from fedstack.observe.telemetry import Metrics
from fedstack.observe.telemetry_spans import PrometheusMetricReader, SdkMeterProvider
from fedstack.service.host.config import HostConfig
from fedstack.service.host.listening import check_free, dialled
from fedstack.transport.peers.daemon_threads import start_daemon

try:
    import prometheus_client
except ImportError as error:
    raise ImportError('The metrics page needs prometheus_client: pip install "fedstack[metrics]"') from error

PATH = "/metrics"
# The total time that a client may take to send its request and read the answer.
SECONDS = 10.0
MOST_CONNECTIONS = 32
MOST_REQUEST_BYTES = 16 * 1024
# All versions of Prometheus accept this format.
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN = "Content-Type: text/plain; charset=utf-8"
_logger = logging.getLogger(__name__)


class PageServer:
    """Serves a single page, `/metrics`, over HTTP.

    Args:
      make: Creates the content of the page.
      content_type: The content type of the page.
      host: The name or address to listen on.
      port: The port; 0 for any free port.
    """

    def __init__(self, make: Callable[[], bytes], content_type: str, host: str, port: int) -> None:
        self._make = make
        self._content_type = content_type
        self._failed = False
        self._address = HostConfig(host=host, port=port).listens
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}  # connections, oldest first
        self._thread: threading.Thread | None = None
        self._end_it: Callable[[], object] = lambda: None
        self._is_over = False
        self._target = ""

    @property
    def url(self) -> str:
        """The URL of the page, once the server has started."""
        return f"http://{self._target}{PATH}"

    def start(self) -> None:
        """Starts the server, and returns when clients can request the page.

        Raises:
          AddressError: If the server cannot listen on its address.
          ResourceLimitError: If the server's thread cannot be started.
        """
        check_free(self._address)
        started: futures.Future[None] = futures.Future()
        self._thread = start_daemon(lambda: asyncio.run(self._serve(started)), name="fedstack-metrics")
        started.result()

    def stop(self) -> None:
        """Closes all connections and ends the server's thread. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            self._end_it()
            thread.join(SECONDS)

    async def _serve(self, started: "futures.Future[None]") -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._end_it = lambda: loop.call_soon_threadsafe(over.set)
        try:
            server = await asyncio.start_server(
                self._connected, self._address.host, self._address.port, limit=MOST_REQUEST_BYTES
            )
        except OSError as error:  # another process has bound the port since the check
            started.set_exception(AddressError(f"Cannot listen on {self._address}: {error}; choose another port"))
            return
        self._target = dialled(self._address, server.sockets[0].getsockname()[1])
        started.set_result(None)
        await over.wait()
        self._is_over = True
        server.close()
        writers = list(self._open)
        for writer in writers:
            self._end(writer)
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_over:
            writer.transport.abort()
            return
        if len(self._open) >= MOST_CONNECTIONS:
            self._end(next(iter(self._open)))  # serving a page takes milliseconds, so the oldest client is slow
        self._open[writer] = asyncio.create_task(self._converse(reader, writer))

    def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        self._open.pop(writer).cancel()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Errors and delays of a client only end the client's own connection.
            with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                await Deadline(SECONDS).wait(self._answer(reader, writer))
        finally:
            writer.transport.abort()
            self._open.pop(writer, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = ""
        try:
            method, path = _method_and_path(await reader.readuntil(b"\r\n\r\n"))
            status, headers, body = self._page(method, path)
        except (ValueError, asyncio.LimitOverrunError):
            status, headers, body = 400, [_PLAIN], b"This is no request for a page.\n"
        first = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}"
        head = "\r\n".join([first, f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""])
        writer.write(head.encode("ascii") + (b"" if method == "HEAD" else body))
        await writer.drain()
        writer.write_eof()
        while await reader.read(MOST_REQUEST_BYTES):  # wait until the client closes, as an abort could lose content
            pass

    def _page(self, method: str, path: str) -> tuple[int, list[str], bytes]:
        if method not in ("GET", "HEAD"):
            return 405, [_PLAIN, "Allow: GET, HEAD"], b"This page can only be read.\n"
        if path != PATH:
            return 404, [_PLAIN], f"The only page of this server is {PATH}\n".encode()
        try:
            page = self._make()
        except Exception:
            if not self._failed:  # repeated requests must not fill the disk
                _logger.warning("Could not create the metrics page", exc_info=True)
            self._failed = True
            return 500, [_PLAIN], b"The page could not be made; the log says why.\n"
        self._failed = False
        return 200, [f"Content-Type: {self._content_type}"], page


def _method_and_path(head: bytes) -> tuple[str, str]:
    """Returns the method and the path of a request. The rest of the request is ignored.

    Raises:
      ValueError: If the bytes are not an HTTP/1 request.
    """
    first, *headers = head.decode("ascii").rstrip().split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1.") or not all(":" in header for header in headers):
        raise ValueError(f"Expected an HTTP/1 request, found {first!r}")
    return method, target.partition("?")[0]


class MetricsPage:
    """A context manager that serves the metrics page, and observes the process to collect the metrics.

    Args:
      host: The name or address to listen on.
      port: The port; 0 for any free port.

    Raises:
      AddressError: On entering, if the page's server cannot listen on the address.
      ResourceLimitError: On entering, if the threads cannot be started.
    """

    def __init__(self, host: str, port: int) -> None:
        registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
        self._provider = SdkMeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        self._metrics = Metrics(self._provider.get_meter("fedstack"))
        make = functools.partial(prometheus_client.generate_latest, registry)
        self._server = PageServer(make, _CONTENT_TYPE, host, port)
        self._subscription: Subscription | None = None

    @property
    def url(self) -> str:
        """The URL of the page."""
        return self._server.url

    def __enter__(self) -> "MetricsPage":
        self._server.start()
        self._subscription = add_observer(self._metrics)
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.stop()
        if self._subscription is not None:
            self._subscription.remove()
        self._provider.shutdown()
