"""A run of a program: a folder with its states, its metrics and a record of what it is."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from fedstack.computations.values.sequences import MAX_SEED
from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.number_checks import checked_seed
from fedstack.program.argument_checks import check_instance, checked_name, checked_path
from fedstack.program.clients.client_states import ClientStates
from fedstack.program.clients.migrated_shard import MigrateState
from fedstack.program.runs.run_metrics import RunMetrics
from fedstack.program.runs.run_record import RECORD, Parameter, RunRecord, check_same, checked_parameters, this_command
from fedstack.program.states.file_program_state_manager import FileProgramStateManager
from fedstack.program.states.state_structure import Migrate

STATES, METRICS, KEY = "states", "metrics.csv", "round"


class Run(ClosesOnExit):
    """A run of a program, with all that belongs to it in one folder.

        with Run("runs/first", seed=1, parameters={"rate": 0.5}) as run:
            found, last = await run.states.load_latest(model)
            for number in range(last + 1, 101):
                …
                await run.metrics.release({"loss": loss}, number)
                await run.states.save(model, number)

    The folder gets the states (`states`), the metrics (`metrics.csv`) and the file `run.json`, which tells what the run
    is: the name of the program, its command, working folder and Python, the seed, the parameters, the version of
    fedstack and the time. Nothing of the environment is in it, but all arguments of the command are. `fedstack runs`
    lists the runs of a folder, compares them and starts them again.

    One process at a time may have a run open. When a `with` block ends without an error, metrics that were released
    after the last state are written, too.

    Attributes:
      folder: The folder.
      record: What is in `run.json`.
      states: Saves and loads the states.
      metrics: Releases metrics. The rows are part of the states; their keys are the numbers of rounds. When the run
        goes on from a state, rows of later rounds are removed.

    Args:
      folder: The folder, which is created when it does not exist.
      seed: The seed of the run, from which everything random in it should follow.
      keep_total: The number of versions of the state that are kept; see `FileProgramStateManager`.
      keep_every_k: Versions that are multiples of this number are kept, too.
      migrate: Converts a state that was saved with another structure; see `FileProgramStateManager`.
      parameters: What else makes the run what it is, such as the rate and the number of clients a round: numbers,
        strings and booleans. Leave out what may change while the run goes on, such as the number of rounds.
      name: The name of the program; by default that of its file.

    Raises:
      TypeMismatchError: If the seed is no whole number.
      InvalidValueError: If an argument is not valid, or the run was begun with another seed or other parameters.
      ProgramStateError: If another process has the run open, the folder cannot be written to, or `run.json` is damaged.
    """

    def __init__(
        self,
        folder: "str | os.PathLike[str]",
        *,
        seed: int = 0,
        keep_total: int = 5,
        keep_every_k: int | None = None,
        migrate: Migrate | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        name: str | None = None,
    ) -> None:
        self.folder = checked_path("folder", folder)
        program = checked_name("name", name, Path(sys.argv[0] or "python").name)
        checked = checked_seed("seed", seed, MAX_SEED)
        self.record = RunRecord(
            program, this_command(), os.getcwd(), checked, checked_parameters(parameters), str(self.folder)
        )
        self.states = FileProgramStateManager(
            self.folder / STATES, keep_total=keep_total, keep_every_k=keep_every_k, migrate=migrate, name=program
        )
        self.states.acquire()
        try:
            self._write_record()
        except BaseException:
            self.states.close()
            raise
        self.metrics = RunMetrics(self.folder / METRICS, state_manager=self.states, key_fieldname=KEY)

    @property
    def seed(self) -> int:
        """The seed."""
        return self.record.seed

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters by name."""
        return self.record.parameters

    def client_states(self, name: str, *, like: object, migrate: MigrateState | None = None) -> ClientStates:
        """Returns the states of clients that belong to the run, such as control variates or personal layers.

        Args:
          name: Their name, which is that of a folder in the run's.
          like: The state that a client has at first; see `fedstack.ClientStates`.
          migrate: Converts a state that was saved when `like` was another one; see `fedstack.ClientStates`.

        Raises:
          InvalidValueError: If the name or the state is not valid.
        """
        check_instance("name", name, str, "choose a name of letters and digits")
        if not re.fullmatch(r"\w[\w .-]{0,99}", name) or name in (STATES, METRICS, RECORD):
            raise InvalidValueError(
                f"Expected a name for states of clients of letters and digits, and not {STATES}, {METRICS} or "
                f"{RECORD}, found {name!r}; choose another one"
            )
        return ClientStates(self.folder / name, like=like, state_manager=self.states, migrate=migrate)

    def _write_record(self) -> None:
        try:
            before = RunRecord.read(self.folder)
        except FileNotFoundError:
            self.record.write(self.folder)
            return
        check_same(self.folder, before, self.record)
        self.record = before.started_by(self.record)
        if self.record != before:
            self.record.write(self.folder)

    def _left(self, error: BaseException | None) -> None:
        if error is None:
            self.metrics.flush()

    def close(self) -> None:
        """Lets other processes open the run. Idempotent."""
        self._closed = True
        self.states.close()

    def __repr__(self) -> str:
        return f"<Run of {self.record.name} in {self.folder}>"
