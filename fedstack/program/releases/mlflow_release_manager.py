"""Releases numbers to MLflow, and lets the program go on while MLflow is away."""

import atexit
import importlib.util
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, cast

from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.error_text import counted, shortened, text_of
from fedstack.foundations.number_checks import check_number
from fedstack.program.argument_checks import check_instance
from fedstack.program.releases.staged_release_manager import Key, Row, StagedReleaseManager, numbers_of
from fedstack.program.states.file_program_state_manager import FileProgramStateManager

if TYPE_CHECKING:
    from fedstack.program.releases.mlflow_run import MlflowRun

_logger = logging.getLogger(__name__)
# The most rows that wait for MLflow. The oldest are dropped.
_MOST_UNSENT = 10_000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
_LONGEST_TEXT = 300


class MLflowReleaseManager(ClosesOnExit, StagedReleaseManager):
    """Releases numbers as metrics of a run of MLflow. Keys are steps.

    Strings, and arrays that have dimensions, are left out. Characters that MLflow does not allow in names become `_`;
    of names that become the same, the first one is kept, and a warning tells of the others and of names that MLflow
    refuses.

    Values are sent by a thread of their own, so that no release waits for MLflow. While MLflow is away, slow or full,
    the program goes on: a warning is logged, and the values are sent when MLflow is back, up to 10,000 releases. With a
    state manager they are part of the states until they are sent, so that a later process sends what this one could
    not.

    A program that is resumed goes on with the same run: it finds the run by its name, which MLflow keeps as the tag
    `fedstack.run`. Before it sends values to a run that it has not made, it asks which ones the run has, since MLflow
    would draw a step twice. Only a step that has another value than before is added beside the old one.

    Args:
      run_name: The name of the run, one for each run of an experiment, without apostrophes.
      experiment_name: The name of the experiment, which is made if it does not exist.
      tracking_uri: The address of MLflow, such as `http://host:5000` or `sqlite:///mlflow.db`; by default that of
        MLflow's own settings.
      run_id: The id of a run that exists, to use this one and leave its end to others.
      state_manager: If given, values are released together with the next state that it saves.
      close_timeout_s: The seconds for which `close`, or the end of the process, waits for values that are not sent yet.

    Raises:
      InvalidValueError: If an argument is not valid.
      ImportError: If mlflow is not installed.
    """

    def __init__(
        self,
        run_name: str,
        *,
        experiment_name: str = "Default",
        tracking_uri: str | None = None,
        run_id: str | None = None,
        state_manager: FileProgramStateManager | None = None,
        close_timeout_s: float = 30.0,
    ) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise ImportError('MLflow is not installed; install it with: pip install "fedstack[mlflow]"')
        check_instance("run_name", run_name, str, "choose a name that later processes use, too")
        if not run_name or "'" in run_name:
            raise InvalidValueError(
                f"Expected a run_name without apostrophes, found {run_name!r}; choose a name that later processes "
                "use, too"
            )
        check_number("close_timeout_s", close_timeout_s)

        def connect() -> "MlflowRun":
            from fedstack.program.releases.mlflow_run import MlflowRun

            return MlflowRun(tracking_uri, experiment_name, run_name, run_id)

        where = f"the run {run_name if run_id is None else run_id!r} at {tracking_uri or 'the address of its settings'}"
        kept = "It is lost" if state_manager is None else "A later process sends it if it is part of a saved state"
        self._sender = _Sender(connect, close_timeout_s, where, kept)
        self._offered: Sequence[tuple[Key, Row]] = []
        super().__init__(f"mlflow:{experiment_name}/{run_name}", state_manager)

    def staged(self, mark: object) -> Callable[[], Awaitable[object]]:
        """Returns a function that also returns the rows that MLflow does not have yet; see `StagedReleases.staged`."""
        waiting = super().staged(mark)

        async def rows() -> object:
            found = cast("list[object]", await waiting())
            with self._lock:
                self._offered = self._sender.unsent()
                return [*([key, row] for key, row in self._offered), *found]

        return rows

    def close(self) -> None:
        """Waits until the values are sent, and marks the run as finished. Values that cannot be sent are dropped."""
        self._sender.close()

    def _row_of(self, named: Sequence[tuple[str, object]]) -> Row:
        return dict(numbers_of(super()._row_of(named)))

    def _add(self, rows: Sequence[tuple[Key, Row]]) -> None:
        # Those that were offered to a state are with the sender already.
        self._sender.put([one for one in rows if one not in self._offered])


