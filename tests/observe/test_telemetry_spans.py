"""The spans that OpenTelemetry gets: their nesting, and how those of a worker join those of its caller."""

import subprocess
import sys
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode

import fedstack
from fedstack.errors import TypeMismatchError
from fedstack.observe import (
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
    WorkerReady,
    export_to_opentelemetry,
)
from fedstack.observe import telemetry_spans as module
from fedstack.observe.observers import observers
from fedstack.observe.telemetry_spans import TelemetrySpans

CALL = "0123456789abcdef"
IDS: dict[str, Any] = {"trace": CALL, "call": CALL}


class Tracing:
    """A process that exports spans into memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.observer = TelemetrySpans(self.provider.get_tracer("test"))

    def tell(self, *events: Event) -> dict[str, ReadableSpan]:
        for event in events:
            self.observer.observe(event)
        return self.spans()

    def spans(self) -> dict[str, ReadableSpan]:
        """Returns those that have ended, by their names."""
        return {span.name: span for span in self._exporter.get_finished_spans()}


def phase(span: str, parent: str, worker: str = "", error: str = "") -> tuple[PhaseStarted, PhaseEnded]:
    known: dict[str, Any] = {
        **IDS,
        "parent": parent,
        "phase": span,
        "functions": f"f{span[-1]}",
        "first_client": 0,
        "clients": 3,
        "worker": worker,
    }
    return PhaseStarted(**known, time=2.0), PhaseEnded(**known, time=3.0, seconds=1.0, bytes_sent=7, error=error)


BEGIN = CallStarted(**IDS, time=1.0, computation="train")
END = CallEnded(**IDS, time=4.0, computation="train", clients=3, seconds=3.0)
ONE, TWO, THREE = (f"{number:016x}" for number in (1, 2, 3))


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def test_a_phase_is_a_span_in_that_of_its_call() -> None:
    begin, end = phase(ONE, CALL)
    spans = Tracing().tell(BEGIN, begin, end, END)
    call, inner = spans["train"], spans["f1"]
    assert call.parent is None
    assert parent_of(inner) == call.context.span_id == int(CALL, 16)
    assert inner.context.trace_id == call.context.trace_id
    assert (call.start_time, call.end_time) == (1_000_000_000, 4_000_000_000)
    assert inner.attributes is not None
    assert {name: inner.attributes[f"fedstack.{name}"] for name in ("clients", "bytes_sent", "functions")} == {
        "clients": 3,
        "bytes_sent": 7,
        "functions": "f1",
    }


def test_what_a_worker_exports_joins_what_its_caller_exports() -> None:
    whole, whole_end = phase(ONE, CALL)
    part, part_end = phase(TWO, ONE, worker="a:1")
    there, there_end = phase(THREE, TWO)
    at_caller = Tracing().tell(BEGIN, whole, part, part_end, whole_end, END)
    at_worker = Tracing().tell(there, there_end)
    assert parent_of(at_worker["f3"]) == at_caller["f2"].context.span_id
    assert parent_of(at_caller["f2"]) == at_caller["f1"].context.span_id
    assert len({span.context.trace_id for span in [*at_caller.values(), *at_worker.values()]}) == 1
    kinds = [spans[name].kind for spans, name in ((at_caller, "f1"), (at_caller, "f2"), (at_worker, "f3"))]
    assert kinds == [SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.SERVER]


def test_other_tracers_of_the_same_provider_keep_their_ids() -> None:
    tracing = Tracing()
    tracing.tell(BEGIN, END)
    with tracing.provider.get_tracer("other").start_as_current_span("theirs"):
        pass
    assert tracing.spans()["theirs"].context.trace_id != tracing.spans()["train"].context.trace_id


def test_an_error_is_the_status_of_its_span() -> None:
    begin, end = phase(ONE, CALL, error="LeafError")
    spans = Tracing().tell(BEGIN, begin, end, END)
    assert (spans["f1"].status.status_code, spans["f1"].status.description) == (StatusCode.ERROR, "LeafError")
    assert spans["train"].status.status_code is StatusCode.UNSET


def test_what_happens_in_a_span_is_an_event_of_it() -> None:
    here: dict[str, Any] = {**IDS, "parent": CALL, "time": 2.0}
    spans = Tracing().tell(
        BEGIN,
        CallRetried(**here, attempt=1, pause=0.5, error="E"),
        Folded(**here, what="federated_sum", clients=3, seconds=0.5),
        LeafLoaded(**here, name="f", carrier="c", seconds=0.5),
        LeafCompiled(**here, name="f", seconds=0.5, from_cache=False),
        WorkCancelled(**here),
        WorkCancelled(),
        WorkerReady(worker="w"),
        END,
    )
    names = ["retry", "fold", "function loaded", "function compiled", "work cancelled"]
    assert [event.name for event in spans["train"].events] == names
    assert spans["train"].events[0].attributes is not None
    assert spans["train"].events[0].attributes["fedstack.error"] == "E"
    assert set(spans) == {"train"}


def test_a_call_ends_the_spans_that_are_open_in_it() -> None:
    begin, end = phase(ONE, CALL)
    tracing = Tracing()
    assert set(tracing.tell(BEGIN, begin, END, end)) == {"f1", "train"}


def test_spans_that_nothing_ends_are_bounded_and_end_with_the_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_OPEN", 2)
    tracing = Tracing()
    tracing.tell(*(phase(span, CALL)[0] for span in (ONE, TWO, THREE)))
    assert set(tracing.spans()) == {"f1"}
    tracing.observer.close()
    assert set(tracing.spans()) == {"f1", "f2", "f3"}


def test_a_tracer_that_records_nothing_does_no_harm() -> None:
    observer = TelemetrySpans(NoOpTracer())
    for event in (BEGIN, *phase(ONE, CALL), *phase(THREE, TWO), END):
        observer.observe(event)


def test_a_run_is_spans_of_the_global_provider_or_the_one_that_is_given() -> None:
    @fedstack.python_computation(np.int32, np.int32)
    def double(value: int) -> int:
        return 2 * value

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def twice(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(double, values))

    tracing = Tracing()
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        with export_to_opentelemetry(MeterProvider(), tracing.provider):
            twice([1, 2])
        with export_to_opentelemetry():
            twice([1, 2])
    spans = tracing.spans()
    assert set(spans) == {"twice", "double"}
    assert parent_of(spans["double"]) == spans["twice"].context.span_id
    assert trace.get_current_span().get_span_context().trace_id == 0


@pytest.mark.parametrize("wrong", [3, 0, "otlp", TracerProvider, NoOpTracer()])
def test_what_is_no_provider_is_refused_at_the_call(wrong: Any) -> None:
    before = observers.present
    for kind in ("meter", "tracer"):
        with pytest.raises(TypeMismatchError) as caught:
            export_to_opentelemetry(**{f"{kind}_provider": wrong})
        assert str(caught.value) == (
            f"Expected a {kind} provider with a method get_{kind}, found {wrong!r}; pass an instance of the "
            f"OpenTelemetry class {kind.capitalize()}Provider as {kind}_provider, or omit the argument to use the "
            "global provider"
        )
    assert observers.present == before


def test_providers_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(TypeMismatchError, match="Expected a meter provider"):
        export_to_opentelemetry(TracerProvider(), MeterProvider())  # type: ignore[arg-type]


def test_without_opentelemetry_an_error_names_the_extra() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
import fedstack.observe
try:
    fedstack.observe.export_to_opentelemetry()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == 'OpenTelemetry is not installed; install it with: pip install "fedstack[metrics]"\n'
