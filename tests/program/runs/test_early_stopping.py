"""When a run stops by a rule: the same round, whether it is asked each round or once, killed or not."""

import asyncio
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstack.errors import InvalidValueError
from fedstack.program import EarlyStopping, Run


def rows(*losses):
    return [{"round": number, "loss": loss} for number, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("losses", "options", "stops"),
    [
        ((3, 2, 1), {"patience": 1}, False),
        ((3, 2, 2), {"patience": 1}, True),
        ((3, 2, 2), {"patience": 0}, True),
        ((3, 2, 2), {"patience": 2}, False),
        ((3, 2, 2.5, 1.9, 2, 2), {"patience": 2}, True),
        ((3, 2, 2.5, 1.9, 2), {"patience": 2}, False),
        ((3, 2.9, 2.8), {"patience": 2, "min_delta": 0.5}, True),
        ((3, 2.5), {"patience": 1, "min_delta": 0.5}, True),
        ((0.1, 0.2, 0.3), {"patience": 1, "mode": "max"}, False),
        ((0.1, 0.2, 0.2), {"patience": 1, "mode": "max"}, True),
        ((0.1, 0.2, 0.25), {"patience": 1, "mode": "max", "min_delta": 0.1}, True),
        ((math.nan, 1, 0.5), {"patience": 2}, False),
        ((1, math.nan, 0.5), {"patience": 2}, False),
        ((1, math.nan, math.nan), {"patience": 2}, True),
        ((1, None, None, None), {"patience": 2}, False),
        ((1, None, 1, None, 1), {"patience": 2}, True),
        ((math.inf, math.inf, 5), {"patience": 2}, False),
        ((), {"patience": 0}, False),
    ],
)
def test_a_run_stops_when_so_many_values_were_no_better(losses, options, stops) -> None:
    assert EarlyStopping("loss", **options).should_stop(rows(*losses)) is stops


values = st.one_of(st.none(), st.integers(-3, 3), st.floats(width=16))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(values, max_size=12), st.integers(0, 4), st.sampled_from([0.0, 0.5, 2.0]), st.sampled_from(["min", "max"])
)
def test_asking_each_round_and_asking_once_agree(losses, patience, min_delta, mode) -> None:
    stopping = EarlyStopping("loss", patience=patience, min_delta=min_delta, mode=mode)
    each = [stopping.should_stop(rows(*losses[:count])) for count in range(len(losses) + 1)]
    assert each == sorted(each)  # once a run should have stopped, later rows change nothing
    assert stopping.should_stop(rows(*losses)) == any(each)
    best, waited, expected = None, 0, False
    for value in losses:  # as it is when the rule is told of one value at a time
        if value is None or expected:
            continue
        better = value < math.inf if best is None else False
        if not math.isnan(value):
            change = 0 if best is None else best - value if mode == "min" else value - best
            better = best is None or (value + min_delta < best if mode == "min" else value - min_delta > best)
            assert not better or best is None or change > 0
        best, waited = (value, 0) if better and not math.isnan(value) else (best, waited + 1)
        expected = waited >= max(patience, 1)
    assert any(each) == expected


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="Expected 'min' or 'max' as mode, found str 'auto'"):
        EarlyStopping("loss", patience=1, mode="auto")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="Expected patience"):
        EarlyStopping("loss", patience=-1)
    with pytest.raises(InvalidValueError, match="Expected min_delta"):
        EarlyStopping("loss", patience=1, min_delta=-0.1)
    for wrong in ("high", [1, 2], True):
        with pytest.raises(InvalidValueError, match="Expected numbers as the metric 'loss', found"):
            EarlyStopping("loss", patience=1).should_stop(rows(wrong))


def test_a_metric_that_no_round_has_is_told_once(caplog) -> None:
    stopping = EarlyStopping("los", patience=1)
    assert not stopping.should_stop([])
    assert not caplog.messages
    for number in (1, 2):
        assert not stopping.should_stop([{"round": one, "loss": 1.0} for one in range(number)])
    (warning,) = caplog.messages
    assert "No round so far has the metric 'los'" in warning
    assert "the rounds have loss, round" in warning


LOSSES = [5.0, 4.0, 4.5, 3.0, 3.5, math.nan, 2.0, 1.0, 0.5]


async def train(folder: Path, killed_after: int = 99) -> int:
    stopping = EarlyStopping("loss", patience=2)
    with Run(folder, keep_total=0) as run:
        _, last = await run.states.load_latest(0)
        for number in range(last + 1, len(LOSSES) + 1):
            if stopping.should_stop(run.metrics.rows(before=number)):
                break
            await run.metrics.release({"loss": LOSSES[number - 1]}, number)
            await run.states.save(number, number)
            if number == killed_after:
                break
    return (await run.states.get_versions() or [0])[-1]


@pytest.mark.parametrize("killed_after", range(1, 8))
def test_a_run_that_goes_on_stops_at_the_same_round(tmp_path: Path, killed_after: int) -> None:
    assert asyncio.run(train(tmp_path / "undisturbed")) == 6
    asyncio.run(train(tmp_path / "resumed", killed_after))
    assert asyncio.run(train(tmp_path / "resumed")) == 6


def test_a_run_that_goes_on_from_an_older_state_stops_at_the_same_round(tmp_path: Path) -> None:
    assert asyncio.run(train(tmp_path)) == 6
    for version in (4, 5, 6):
        (tmp_path / "states" / f"program_state_{version}").unlink()
    assert asyncio.run(train(tmp_path)) == 6
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 7
