"""Exports calls and phases as OpenTelemetry spans. Only this module imports OpenTelemetry, which is optional.

The ids of spans are derived from those of the events. The spans of a caller and of its workers therefore belong to one
trace, although no OpenTelemetry context is sent between the processes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fedstack.observe.client_events import ClientFailed, ClientsRetried, ClientsTakenOver
from fedstack.observe.events import (
    CallEnded,
    CallRetried,
    CallStarted,
    Event,
    Folded,
    LeafCompiled,
    LeafLoaded,
    PhaseEnded,
    PhaseStarted,
    WorkCancelled,
)
from fedstack.observe.observers import Observer
from fedstack.observe.trace_file import facts_of

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.prometheus import PrometheusMetricReader as PrometheusMetricReader
    from opentelemetry.metrics import Meter as Meter
    from opentelemetry.metrics import MeterProvider as MeterProvider
    from opentelemetry.metrics import get_meter_provider as get_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider  # pyright: ignore[reportUnusedImport]  # for the page of metrics
    from opentelemetry.trace import (
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        Tracer,
        set_span_in_context,
    )
    from opentelemetry.trace import TracerProvider as TracerProvider
    from opentelemetry.trace import get_tracer_provider as get_tracer_provider
except ImportError as error:
    raise ImportError('OpenTelemetry is not installed; install it with: pip install "fedstack[metrics]"') from error

__all__ = ["SdkMeterProvider"]

# The maximum number of open spans. Beyond it, the oldest spans are ended, since their ended events may never occur.
_MOST_OPEN = 10_000


@attrs.define
class _GivenIds:
    """An id generator that returns the ids of an event instead of random ids."""

    trace: int = 0
    span: int = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span

    def is_trace_id_random(self) -> bool:
        return True  # the trace id is derived from a random id


@attrs.frozen
class _Open:
    span: Span
    call: str


class TelemetrySpans(Observer):
    """Creates a span for each call and each phase.

    Args:
      tracer: A tracer that has no other users. If it belongs to the OpenTelemetry SDK, its id generator is replaced.
        With any other tracer, the spans of each process form separate traces.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer: Any = tracer
        self._ids = _GivenIds()
        self._gives_ids = hasattr(tracer, "id_generator")
        if self._gives_ids:
            self._tracer.id_generator = self._ids
        self._open: dict[str, _Open] = {}
        self._of: Mapping[type[Event], Callable[[Any], None]] = {
            CallStarted: lambda e: self._begin(e, e.call, e.computation or "call", SpanKind.INTERNAL),
            CallEnded: self._call_ended,
            PhaseStarted: self._phase_started,
            PhaseEnded: lambda e: self._end(e, e.phase),
            CallRetried: lambda e: self._note(e, "retry"),
            ClientFailed: lambda e: self._note(e, "client failed"),
            ClientsRetried: lambda e: self._note(e, "clients retried"),
            ClientsTakenOver: lambda e: self._note(e, "clients taken over"),
            Folded: lambda e: self._note(e, "fold"),
            LeafLoaded: lambda e: self._note(e, "function loaded"),
            LeafCompiled: lambda e: self._note(e, "function compiled"),
            WorkCancelled: lambda e: self._note(e, "work cancelled"),
        }

    def observe(self, event: Event) -> None:
        make = self._of.get(type(event))
        if make is not None and event.trace:
            make(event)

    def close(self) -> None:
        """Ends all open spans."""
        for begun in self._open.values():
            begun.span.end()
        self._open.clear()

    def _phase_started(self, event: PhaseStarted) -> None:
        at_caller = SpanKind.CLIENT if event.worker else SpanKind.INTERNAL
        kind = at_caller if event.parent in self._open else SpanKind.SERVER
        self._begin(event, event.phase, event.functions or "phase", kind)

    def _begin(self, event: CallStarted | PhaseStarted, span: str, name: str, kind: SpanKind) -> None:
        self._ids.trace, self._ids.span = _trace_id(event.trace), int(span, 16)
        begun = self._tracer.start_span(
            name, self._context_of(event), kind, _attributes(event), start_time=_nanos(event.time)
        )
        self._open[span] = _Open(begun, event.call)
        if len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open))).span.end()

    def _context_of(self, event: Event) -> Context:
        if event.parent in self._open:
            return set_span_in_context(self._open[event.parent].span, Context())
        if not (event.parent and self._gives_ids):
            return Context()
        remote = SpanContext(
            _trace_id(event.trace), int(event.parent, 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )
        return set_span_in_context(NonRecordingSpan(remote), Context())

    def _call_ended(self, event: CallEnded) -> None:
        inside = [span for span, begun in self._open.items() if begun.call == event.call and span != event.call]
        for span in inside:
            self._open.pop(span).span.end(_nanos(event.time))
        self._end(event, event.call)

    def _end(self, event: CallEnded | PhaseEnded, span: str) -> None:
        begun = self._open.pop(span, None)
        if begun is None:
            return
        begun.span.set_attributes(_attributes(event))
        if event.error:
            begun.span.set_status(Status(StatusCode.ERROR, event.error))
        begun.span.end(_nanos(event.time))

    def _note(self, event: Event, name: str) -> None:
        begun = self._open.get(event.parent)
        if begun is not None:
            begun.span.add_event(name, _attributes(event), _nanos(event.time))


def _trace_id(trace: str) -> int:
    """Returns an OpenTelemetry trace id, which is twice as long as the trace id of an event."""
    return int(trace * 2, 16)


def _nanos(seconds: float) -> int:
    return round(seconds * 1e9)


def _attributes(event: Event) -> dict[str, Any]:
    return {f"fedstack.{name}": value for name, value in facts_of(event).items()}
