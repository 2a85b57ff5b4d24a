"""Keeps account of the clients of one call that have failed, and ends the call if there are too many."""

import logging
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.errors import ClientLeftOutError, FedstackError, InvalidValueError, TooManyClientFailuresError
from fedstack.executors.survivors.client_failures import ClientFailure, ClientFailures, named_some
from fedstack.executors.survivors.ending import Ending
from fedstack.executors.survivors.outcomes import Ran, Telling
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.foundations.error_text import counted

_logger = logging.getLogger(__name__)
_NOBODY_LEFT = (
    "No client is left after phase %d: sums are 0 and means NaN; check what all clients raise, and set min_clients"
)
_REPLAY = "replay calls of the same computations, with the same clients, in the same order"
_MOST_FAILED = (
    "%d of %d clients have failed in a call, and are left out of its results, as tolerate=1.0 allows; if so many are "
    "not expected to fail, pass the share that may, such as tolerate=0.2. The first: %s"
)
# The maximum number of kinds of errors that a message lists.
_MOST_KINDS = 10
_RAISED = re.compile(r"'[^']*' raised (\w+)")
# The number of failures whose errors keep their causes.
_MOST_CAUSES = 100


class Survivors(SystemScope):
    """The clients of one attempt at a call. Phases of the call run one after another. Not thread-safe.

    Args:
      policy: The policy of the call.
      absent: The clients that do not take part.
      call: The number of the call within the context, to find the outcomes to replay; `None` to replay nothing.

    Attributes:
      absent: The clients that have failed or do not take part, by index.
      phase: The number of the next phase.
    """

    __slots__ = ("_policy", "_replayed", "absent", "phase")

    def __init__(self, policy: ClientFailures, absent: Mapping[int, ClientFailure], call: int | None = 0) -> None:
        self._policy = policy
        self._replayed = None if policy.replay is None or call is None else policy.replay.of_call(call)
        self.absent = dict(absent)
        self.phase = 0

    def tolerance(self, refused: Iterable[int], clients: int = 0) -> Tolerance:
        """Returns the conditions for the next phase.

        Args:
          refused: Further clients that do not run in the phase.
          clients: The number of clients of the call, if they have functions to run in the phase.
        """
        absent, policy = sorted({*self.absent, *refused}), self._policy
        present = clients - len(absent)
        enough = policy.enough_of(present) if clients else None
        ending = None if enough is None else Ending(enough, present)
        return Tolerance(absent, policy.client_seconds, policy.retries, ending=ending)

    def replayed(self, clients: int, work: str) -> Mapping[int, FedstackError]:
        """Returns the errors of the clients that fail in the next phase because they failed in the replayed call.

        Args:
          clients: The number of clients of the call.
          work: What the clients of the phase do.

        Raises:
          InvalidValueError: If the replayed call was another one.
        """
        if self._replayed is None:
            return {}
        phase = self.phase
        recorded = self._replayed.phase(phase)
        if len(recorded) != clients:
            found = str(len(recorded)) if self._replayed.phases else "no call with clients that is left to replay"
            raise InvalidValueError(
                f"Expected the outcomes of {counted(clients, 'client')} in phase {phase} of the call to replay, found "
                f"{found}; {_REPLAY}"
            )
        before = self._replayed.work[phase] if recorded else None
        if before not in (None, work):
            raise InvalidValueError(
                f"Expected phase {phase} of the call to replay ({before}), found another phase ({work}); {_REPLAY}"
            )
        absent = {client for client, one in recorded.items() if one.kind == "absent"}
        others = sorted(absent ^ self.absent.keys())
        if others:
            raise InvalidValueError(
                f"Expected the same clients to be absent in phase {phase} as in the call to replay, found that "
                f"{named_some(others)} {'is' if len(others) == 1 else 'are'} absent in only one of the two; {_REPLAY}"
            )
        return {one.client: one.error for one in recorded.values() if isinstance(one.error, FedstackError)}

    def end_phase(
        self,
        work: str,
        failures: Mapping[int, FedstackError],
        replayed: Container[int],
        ran: Iterable[Ran],
        clients: int,
    ) -> None:
        """Records the outcomes of a phase whose clients have all run.

        Args:
          work: What the clients do.
          failures: The errors, by client.
          replayed: The clients that fail because they failed in the replayed call.
          ran: The clients that ran, while somebody asks.
          clients: The number of clients of the call.

        Raises:
          InvalidValueError: If a client has failed that did not fail in the replayed call.
          TooManyClientFailuresError: If more clients have failed than the policy tolerates.
        """
        others = [] if self._replayed is None else [client for client in failures if client not in replayed]
        if others:
            raise InvalidValueError(
                f"Expected only those clients to fail that failed in the replayed call, found a failure of "
                f"{named_some(sorted(others))} in phase {self.phase}; replay the call with the same data and functions"
            )
        telling = current_scope().of(Telling)
        if telling is not None:
            telling.record(self.phase, work, ran, failures, self.absent, clients)
        self.settle(failures, clients)

    def check_end(self) -> None:
        """Checks, after the last phase, that the replayed call had no further phases.

        Raises:
          InvalidValueError: If it had.
        """
        if self._replayed is not None and self.phase < len(self._replayed.phases):
            raise InvalidValueError(
                f"Expected the outcomes of {counted(self.phase, 'phase')} of the call to replay, found those of "
                f"{len(self._replayed.phases)}; {_REPLAY}"
            )

    def settle(self, failures: Mapping[int, FedstackError], clients: int) -> None:
        """Leaves out the clients that have failed in a phase.

        Args:
          failures: The errors, by client.
          clients: The number of clients of the call.

        Raises:
          TooManyClientFailuresError: If more clients have failed than the policy tolerates.
        """
        phase = self.phase
        self.phase += 1
        failures = {client: error for client, error in failures.items() if client not in self.absent}
        for client in sorted(failures):
            error = failures[client].with_traceback(None)
            if len(self.absent) >= _MOST_CAUSES:
                error.__cause__ = None
            self.absent[client] = ClientFailure(client, phase, error)
        failed = {client: one for client, one in self.absent.items() if _is_failed(one.error)}
        left = clients - len(self.absent)
        if len(failed) > self._policy.most(clients) or left < self._policy.least(clients):
            late = sum(isinstance(one.error, ClientLeftOutError) for one in self.absent.values())
            raise too_many_failures(self._policy, failed, clients, left, late)
        if failures:
            _logger.info("%s failed in phase %d; %d left", counted(len(failures), "client"), phase, left)
            if not left:
                _logger.warning(_NOBODY_LEFT, phase)
            taking_part = clients - sum(one.error is None for one in self.absent.values())
            before = len(failed) - sum(map(_is_failed, failures.values()))
            if left and self._policy.tolerates_all and 2 * before <= taking_part < 2 * len(failed):
                _logger.warning(_MOST_FAILED, len(failed), taking_part, failed[min(failed)].error)

    def __repr__(self) -> str:
        return f"<Survivors of phase {self.phase}, {len(self.absent)} absent>"


