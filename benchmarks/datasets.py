"""Reads datasets of int64 scalars: by themselves, mapped, and in batches, beside bare loops over blocks of them."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import fedstack
from benchmarks.harness import Effort, Measurement, compare
from fedstack.service.data import Dataset

_BLOCK = 1 << 13
_BATCH = 100


def _double(x: Any) -> Any:
    return x * 2


def _blocks(rows: int) -> Iterator[Any]:
    return (np.arange(first, min(first + _BLOCK, rows)) for first in range(0, rows, _BLOCK))


def _mapped(rows: int) -> Iterator[Any]:
    return (np.array([_double(x) for x in block]) for block in _blocks(rows))


def _batched(blocks: Iterable[Any]) -> Iterator[Any]:
    rest = np.empty(0, np.int64)
    for block in blocks:
        rows = np.concatenate([rest, block])
        whole = len(rows) // _BATCH
        yield from rows[: whole * _BATCH].reshape(whole, _BATCH)
        rest = rows[whole * _BATCH :]
    if len(rest):
        yield rest


def _count(elements: Iterable[Any]) -> int:
    return sum(1 for _ in elements)


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures a range, mapped and in batches."""
    rows = effort.pick(1_000, 200_000, 1_000_000)
    double = fedstack.python_computation([np.int64], np.int64)(_double)
    numbers = Dataset.range(rows)
    works: list[tuple[str, Callable[[], Iterable[Any]], Dataset, float]] = [
        ("range", lambda: itertools.chain.from_iterable(map(list, _blocks(rows))), numbers, 1.5),
        ("range → map", lambda: itertools.chain.from_iterable(map(list, _mapped(rows))), numbers.map(double), 1.5),
        ("range → map → batch", lambda: _batched(_mapped(rows)), numbers.map(double).batch(_BATCH), 1.5),
        ("range → batch", lambda: _batched(_blocks(rows)), numbers.batch(_BATCH), 3.0),  # a few ns each
    ]
    for name, floor, dataset, times in works:
        assert _count(floor()) == _count(dataset)
        yield compare(
            f"{rows:,} int64, {name}",
            lambda floor=floor: _count(floor()),
            lambda dataset=dataset: _count(dataset),
            effort,
            times=times,
        )
