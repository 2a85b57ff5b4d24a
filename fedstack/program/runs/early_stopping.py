"""Ends a run when a metric has not become better for some rounds."""

import logging
from collections.abc import Iterable, Mapping
from typing import Literal

from fedstack.errors import InvalidValueError
from fedstack.foundations.number_checks import check_number, check_whole_number
from fedstack.foundations.value_text import describe
from fedstack.program.argument_checks import check_instance

_logger = logging.getLogger(__name__)


class EarlyStopping:
    """Tells whether a run should stop, from the rows that it has released. The terms are those of Keras.

        stopping = EarlyStopping("loss", patience=5)
        for number in range(last + 1, rounds + 1):
            if stopping.should_stop(run.metrics.rows(before=number)):
                break

    The answer depends on nothing but the rows, so a run that was killed and goes on stops at the same round as one that
    was not. Ask before a round begins, so that a run that was killed after its last round does not begin another.

    A value is better than the best one so far if it differs from it by more than `min_delta` in the right direction.
    The first value is the best one so far. NaN is never better, and never the best. Rows without the metric, of rounds
    in which it was not measured, count as no rows; if no row has it, a warning says so once.

    Args:
      metric: The name of the metric, as that of its column.
      patience: The number of values in a row that may be no better. With 0 and 1, the first such value ends the run.
      min_delta: The difference that a value has to exceed, from 0.
      mode: Whether a metric that is smaller ("min") or larger ("max") is better.

    Raises:
      InvalidValueError: If an argument is not valid.
    """

    def __init__(
        self, metric: str, *, patience: int, min_delta: float = 0.0, mode: Literal["min", "max"] = "min"
    ) -> None:
        if mode not in ("min", "max"):
            raise InvalidValueError(f"Expected 'min' or 'max' as mode, found {describe(mode)}")
        check_number("min_delta", min_delta)
        check_instance("metric", metric, str, "pass the name of a column")
        self._metric = metric
        self._patience = max(1, check_whole_number("patience", patience, 0))
        self._min_delta = float(min_delta)
        self._sign = 1.0 if mode == "min" else -1.0
        self._is_told = False

    def should_stop(self, rows: Iterable[Mapping[str, object]]) -> bool:
        """Returns whether the run should have stopped after one of the rows.

        Args:
          rows: All rows in their order, as from `run.metrics.rows()`.

        Raises:
          InvalidValueError: If the metric of a row is no number.
        """
        best, waited = None, 0
        names: set[str] = set()
        for row in rows:
            names.update(row)
            value = row.get(self._metric)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidValueError(
                    f"Expected numbers as the metric {self._metric!r}, found {describe(value)} in the row "
                    f"{dict(row)!r}; choose another metric, or release a number"
                )
            cost = self._sign * value
            if cost == cost and (best is None or cost + self._min_delta < best):
                best, waited = cost, 0
            else:
                waited += 1
            if waited >= self._patience:
                return True
        if names and self._metric not in names and not self._is_told:
            self._is_told = True
            _logger.warning(
                "No round so far has the metric %r, so that the run is not stopped; the rounds have %s",
                self._metric, ", ".join(sorted(names)),
            )  # fmt: skip
        return False

    def __repr__(self) -> str:
        mode = "min" if self._sign > 0 else "max"
        return f"<EarlyStopping on {self._metric!r}, {mode}, patience {self._patience}, min_delta {self._min_delta:g}>"
