"""Under which rules datasets are read, and for whom: what the data service adds to the scope of work."""

import time
from collections.abc import Callable
from typing import Any

import attrs

from fedstack.computations.leaves.work_scope import SystemScope, WorkScope, current_scope


@attrs.frozen(kw_only=True, eq=False)
class DatasetScope(SystemScope):
    """Under which rules datasets are read, and for whom.

    Attributes:
      data_roots: The folders below which they may read files; `None` for all of them.
      is_wanted: Returns whether somebody still wants the elements that are read; `None` for always.
      take_room: Takes room for so many bytes that a step of that name gathers, gives it back for a negative number, and
        raises a `ResourceLimitError` if there is not so much; `None` where there is no bound.
      first_stamp: Returns the stamp that a file had when the pass that is read first opened it, given its path and its
        stamp now; `None` where each reading of a source is a pass.
      clock: Tells how long elements take to make, in seconds; a simulation has its own.
    """

    data_roots: tuple[str, ...] | None = None
    is_wanted: Callable[[], bool] | None = None
    take_room: Callable[[int, str], None] | None = None
    first_stamp: Callable[[str, tuple[int, ...]], tuple[int, ...]] | None = None
    clock: Callable[[], float] = time.perf_counter

    def of_invocation(self) -> "DatasetScope":
        return attrs.evolve(self, first_stamp=None)  # what a function reads is none of the pass


_ANY_DATASETS = DatasetScope()


def dataset_scope() -> DatasetScope:
    """Returns the rules for the datasets that are read now."""
    return current_scope().of(DatasetScope) or _ANY_DATASETS


def reading(scope: WorkScope, **rules: Any) -> WorkScope:
    """Returns a scope with other rules for datasets, each an attribute of `DatasetScope`."""
    return scope.adding(attrs.evolve(scope.of(DatasetScope) or _ANY_DATASETS, **rules))
