"""Shows metrics of this process to Prometheus. This is the one module that imports `prometheus_client`."""

import functools
from typing import Any

from fedstack.observe.metrics import Metrics
from fedstack.observe.observers import Subscription, add_observer
from fedstack.observe.telemetry_api import PrometheusMetricReader, SdkMeterProvider
from fedstack.service.metrics.page_server import PageServer

try:
    import prometheus_client
except ImportError as error:
    raise ImportError('A page of metrics needs prometheus_client: pip install "fedstack[metrics]"') from error

# Prometheus takes this form whatever it asks for.
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """A page that is served, and the observer that counts what it shows; as a context manager.

    Args:
      host: Name or address to listen at.
      port: The port, 0 for any free one.

    Raises:
      AddressError: When it is entered, if it cannot listen there.
      ResourceLimitError: When it is entered, if there can be no threads for it.
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
        """Where the page is."""
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
