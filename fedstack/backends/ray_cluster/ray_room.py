"""Finds out for how many workers a cluster of Ray has room, and says what is missing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from fedstack.backends.ray_cluster.ray_api import ray


class Room:
    """What workers need, and where.

    Args:
      needs: How much of what each needs.
      bundles: What a placement group has reserved for them; `None` where they may go anywhere.
    """

    def __init__(self, needs: Mapping[str, float], bundles: Sequence[Mapping[str, float]] | None) -> None:
        self._needs = {name: amount for name, amount in needs.items() if amount}
        self._bundles = bundles

    def workers(self) -> int:
        """Returns how many workers there is room for where nothing else runs."""
        return self._in(_nodes() if self._bundles is None else self._bundles)

    def _in(self, places: Iterable[Mapping[str, float]]) -> int:
        needs = self._needs or {"CPU": 1}  # one per core where nothing else limits them
        return sum(min(math.floor(place.get(name, 0) / need) for name, need in needs.items()) for place in places)

    def told(self) -> str:
        """Says what a worker needs and what there is of it."""
        if self._bundles is not None:
            return f"the placement group reserves {', '.join(map(str, self._bundles))}"
        total, free = ray.cluster_resources(), ray.available_resources()
        found = [
            f"{need:g} {name} (the cluster has {total.get(name, 0):g}, {free.get(name, 0):g} of them free)"
            for name, need in self._needs.items()
        ]
        return f"each needs {' and '.join(found) or 'nothing in particular'}"

    def lacking(self) -> str:
        """Says why no worker has come, and what to do."""
        if self._bundles is not None:
            advice = "see whether it is ready, and ask for less in resources_per_worker"
        elif self.workers():
            advice = "wait for other work to end, or raise start_seconds if Ray takes long to start processes"
        else:
            advice = "ask for less in resources_per_worker, or add nodes"
        return f"{self.told()}; {advice}"


def _nodes() -> list[Mapping[str, float]]:
    nodes = cast("list[dict[str, Any]]", ray.nodes())
    return [node["Resources"] for node in nodes if node["Alive"]]
