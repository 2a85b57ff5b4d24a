"""Exports events to OpenTelemetry, as metrics and as spans."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from fedstack._version import __version__
from fedstack.errors import TypeMismatchError
from fedstack.observe.client_events import ClientsChanged, ClientsRetried
from fedstack.observe.events import (
    CallEnded,
    CallRetried,
    CallStarted,
    Event,
    Folded,
    LeafCompiled,
    LeafLoaded,
    LoopStalled,
    PhaseEnded,
    RpcEnded,
    SessionClosed,
    SessionOpened,
    WorkCancelled,
    WorkerLost,
    WorkerReady,
)
from fedstack.observe.observers import Observer, Subscription, add_observer, observers

if TYPE_CHECKING:
    from fedstack.observe.telemetry_spans import Meter, MeterProvider, TracerProvider

_P = TypeVar("_P")
# The buckets of histograms. The durations of calls and phases span six orders of magnitude.
_SECONDS = (0.0001, 0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_MOST_NAMES = 100
_MAX_NAME = 200
OTHER = "other"


class Names:
    """The values of a label: a limited number of distinct names, and `other` for all further names."""

    def __init__(self, most: int = _MOST_NAMES) -> None:
        self._known: set[str] = set()
        self._most = most

    def __call__(self, name: str) -> str:
        name = name[:_MAX_NAME]
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name


class Metrics(Observer):
    """Records events with the instruments of a meter.

    Args:
      meter: The meter that creates the instruments. Their names begin with `fedstack.`.
    """

    def __init__(self, meter: "Meter") -> None:
        self._meter = meter
        self._names: dict[str, Names] = {}
        self._calls = meter.create_counter("fedstack.calls", "{call}", "Completed calls of computations.")
        self._calls_running = meter.create_up_down_counter("fedstack.calls.running", "{call}", "Calls in progress.")
        self._call_seconds = self._seconds("fedstack.call.duration", "Duration of calls of computations.")
        self._retries = meter.create_counter(
            "fedstack.retries", "{attempt}", "Calls, and parts of phases, that were retried."
        )
        self._clients = meter.create_counter("fedstack.clients", "{client}", "Clients that have ended.")
        self._phase_seconds = self._seconds("fedstack.phase.duration", "Duration of phases in this process.")
        self._part_seconds = self._seconds("fedstack.worker.phase.duration", "Duration of phases on workers.")
        self._sent = meter.create_counter("fedstack.worker.sent", "By", "Bytes sent to workers by phases.")
        self._received = meter.create_counter("fedstack.worker.received", "By", "Bytes received from workers.")
        self._fold_seconds = self._seconds("fedstack.fold.duration", "Duration of the last step of aggregations.")
        self._lost = meter.create_counter("fedstack.workers.lost", "{worker}", "Workers that were lost.")
        self._ready = meter.create_counter("fedstack.workers.ready", "{worker}", "Workers that became ready.")
        self._sessions = meter.create_up_down_counter("fedstack.sessions.open", "{session}", "Open sessions.")
        self._sessions_closed = meter.create_counter("fedstack.sessions.closed", "{session}", "Closed sessions.")
        self._load_seconds = self._seconds("fedstack.function.load.duration", "Duration of loading functions.")
        self._compile_seconds = self._seconds("fedstack.function.compile.duration", "Duration of compiling functions.")
        self._abandoned = meter.create_counter(
            "fedstack.work.abandoned", "{call}", "Cancelled functions that still ran."
        )
        self._stall_seconds = self._seconds("fedstack.loop.stall.duration", "How long the event loop was blocked.")
        self._rpcs = meter.create_counter("fedstack.rpcs", "{call}", "Completed RPCs.")
        self._rpc_seconds = self._seconds("fedstack.rpc.duration", "Duration of RPCs.")
        self._rpc_received = meter.create_counter("fedstack.rpc.received", "By", "Bytes received from clients.")
        self._dropped = meter.create_counter("fedstack.events.dropped", "{event}", "Events that observers missed.")
        self._dropped_so_far = dict(observers.dropped)
        self._rpc_sent = meter.create_counter("fedstack.rpc.sent", "By", "Bytes sent to clients.")
        self._of: Mapping[type[Event], Callable[[Any], None]] = {
            CallStarted: lambda _: self._calls_running.add(1),
            CallEnded: self._call_ended,
            CallRetried: lambda e: self._retries.add(1, self._labels(error=e.error)),
            ClientsRetried: lambda e: self._retries.add(1, self._labels(error=e.error)),
            ClientsChanged: self._clients_changed,
            PhaseEnded: self._phase_ended,
            Folded: lambda e: self._fold_seconds.record(e.seconds, self._labels(aggregation=e.what)),
            WorkerLost: lambda e: self._lost.add(1, self._labels(worker=e.worker)),
            WorkerReady: lambda e: self._ready.add(1, self._labels(worker=e.worker)),
            SessionOpened: lambda _: self._sessions.add(1),
            SessionClosed: self._session_closed,
            LeafLoaded: lambda e: self._load_seconds.record(e.seconds, self._labels(carrier=e.carrier)),
            LeafCompiled: self._leaf_compiled,
            WorkCancelled: lambda _: self._abandoned.add(1),
            LoopStalled: lambda e: self._stall_seconds.record(e.seconds),
            RpcEnded: self._rpc_ended,
        }

    def observe(self, event: Event) -> None:
        count = self._of.get(type(event))
        if count is not None:
            count(event)
        if observers.dropped != self._dropped_so_far:
            self._count_dropped(dict(observers.dropped))

    def _count_dropped(self, dropped: dict[str, int]) -> None:
        """Counts the events that were dropped since the previous event."""
        for name, number in dropped.items():
            if new := number - self._dropped_so_far.get(name, 0):
                self._dropped.add(new, self._labels(observer=name))
        self._dropped_so_far = dropped

    def _call_ended(self, event: CallEnded) -> None:
        computation = self._labels(computation=event.computation)
        self._calls_running.add(-1)
        self._calls.add(1, {**computation, **self._labels(outcome=event.error or "ok")})
        self._call_seconds.record(event.seconds, computation)

    def _leaf_compiled(self, event: LeafCompiled) -> None:
        self._compile_seconds.record(event.seconds, {"from_cache": "true" if event.from_cache else "false"})

    def _clients_changed(self, event: ClientsChanged) -> None:
        for outcome, clients in (("done", event.done), ("failed", event.failed), ("given_up", event.given_up)):
            if clients > 0:
                self._clients.add(clients, {"outcome": outcome})

    def _phase_ended(self, event: PhaseEnded) -> None:
        if not event.worker:
            self._phase_seconds.record(event.seconds, self._labels(functions=event.functions))
            return
        worker = self._labels(worker=event.worker)
        self._part_seconds.record(event.seconds, worker)
        self._sent.add(event.bytes_sent, worker)
        self._received.add(event.bytes_received, worker)

    def _session_closed(self, event: SessionClosed) -> None:
        self._sessions.add(-1)
        self._sessions_closed.add(1, self._labels(reason=event.reason))

    def _rpc_ended(self, event: RpcEnded) -> None:
        method = self._labels(method=event.method)
        self._rpcs.add(1, {**method, **self._labels(code=event.code)})
        self._rpc_seconds.record(event.seconds, method)
        self._rpc_received.add(event.bytes_received, method)
        self._rpc_sent.add(event.bytes_sent, method)

    def _labels(self, **values: str) -> dict[str, str]:
        return {label: self._names.setdefault(label, Names())(value) for label, value in values.items()}

    def _seconds(self, name: str, description: str) -> Any:
        return self._meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_SECONDS)


class _Telemetry(Observer):
    """Passes events to several observers, which share one thread."""

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
    """Starts to export metrics and spans of this process to OpenTelemetry.

    If the workers export spans as well, the spans of a call and of its phases on workers belong to one trace.

    Args:
      meter_provider: Receives the metrics. By default, the global meter provider.
      tracer_provider: Receives the spans. By default, the global tracer provider.

    Returns:
      A context manager that ends the export on exit. Its method `remove` ends the export, too.

    Raises:
      ImportError: If OpenTelemetry is not installed (extra `metrics`).
      TypeMismatchError: If an argument is not a provider of the required kind.
    """
    from fedstack.observe.telemetry_spans import TelemetrySpans, get_meter_provider, get_tracer_provider

    meters = _provider(meter_provider, "meter", get_meter_provider)
    tracers = _provider(tracer_provider, "tracer", get_tracer_provider)
    meter, tracer = meters.get_meter("fedstack", __version__), tracers.get_tracer("fedstack", __version__)
    return add_observer(_Telemetry(Metrics(meter), TelemetrySpans(tracer)))


def _provider(given: _P | None, kind: str, get_global: Callable[[], _P]) -> _P:
    """Returns the given provider, or the global provider if `given` is `None`.

    Raises:
      TypeMismatchError: If `given` is not a provider of the required kind.
    """
    if given is None:
        return get_global()
    if isinstance(given, type) or not callable(getattr(given, f"get_{kind}", None)):
        raise TypeMismatchError(
            f"Expected a {kind} provider with a method get_{kind}, found {given!r}; pass an instance of the "
            f"OpenTelemetry class {kind.capitalize()}Provider as {kind}_provider, or omit the argument to use the "
            "global provider"
        )
    return given