def _is_failed(error: Exception | None) -> bool:
    """Returns whether a client that is absent counts as failed, instead of not taking part or not being waited for."""
    return error is not None and not isinstance(error, ClientLeftOutError)


def too_many_failures(
    policy: ClientFailures, failed: Mapping[int, ClientFailure], clients: int, left: int, late: int
) -> TooManyClientFailuresError:
    """Returns the error for a call in which too few clients are left."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for client in sorted(failed):
        kinds[_kind(failed[client].error)].append(client)
    lines = [f"  {named_some(some)}: {kind}" for kind, some in sorted(kinds.items(), key=lambda kind: kind[1][0])]
    if len(lines) > _MOST_KINDS:
        lines[_MOST_KINDS:] = [f"  … and {len(lines) - _MOST_KINDS} other kinds of errors"]
    first = f"\nThe first: {failed[min(failed)].error}" if failed else ""
    colon = ":\n" if failed else ""
    wanted, advice = (
        f"fewer clients to fail ({policy.limits})",
        "fix the functions or the data, or let the policy tolerate more",
    )
    if len(failed) <= policy.most(clients):
        wanted = f"at least {counted(policy.min_clients, 'client')} to be left ({policy.limits})"
    if late:
        advice += "; increase enough to wait for more clients"
    absent = clients - left - late - len(failed)
    others = [f"{late} late" if late else "", f"{absent} absent" if absent else ""]
    gone = "".join(f", {other}" for other in others if other)
    error = TooManyClientFailuresError(
        f"Expected {wanted}, found {counted(len(failed), 'failure')} among {counted(clients, 'client')}{gone}, so that "
        f"{left} {'is' if left == 1 else 'are'} left; {advice}{colon}" + "\n".join(lines) + first
    )
    error.failures = dict(failed)
    error.survivors = left
    return error


def _kind(error: Exception | None) -> str:
    """Returns the kind of a failure: the class of the error that the function raised, and the function."""
    if error is None:
        return "absent"
    name = getattr(error, "computation_name", "")
    raised = _RAISED.match(str(error))  # the cause of an error that a worker sent has another class
    shown = type(error).__name__ if raised is None else raised[1]
    return f"{shown} in {name!r}" if name else shown
