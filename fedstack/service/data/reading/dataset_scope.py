"""Defines the rules for reading datasets, which the data service adds to a `WorkScope`."""

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
      is_wanted: Returns whether the reader still needs the elements; `None` if it always does.
      take_room: Takes a number of bytes and the name of the step that gathers them, and reserves the bytes, or releases
        them if the number is negative. Raises a `ResourceLimitError` if the bytes would exceed the limit. `None` if
        there is no limit.
      first_stamp: Takes the path of a file and its current stamp, and returns the stamp that the file had when the
        current pass first opened it. `None` if each reading of a source is a separate pass.
      clock: Returns the time in seconds, to measure how long elements take to prepare. A simulation passes its
        own clock.
    """

    data_roots: tuple[str, ...] | None = None
    is_wanted: Callable[[], bool] | None = None
    take_room: Callable[[int, str], None] | None = None
    first_stamp: Callable[[str, tuple[int, ...]], tuple[int, ...]] | None = None
    clock: Callable[[], float] = time.perf_counter

    def of_invocation(self) -> "DatasetScope":
        return attrs.evolve(self, first_stamp=None)  # files that a function reads are not part of the pass


_ANY_DATASETS = DatasetScope()


def dataset_scope() -> DatasetScope:
    """Returns the current rules for reading datasets."""
    return current_scope().of(DatasetScope) or _ANY_DATASETS


def reading(scope: WorkScope, **rules: Any) -> WorkScope:
    """Returns a scope with changed rules for datasets.

    Args:
      scope: The scope.
      **rules: The new values of attributes of `DatasetScope`.
    """
    return scope.adding(attrs.evolve(scope.of(DatasetScope) or _ANY_DATASETS, **rules))
