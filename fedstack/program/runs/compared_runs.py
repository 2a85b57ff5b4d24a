"""Compares two runs: the first round that differs, and what differs in it."""

import json
from collections.abc import Mapping
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.foundations.value_text import describe, shorten
from fedstack.program.runs.found_runs import FoundRun
from fedstack.program.runs.run import KEY, STATES
from fedstack.program.runs.run_record import differing_settings
from fedstack.program.states.file_program_state_manager import PREFIX
from fedstack.program.states.state_file import read_state


@attrs.frozen
class Difference:
    """A value that differs between two runs.

    Attributes:
      name: The name of the value.
      text: Both values, or what they are.
      largest: The largest absolute difference of two numbers; `None` if the values are no numbers of one shape.
    """

    name: str
    text: str
    largest: float | None


@attrs.frozen
class ComparedRuns:
    """What differs between two runs.

    Attributes:
      settings: The seed and the parameters that differ, as texts with both values.
      rounds: The number of the last round of each.
      metrics_round: The first round whose metrics differ; `None` if none does.
      metrics: What differs in it.
      state_version: The first version of the state kept by both that differs; `None` if none does.
      state: What differs in it.
      versions: The versions that were compared.
    """

    settings: list[str]
    rounds: tuple[int, int]
    metrics_round: int | None
    metrics: list[Difference]
    state_version: int | None
    state: list[Difference]
    versions: list[int]

    @property
    def are_the_same(self) -> bool:
        """Whether no round that both have differs."""
        return self.metrics_round is None and self.state_version is None


def compare_runs(one: FoundRun, other: FoundRun) -> ComparedRuns:
    """Compares the rounds that two runs both have, in their bits.

    Raises:
      ProgramStateError: If a state is damaged or cannot be read.
    """
    rounds = (one.rounds, other.rounds)
    metrics_round, metrics = _first_metrics(one, other, min(rounds))
    state_version, state, versions = None, list[Difference](), list[int]()
    for version in sorted(set(one.versions) & set(other.versions)):
        versions.append(version)
        left, right = (read_state(run.folder / STATES / f"{PREFIX}{version}").values for run in (one, other))
        if state := _differences(left, right):
            state_version = version
            break
    settings = differing_settings(one.record, other.record)
    return ComparedRuns(settings, rounds, metrics_round, metrics, state_version, state, versions)


def _first_metrics(one: FoundRun, other: FoundRun, last: int) -> tuple[int | None, list[Difference]]:
    left, right = ({cast(int, row[KEY]): row for row in run.rows if isinstance(row[KEY], int)} for run in (one, other))
    for number in sorted({*left, *right}):
        if number <= last and (found := _differences(left.get(number, {}), right.get(number, {}))):
            return number, found
    return None, []


def _differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[Difference]:
    found: list[Difference] = []
    for name in dict.fromkeys([*one, *other]):
        if name not in one or name not in other:
            found.append(Difference(name or "the value", f"only in the {'first' if name in one else 'second'}", None))
        elif (difference := _difference(name or "the value", one[name], other[name])) is not None:
            found.append(difference)
    return found


def _difference(name: str, one: object, other: object) -> Difference | None:
    left, right = _numbers(one), _numbers(other)
    if left is None or right is None or (left.shape, left.dtype) != (right.shape, right.dtype):
        same = type(one) is type(other) and _text(one) == _text(other)
        return None if same else Difference(name, f"{_text(one)} / {_text(other)}", None)
    if left.tobytes() == right.tobytes():
        return None
    wide = np.dtype({"c": "clongdouble", "V": "float64"}.get(left.dtype.kind, "longdouble"))
    x, y = left.astype(wide), right.astype(wide)
    with np.errstate(invalid="ignore"):
        apart = np.where((x == y) | ((x != x) & (y != y)), 0, np.abs(x - y))  # infinity, or NaN, in both
    text = f"{_text(one)} / {_text(other)}" if left.ndim == 0 else describe(one)
    return Difference(name, text, float(np.max(apart)))


def _numbers(value: object) -> "NDArray[Any] | None":
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(cast("NDArray[Any]", value))
        return array if array.dtype.kind in "biufcV" else None
    if isinstance(value, (bool, float, complex)) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return np.asarray(value)
    if isinstance(value, list):  # an array in a row of metrics
        array = np.asarray(cast("list[Any]", json.loads(json.dumps(value))), object)
        return array.astype(float) if all(type(one) in (int, float) for one in array.flat) else None
    return None


def _text(value: object) -> str:
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        return f"{describe(array)} {shorten(array.tolist())}"
    return shorten(cast("np.generic", value).item() if isinstance(value, np.generic) else value)