class _Sender:
    """Sends rows on a thread, which there is as long as there are rows."""

    def __init__(self, connect: "Callable[[], MlflowRun]", close_timeout_s: float, where: str, kept: str) -> None:
        self._connect = connect
        self._where, self._kept = where, kept
        self._error: Exception | None = None  # the last one
        self._close_timeout_s = close_timeout_s
        self._run: MlflowRun | None = None
        self._rows: deque[tuple[Key, Row]] = deque()
        self._lock = threading.Lock()
        self._idle, self._closed = threading.Event(), threading.Event()
        self._idle.set()
        self._is_away = self._is_full = False
        self._left_out: set[str] = set()  # the names of metrics that MLflow cannot have
        atexit.register(self.close)

    def put(self, rows: Sequence[tuple[Key, Row]]) -> None:
        """Adds rows to be sent."""
        with self._lock:
            self._rows.extend(rows)
            while len(self._rows) > _MOST_UNSENT:
                self._rows.popleft()
                if not self._is_full:
                    self._is_full = True
                    _logger.warning(
                        "MLflow has been away for %d releases; the oldest are dropped from now on", _MOST_UNSENT
                    )
            if self._rows and self._idle.is_set() and not self._closed.is_set():
                self._idle.clear()
                threading.Thread(target=self._send_all, name="fedstack-mlflow", daemon=True).start()

    def unsent(self) -> Sequence[tuple[Key, Row]]:
        """Returns the rows that MLflow has not confirmed."""
        with self._lock:
            return list(self._rows)

    def close(self) -> None:
        """Waits until the rows are sent, at most for the time limit. Idempotent; never raises."""
        atexit.unregister(self.close)
        if self._closed.is_set():
            return
        self._idle.wait(self._close_timeout_s)
        with self._lock:
            self._closed.set()
            left = len(self._rows)
        if left:
            _logger.warning(
                "MLflow did not take what was released to %s, in %s: %s. %s", self._where, counted(left, "release"),
                "it has not answered yet" if self._error is None else _shown(self._error), self._kept,
            )  # fmt: skip
        elif self._run is not None:
            try:
                self._run.end()
            except Exception as error:
                _logger.warning("Cannot mark the run of MLflow as finished: %s", _shown(error))

    def _send_all(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            with self._lock:
                if not self._rows or self._closed.is_set():
                    self._idle.set()
                    return
                key, row = self._rows[0]
            if self._is_sent(cast(int, key), cast("dict[str, float]", row)):
                pause = _FIRST_PAUSE_S
                with self._lock:
                    if self._rows and self._rows[0][1] is row:  # it may have been dropped
                        self._rows.popleft()
            else:
                self._closed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _is_sent(self, step: int, row: "dict[str, float]") -> bool:
        """Sends a row, but for what MLflow refuses of it. Returns whether this is done."""
        try:
            if self._run is None:
                self._run = self._connect()
            self._log(self._run, step, row)
        except Exception as error:
            self._run, self._error = None, error  # what it has is unknown now
            if not self._is_away:
                self._is_away = True
                _logger.warning(
                    "Cannot send values to MLflow: %s. The program goes on, and they are sent when MLflow is back",
                    _shown(error),
                )
            return False
        self._error = None
        if self._is_away or self._is_full:
            self._is_away = self._is_full = False
            _logger.info("MLflow is back")
        return True

    def _log(self, run: "MlflowRun", step: int, row: "dict[str, float]") -> None:
        names: dict[str, str] = {}
        for name in row:
            before = names.setdefault(run.name_of(name), name)
            if before != name and name not in self._left_out:
                self._left_out.add(name)
                _logger.warning(
                    "In MLflow the metrics %r and %r are both called %r; the second one is left out: rename it",
                    before, name, run.name_of(name),
                )  # fmt: skip
        row = {name: value for name, value in row.items() if name not in self._left_out}
        try:
            run.log(step, row)
            return
        except Exception as error:
            if not _is_refusal(error):
                raise
        self._run = run = self._connect()  # which knows what arrived, if these were several requests
        refused: set[str] = set()
        for name, value in row.items():
            try:
                run.log(step, {name: value})
            except Exception as error:
                if not _is_refusal(error):
                    raise
                refused.add(name)
                _logger.warning(
                    "MLflow refuses the metric %r of step %d, which is left out: %s", name, step, _shown(error)
                )
        if len(refused) < len(row):  # else it may be because of the step
            self._left_out |= refused


def _is_refusal(error: Exception) -> bool:
    return getattr(error, "error_code", "") == "INVALID_PARAMETER_VALUE"


def _shown(error: Exception) -> str:
    return shortened(text_of(error), _LONGEST_TEXT)
