"""Defines the rules for reading datasets, which the data service adds to the scope of work."""

import time
from collections.abc import Callable
from typing import Any

import attrs

from fedstack.computations.leaves.work_scope import SystemScope, WorkScope, current_scope


@attrs.frozen(kw_only=True, eq=False)
class DatasetScope(SystemScope):
    """The rules under which datasets are read.

    Attributes:
      data_roots: The folders below which files may be read; `None` for all folders.
      is_wanted: Returns whether the elements that are read are still wanted; `None` if they always are.
      take_room: Takes a number of bytes that the named step gathers, or gives them back if the number is negative;
        raises a `ResourceLimitError` if there is not enough room; `None` if there is no bound.
      first_stamp: Returns the stamp that a file had when the current pass first opened it, given its path and its
        current stamp; `None` if each reading of a source is a pass.
      clock: Returns the time in seconds, to measure how long elements take to make; a simulation has its own.
    """

    data_roots: tuple[str, ...] | None = None
    is_wanted: Callable[[], bool] | None = None
    take_room: Callable[[int, str], None] | None = None
    first_stamp: Callable[[str, tuple[int, ...]], tuple[int, ...]] | None = None
    clock: Callable[[], float] = time.perf_counter

    def of_invocation(self) -> "DatasetScope":
        return attrs.evolve(self, first_stamp=None)  # the files that a function reads are not part of the pass


_ANY_DATASETS = DatasetScope()


def dataset_scope() -> DatasetScope:
    """Returns the rules that are in force for reading datasets."""
    return current_scope().of(DatasetScope) or _ANY_DATASETS


def reading(scope: WorkScope, **rules: Any) -> WorkScope:
    """Returns a scope with other rules for datasets, each an attribute of `DatasetScope`."""
    return scope.adding(attrs.evolve(scope.of(DatasetScope) or _ANY_DATASETS, **rules))
