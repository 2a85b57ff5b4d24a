"""What OpenTelemetry gets to count: events go in, and an exporter in memory has the numbers."""

import threading
from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import fedstack
from fedstack.observe import (
    CallEnded,
    CallRetried,
    CallStarted,
    ClientsChanged,
    Event,
    Folded,
    LeafCompiled,
    LeafLoaded,
    LoopStalled,
    Observer,
    PhaseEnded,
    RpcEnded,
    SessionClosed,
    SessionOpened,
    WorkCancelled,
    WorkerLost,
    WorkerReady,
    add_observer,
    export_to_opentelemetry,
)
from fedstack.observe import observers as observers_module
from fedstack.observe.observers import observers
from fedstack.observe.telemetry import Metrics

Numbers = dict[str, dict[tuple[str, ...], Any]]


class Meters:
    """A provider of meters, and what they have counted."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader])

    def told(self, *events: Event) -> Numbers:
        observer = Metrics(self.provider.get_meter("test"))
        for event in events:
            observer.observe(event)
        return self.numbers()

    def numbers(self) -> Numbers:
        """Returns the values of each metric by those of its labels; of histograms, count and sum."""
        data = self._reader.get_metrics_data()
        return {
            metric.name.removeprefix("fedstack."): {
                tuple(str(value) for _, value in sorted((point.attributes or {}).items())): (
                    (point.count, point.sum) if hasattr(point, "count") else point.value
                )
                for point in metric.data.data_points
            }
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def meters() -> Iterator[Meters]:
    found = Meters()
    yield found
    found.provider.shutdown()


def test_each_event_is_counted(meters: Meters) -> None:
    phase: dict[str, Any] = {"phase": "p", "functions": "f", "first_client": 0, "clients": 3}
    found = meters.told(
        CallStarted(computation="train"),
        CallStarted(computation="train"),
        CallRetried(attempt=1, pause=0.0, error="LostWorkersError"),
        ClientsChanged(expected=3, started=3, done=1, failed=1, given_up=1),
        PhaseEnded(**phase, seconds=0.5),
        PhaseEnded(**phase, seconds=0.25, worker="a:1", bytes_sent=10, bytes_received=20),
        Folded(what="federated_sum", clients=3, seconds=0.125),
        CallEnded(computation="train", clients=3, seconds=2.0),
        CallEnded(computation="train", clients=3, seconds=1.0, error="LeafError"),
        WorkerReady(worker="a:1"),
        WorkerLost(worker="a:1", error="E", reason="gone"),
        SessionOpened(session="s", clients=1),
        SessionOpened(session="t", clients=1),
        SessionClosed(session="s", reason="disposed"),
        LeafLoaded(name="f", carrier="python", seconds=0.5),
        LeafCompiled(name="f", seconds=0.25, from_cache=False),
        LeafCompiled(name="g", seconds=0.125, from_cache=True),
        WorkCancelled(),
        LoopStalled(seconds=0.5),
        RpcEnded(method="a.b/C", code="OK", seconds=0.5, bytes_received=1, bytes_sent=2),
        RpcEnded(method="a.b/C", code="CANCELLED", seconds=0.5, bytes_received=1, bytes_sent=2),
    )
    assert found == {
        "calls": {("train", "ok"): 1, ("train", "LeafError"): 1},
        "calls.running": {(): 0},
        "call.duration": {("train",): (2, 3.0)},
        "retries": {("LostWorkersError",): 1},
        "clients": {("done",): 1, ("failed",): 1, ("given_up",): 1},
        "phase.duration": {("f",): (1, 0.5)},
        "worker.phase.duration": {("a:1",): (1, 0.25)},
        "worker.sent": {("a:1",): 10},
        "worker.received": {("a:1",): 20},
        "fold.duration": {("federated_sum",): (1, 0.125)},
        "workers.lost": {("a:1",): 1},
        "workers.ready": {("a:1",): 1},
        "sessions.open": {(): 1},
        "sessions.closed": {("disposed",): 1},
        "function.load.duration": {("python",): (1, 0.5)},
        "function.compile.duration": {("false",): (1, 0.25), ("true",): (1, 0.125)},
        "work.abandoned": {(): 1},
        "loop.stall.duration": {(): (1, 0.5)},
        "rpcs": {("OK", "a.b/C"): 1, ("CANCELLED", "a.b/C"): 1},
        "rpc.duration": {("a.b/C",): (2, 1.0)},
        "rpc.received": {("a.b/C",): 2},
        "rpc.sent": {("a.b/C",): 4},
    }


class Later(WorkerReady):
    """An event of a later release."""


def test_an_event_that_is_not_known_is_not_counted(meters: Meters) -> None:
    assert meters.told(Later(worker="a")) == {}


def test_a_label_has_a_hundred_values_and_other_for_the_rest(meters: Meters) -> None:
    names = [f"f{number}" for number in range(150)]
    found = meters.told(*(CallEnded(computation=name, clients=0, seconds=1.0) for name in [*names, "f0", "f149"]))
    assert len(found["calls"]) == 101
    assert found["calls"]["f0", "ok"] == 2
    assert found["calls"]["other", "ok"] == 51


def test_events_that_any_observer_misses_are_counted(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers_module, "_MOST_WAITING", 2)
    begun, gate = threading.Event(), threading.Event()

    class Slow(Observer):
        def observe(self, event: Event) -> None:
            begun.set()
            assert gate.wait(15)

    metrics = Metrics(meters.provider.get_meter("test"))
    with add_observer(Slow()), add_observer(metrics, direct=True):
        observers.tell(WorkCancelled())
        assert begun.wait(15)
        for _ in range(5):
            observers.tell(WorkCancelled())
        assert meters.numbers()["events.dropped"] == {("Slow",): 3}
        gate.set()
    assert Meters().told(WorkCancelled()).get("events.dropped") is None  # those of the time before it


def test_a_name_without_end_is_cut(meters: Meters) -> None:
    [(name, _)] = meters.told(CallEnded(computation="f" * 100_000, clients=0, seconds=1.0))["calls"]
    assert len(name) == 200


def test_a_run_is_counted_until_the_export_ends(meters: Meters) -> None:
    @fedstack.python_computation(np.int32, np.int32)
    def double(value: int) -> int:
        if value < 0:
            raise ValueError("less than nothing")
        return 2 * value

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def twice(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(double, values))

    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        twice([1])
        with export_to_opentelemetry(meters.provider, TracerProvider()):
            assert twice([1, 2, 3]) == 12
            with pytest.raises(fedstack.errors.LeafError):
                twice([-1])
        twice([1])
    found = meters.numbers()
    assert found["calls"] == {("twice", "ok"): 1, ("twice", "LeafError"): 1}
    assert found["calls.running"] == {(): 0}
    assert found["clients"] == {("done",): 3, ("failed",): 1}
    assert found["phase.duration"]["double",][0] == 2
