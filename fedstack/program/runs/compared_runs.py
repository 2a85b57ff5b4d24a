"""Compares two runs: the first round that differs, and what differs in it."""

from typing import cast

import attrs

from fedstack.program.runs.compared_client_states import client_states_in, differing_clients
from fedstack.program.runs.differences import Difference, differences
from fedstack.program.runs.found_runs import FoundRun
from fedstack.program.runs.run import KEY, STATES
from fedstack.program.runs.run_record import differing_settings
from fedstack.program.states.saved_versions import PREFIX
from fedstack.program.states.state_file import read_state


@attrs.frozen
class ComparedRuns:
    """What differs between two runs.

    Attributes:
      settings: The seed and the parameters that differ, as texts with both values.
      rounds: The number of the last round of each.
      metrics_round: The first round whose metrics differ; `None` if none does.
      metrics: What differs in it.
      state_version: The first version of the state kept by both that differs; `None` if none does.
      state: What differs in it.
      versions: The versions that were compared.
    """

    settings: list[str]
    rounds: tuple[int, int]
    metrics_round: int | None
    metrics: list[Difference]
    state_version: int | None
    state: list[Difference]
    versions: list[int]

    @property
    def are_the_same(self) -> bool:
        """Whether no round that both have differs."""
        return self.metrics_round is None and self.state_version is None


def compare_runs(one: FoundRun, other: FoundRun) -> ComparedRuns:
    """Compares the rounds that two runs both have, in their bits.

    Raises:
      ProgramStateError: If a state is damaged or cannot be read.
    """
    rounds = (one.rounds, other.rounds)
    metrics_round, metrics = _first_metrics(one, other, min(rounds))
    state_version, state, versions = None, list[Difference](), list[int]()
    for version in sorted(set(one.versions) & set(other.versions)):
        versions.append(version)
        left, right = (read_state(run.folder / STATES / f"{PREFIX}{version}") for run in (one, other))
        state = differences(left.values, right.values)
        for name in sorted({*client_states_in(left.releases), *client_states_in(right.releases)}):
            kept = [(run.folder / name, saved.releases.get(name)) for run, saved in ((one, left), (other, right))]
            state += differing_clients(name, kept[0], kept[1])
        if state:
            state_version = version
            break
    settings = differing_settings(one.record, other.record)
    return ComparedRuns(settings, rounds, metrics_round, metrics, state_version, state, versions)


def _first_metrics(one: FoundRun, other: FoundRun, last: int) -> tuple[int | None, list[Difference]]:
    left, right = ({cast(int, row[KEY]): row for row in run.rows if isinstance(row[KEY], int)} for run in (one, other))
    for number in sorted({*left, *right}):
        if number <= last and (found := differences(left.get(number, {}), right.get(number, {}))):
            return number, found
    return None, []
