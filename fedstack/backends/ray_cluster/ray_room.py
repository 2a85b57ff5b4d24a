"""Computes how many workers a Ray cluster has room for, and describes missing resources."""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from fedstack.backends.ray_cluster.ray_api import bundles_of, is_removed, ray
from fedstack.errors import NoWorkersError
from fedstack.foundations.error_text import counted


class Room:
    """The resources that workers need, and the resources available to them.

    Args:
      needs: The amount of each resource that a worker needs.
      placement: The placement of the workers. A placement group has reserved resources for them.
    """

    def __init__(self, needs: Mapping[str, float], placement: object) -> None:
        self._needs = {name: amount for name, amount in needs.items() if amount}
        self._placement = placement
        self._bundles = bundles_of(placement)

    def check(self) -> None:
        """Checks that the placement still exists.

        Raises:
          NoWorkersError: If the placement group has been removed.
        """
        if is_removed(self._placement):
            error = NoWorkersError(
                "The placement group of this context has been removed; create a new placement group, and a new context "
                "that uses it"
            )
            error.is_final = True
            raise error

    def workers(self) -> int:
        """Returns how many workers would have room if nothing else were running."""
        return self._in(_nodes() if self._bundles is None else self._bundles)

    def _in(self, places: Iterable[Mapping[str, float]]) -> int:
        needs = self._needs or {"CPU": 1}  # one worker per core if the workers need no resources
        return sum(min(math.floor(place.get(name, 0) / need) for name, need in needs.items()) for place in places)

    def told(self, there: int, starting: int) -> str:
        """Describes the resources that a worker needs and their availability.

        Args:
          there: The number of ready workers, which hold their resources.
          starting: The number of workers being started. They may hold resources already, since Ray reserves resources
            before it starts a process.
        """
        if self._bundles is not None:
            return f"the placement group reserves {', '.join(map(str, self._bundles))}"
        total, free = ray.cluster_resources(), ray.available_resources()
        found: list[str] = []
        for name, need in self._needs.items():
            amount = functools.partial(_amount, name)
            some = f"the cluster has {amount(total.get(name, 0))}, with {amount(free.get(name, 0))} free"
            held = min(need * starting, total.get(name, 0) - free.get(name, 0) - need * there)
            if there:
                some += f"; {amount(need * there)} used by the {counted(there, 'worker')} of this context"
            if held > 0:
                some += (
                    f"; up to {amount(held)} used by the {counted(starting, 'worker')} of this context being started"
                )
            found.append(f"{amount(need)} {name} ({some})")
        return f"each worker needs {' and '.join(found) or 'no resources'}"

    def lacking(self, starting: int) -> str:
        """Describes why no worker may be ready yet, and how to fix this. `starting` workers are being started."""
        if self._bundles is not None:
            advice = "check that the placement group is ready, or request less in resources_per_worker"
        elif self.workers():
            advice = (
                "raise start_seconds if Ray starts processes slowly (Ray's logs explain why a process does not start), "
                "or wait until other work has ended"
            )
        else:
            advice = "request less in resources_per_worker, or add nodes to the cluster"
        return f"{self.told(0, starting)}; {advice}"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 1e9:.3g} GB" if name == "memory" else f"{amount:g}"


def _nodes() -> list[Mapping[str, float]]:
    nodes = cast("list[dict[str, Any]]", ray.nodes())
    return [node["Resources"] for node in nodes if node["Alive"]]
