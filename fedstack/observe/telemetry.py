"""Brings what happens to OpenTelemetry: metrics to a meter provider, spans to a tracer provider."""

from typing import TYPE_CHECKING

from fedstack._version import __version__
from fedstack.observe.events import Event
from fedstack.observe.observers import Observer, Subscription, add_observer

if TYPE_CHECKING:
    from fedstack.observe.telemetry_api import MeterProvider, TracerProvider


class _Telemetry(Observer):
    """Tells several observers, on one thread."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def observe(self, event: Event) -> None:
        for observer in self._observers:
            observer.observe(event)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()


def export_to_opentelemetry(
    meter_provider: "MeterProvider | None" = None, tracer_provider: "TracerProvider | None" = None
) -> Subscription:
    """Gives OpenTelemetry metrics and spans of what happens in this process from now on.

    Spans of a call and of its phases at workers are one trace, if the workers export as well.

    Args:
      meter_provider: Gets the metrics; by default the global one.
      tracer_provider: Gets the spans; by default the global one.

    Returns:
      What ends that, as a context manager or by its method `remove`.

    Raises:
      ImportError: If OpenTelemetry is not installed (extra `metrics`).
    """
    from fedstack.observe.metrics import Metrics
    from fedstack.observe.telemetry_api import get_meter_provider, get_tracer_provider
    from fedstack.observe.telemetry_spans import TelemetrySpans

    meter = (meter_provider or get_meter_provider()).get_meter("fedstack", __version__)
    tracer = (tracer_provider or get_tracer_provider()).get_tracer("fedstack", __version__)
    return add_observer(_Telemetry(Metrics(meter), TelemetrySpans(tracer)))
