"""Chooses the clients with which each worker begins a phase: first those whose inputs it already has."""

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence


def placed(counts: Sequence[int], kept: Sequence[Sequence[range]]) -> list[int]:
    """Assigns consecutive ranges of clients to workers, first those whose worker has the most of their inputs.

    Args:
      counts: The number of clients of each range.
      kept: For each worker, of which there are as many as ranges, the clients whose inputs it has.

    Returns:
      For each range, the index of its worker.
    """
    starts = [0, *itertools.accumulate(counts)]
    shares: Counter[tuple[int, int]] = Counter()  # by range and worker
    for worker, ranges in enumerate(kept):
        for clients in ranges:
            index = bisect.bisect_right(starts, clients.start) - 1
            while index < len(counts) and starts[index] < clients.stop:
                shares[index, worker] += min(starts[index + 1], clients.stop) - max(starts[index], clients.start)
                index += 1
    chosen: dict[int, int] = {}
    free = dict.fromkeys(range(len(kept)))
    for (index, worker), share in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
        if share > 0 and index not in chosen and worker in free:
            chosen[index] = worker
            del free[worker]
    others = iter(free)
    return [chosen[index] if index in chosen else next(others) for index in range(len(counts))]
