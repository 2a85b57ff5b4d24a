"""Brings what happens to OpenTelemetry: metrics to a meter provider, spans to a tracer provider."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from fedstack._version import __version__
from fedstack.errors import TypeMismatchError
from fedstack.observe.events import Event
from fedstack.observe.observers import Observer, Subscription, add_observer

if TYPE_CHECKING:
    from fedstack.observe.telemetry_api import MeterProvider, TracerProvider

_P = TypeVar("_P")


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
      TypeMismatchError: If a provider is none.
    """
    from fedstack.observe.metrics import Metrics
    from fedstack.observe.telemetry_api import get_meter_provider, get_tracer_provider
    from fedstack.observe.telemetry_spans import TelemetrySpans

    meters = _provider(meter_provider, "meter", get_meter_provider)
    tracers = _provider(tracer_provider, "tracer", get_tracer_provider)
    meter, tracer = meters.get_meter("fedstack", __version__), tracers.get_tracer("fedstack", __version__)
    return add_observer(_Telemetry(Metrics(meter), TelemetrySpans(tracer)))


def _provider(given: _P | None, kind: str, get_global: Callable[[], _P]) -> _P:
    """Returns the provider that is given, or else the global one.

    Raises:
      TypeMismatchError: If it cannot provide that.
    """
    if given is None:
        return get_global()
    if isinstance(given, type) or not callable(getattr(given, f"get_{kind}", None)):
        raise TypeMismatchError(
            f"Expected a {kind} provider, with a method get_{kind}, found {given!r}; give an instance of "
            f"{kind.capitalize()}Provider of OpenTelemetry as {kind}_provider, or nothing for the global one"
        )
    return given
