"""Counts the elements that are lost when data workers are killed, at moments that are drawn by a seed."""

import contextlib
import random
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.data_servers import DataServer, enlarged, slowly
from benchmarks.harness import Effort, Measurement
from fedstack.service.data import Dataset, distribute

# The data service of TensorFlow loses two to four.
_MOST_LOST = 4


def run(effort: Effort) -> Iterator[Measurement]:
    """Kills one of two workers at each moment, under the guarantee that is the default."""
    moments = effort.pick(1, 5, 20)
    small, large = effort.pick(300, 6_000, 6_000), effort.pick(20, 300, 1_000)
    with tempfile.TemporaryDirectory(prefix="fedstack-") as folder, contextlib.ExitStack() as stack:
        dispatcher = stack.enter_context(DataServer("dispatcher", "0", folder))
        workers = [stack.enter_context(DataServer("worker", dispatcher.target)) for _ in range(2)]
        draw = random.Random(moments)
        for name, dataset in (
            (f"{small:,} int64 numbers", Dataset.range(small).map(slowly)),
            (f"{large:,} elements of 1 MiB", Dataset.range(large).map(enlarged)),
        ):
            lost: list[int] = []
            for _ in range(moments):
                at, victim = draw.randrange(1, len(dataset)), draw.randrange(2)
                elements = dataset.apply(distribute("distributed_epoch", dispatcher.target))
                lost.append(len(dataset) - _count(elements, at, workers[victim]))
                workers[victim] = stack.enter_context(DataServer("worker", dispatcher.target))
            title = f"{name}: lost at most, a worker killed at each of {moments} moments"
            reach, details = f"≤ {_MOST_LOST}", {"lost_together": float(sum(lost))}
            yield Measurement(title, max(lost), None, _MOST_LOST, reach, "count", details)


def _count(elements: Dataset, at: int, victim: DataServer) -> int:
    """Returns how many different elements come if a worker is killed at one of them; each comes once."""
    found: set[Any] = set()
    for number, element in enumerate(elements, 1):
        known = len(found)
        found.add(element.flat[0])
        assert len(found) == known + 1, "it has come before"
        if number == at:
            victim.kill()
    return len(found)
