"""One run of MLflow. Only this module imports mlflow, which is optional and takes seconds to import."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

import re
import sys
import time
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

_TAG = "fedstack.run"
_MOST_METRICS = 1000  # in one request to MLflow
_STRANGE = re.compile(r"[^\w\-. :/]")  # what MLflow does not allow in names


class MlflowRun:
    """A run of MLflow, which is found by a tag with its name, or made.

    Args:
      tracking_uri: The address of MLflow; `None` for that of MLflow's own settings.
      experiment_name: The experiment, which is made if it does not exist.
      run_name: The name of the run.
      run_id: The id of the run. If given, neither of the names is used.

    Raises:
      Exception: Any error of MLflow or of a connection.
    """

    def __init__(self, tracking_uri: str | None, experiment_name: str, run_name: str, run_id: str | None) -> None:
        self._client: Any = MlflowClient(tracking_uri)
        self._is_named = run_id is None
        # What the run had, by the name of the metric and the step, if it was there before.
        self._known: dict[str, Mapping[int, float]] = {}
        if run_id is None:
            experiment: Any = self._client.get_experiment_by_name(experiment_name)
            place = self._client.create_experiment(experiment_name) if experiment is None else experiment.experiment_id
            named = f"tags.`{_TAG}` = '{run_name}'"
            found = self._client.search_runs([place], named, order_by=["attributes.start_time ASC"], max_results=1)
            self._is_new = not found
            run: Any = found[0] if found else self._client.create_run(place, tags={_TAG: run_name}, run_name=run_name)
            self._id = cast(str, run.info.run_id)
        else:
            self._is_new, self._id = False, cast(str, self._client.get_run(run_id).info.run_id)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Adds values that the run does not have. MLflow keeps all values of a step, so none is sent twice."""
        now = time.time_ns() // 1_000_000
        named = [(self.name_of(name), value) for name, value in row.items()]
        missing = [Metric(name, value, now, step) for name, value in named if not self._has(name, step, value)]
        for start in range(0, len(missing), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=missing[start : start + _MOST_METRICS])

    @staticmethod
    def name_of(name: str) -> str:
        """Returns the name that a metric has in MLflow."""
        return _STRANGE.sub("_", name)

    def end(self) -> None:
        """Marks the run as finished, if it was found or made by its name."""
        if self._is_named:
            self._client.set_terminated(self._id)

    def _has(self, name: str, step: int, value: float) -> bool:
        if self._is_new:
            return False
        if name not in self._known:
            history: list[Any] = self._client.get_metric_history(self._id, name)
            self._known[name] = {one.step: one.value for one in history}
        known = self._known[name].get(step)
        return known is not None and np.array_equal(_kept(known), _kept(value), equal_nan=True)


def _kept(value: float) -> "np.float64":
    """Returns what databases of MLflow keep of a value: they have no infinity."""
    return np.clip(np.float64(value), -sys.float_info.max, sys.float_info.max)
