"""The benchmarks run, in their smallest sizes. Nothing is said about speed."""

import json
import math
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.harness import TINY, Measurement, compare
from benchmarks.workloads import WORKLOADS, Workload

pytestmark = pytest.mark.long
# What needs a cluster runs in tests/engines.
HERE = [workload for workload in WORKLOADS if workload.name != "ray"]


@pytest.mark.parametrize("workload", HERE, ids=lambda workload: workload.name)
def test_a_workload_yields_measurements(workload: Workload) -> None:
    measurements = list(workload.run(TINY))
    assert measurements
    for measurement in measurements:
        assert isinstance(measurement, Measurement)
        assert measurement.floor is None or math.isfinite(measurement.floor)
        assert report.line(measurement)


def test_floor_and_subject_take_turns() -> None:
    calls: list[str] = []
    measurement = compare("turns", calls.append, calls.append, TINY, times=1e9, prepare=iter("abcd").__next__)
    assert calls == ["a", "b", "c", "d"]
    assert measurement.details["turns"] == 1
    assert measurement.limit == 1e9 * (measurement.floor or 0)


def test_a_miss_gets_a_second_try() -> None:
    assert compare("miss", lambda: None, lambda: None, TINY, seconds=0.0).details["turns"] == 2


def test_a_limit_says_how_much_of_it_is_used() -> None:
    assert Measurement("half", 1.0, None, 2.0).used == 0.5
    assert Measurement("none allowed, none found", 0.0, None, 0.0).used == 0.0
    assert Measurement("none allowed, one found", 1.0, None, 0.0).used == float("inf")
    assert "missed" in report.line(Measurement("too slow", 3.0, 1.0, 2.0))


def test_results_are_written_as_json(tmp_path: Path) -> None:
    path = report.write([Measurement("x", 3.0, 2.0, 4.0, details={"turns": 5})], tmp_path / "new" / "results.json")
    (written,) = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    assert (written["ratio"], written["used"], written["turns"]) == (1.5, 0.75, 5)
