"""Records what became of each client, while somebody asks."""

import contextlib
import importlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, overload

import attrs

from fedstack import errors
from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.errors import ClientTimeoutError, FedstackError, InvalidValueError, LeafError
from fedstack.executors.survivors.ending import ranges_of
from fedstack.observe.client_events import ClientFailed, ClientsRan
from fedstack.observe.observers import observers

_KINDS = ("done", "failed", "late", "absent")
# The clients that ran together: the clients, the worker, and the time that they took, in seconds.
Ran = tuple[range, str, float]


@attrs.frozen
class ClientOutcome:
    """What became of a client in one phase of a call.

    Attributes:
      call: The number of the call within the block, counted from 0.
      phase: The number of the phase within the call, counted from 0.
      client: The index of the client.
      kind: `done`, `failed`, `late` (it took longer than `client_seconds`, or was not done when `enough` others were)
        or `absent` (it failed or was late in an earlier phase, or does not take part).
      worker: The worker that ran the client; empty for a client that ran in this process, or did not run.
      seconds: The time that the client took, in seconds. For clients that ran as a batch, this is an equal share of the
        time of the batch. `None` if it is not known.
      error: The error of the client; `None` for a client that is done or absent.
    """

    call: int
    phase: int
    client: int
    kind: str
    worker: str = ""
    seconds: float | None = None
    error: Exception | None = attrs.field(default=None, eq=lambda error: (type(error), str(error)))


_NAMES = tuple(field.name for field in attrs.fields(ClientOutcome))
_FORMAT = "fedstack client outcomes 2"


def _written(error: Exception | None) -> tuple[str | None, str | None]:
    return (None, None) if error is None else (type(error).__name__, str(error))


def _read(name: object, message: object) -> FedstackError | None:
    """Returns an error of fedstack with a text."""
    if name is None:
        return None
    kind: object = getattr(errors, str(name), None)
    is_ours = isinstance(kind, type) and issubclass(kind, FedstackError)
    return cast("type[FedstackError]", kind if is_ours else LeafError)(str(message))


def _outcome_of(row: Any) -> ClientOutcome:
    """Returns the outcome in a row of a file.

    Raises:
      ValueError: If the row is no outcome.
    """
    call, phase, client, kind, worker, seconds, name, message = row
    is_failed = kind in ("failed", "late")
    if (
        not all(type(number) is int and number >= 0 for number in (call, phase, client))
        or kind not in _KINDS
        or not isinstance(worker, str)
        or not (seconds is None or (type(seconds) in (int, float) and 0 <= seconds < math.inf))
        or not all(isinstance(text, str) if is_failed else text is None for text in (name, message))
    ):
        raise ValueError(f"the row {row!r:.200}")
    error = _read(name, message)
    if is_failed and kind != _kind(error):
        raise ValueError(f"a client that is {kind} with {name}")
    return ClientOutcome(call, phase, client, kind, worker, seconds, error)


def _check_complete(outcomes: Sequence[ClientOutcome], rows: int) -> None:
    """Checks that there is one outcome for each client of each phase, and that no phase is missing.

    Raises:
      ValueError: If not.
    """
    if len(outcomes) != rows:
        raise ValueError(f"{rows} outcomes of {len(outcomes)} runs of clients")
    call, phase, client = 0, -1, 0
    for one in outcomes:
        next_phase = one.call == call and (one.phase, one.client) == (phase + 1, 0)
        next_call = one.call > call and (one.phase, one.client) == (0, 0)  # calls without phases have no outcomes
        if (one.call, one.phase, one.client) != (call, phase, client) and not next_phase and not next_call:
            raise ValueError(f"client {one.client} in phase {one.phase} of call {one.call}, and not those before it")
        call, phase, client = one.call, one.phase, one.client + 1


@attrs.frozen
class RecordedCall:
    """The outcomes of a call.

    Attributes:
      phases: The outcomes of each phase, by client.
      work: What the clients of each phase do; `None` if it was not recorded.
    """

    phases: Sequence[Mapping[int, ClientOutcome]]
    work: Sequence[str | None]

    def phase(self, number: int) -> Mapping[int, ClientOutcome]:
        """Returns the outcomes of a phase, by client; none if the call had no such phase."""
        return self.phases[number] if number < len(self.phases) else {}


class ClientOutcomes(Sequence[ClientOutcome]):
    """The outcomes of the calls of a block, in order of call, phase and client."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[int, int, int], ClientOutcome] = {}
        self._work: dict[tuple[int, int], str] = {}  # by call and phase
        self._calls = itertools.count()

    def next_call(self) -> int:
        """Returns the number of a call that begins."""
        return next(self._calls)

    def add(self, outcomes: Iterable[ClientOutcome]) -> None:
        """Adds outcomes. Those of a call that is repeated replace those of its last attempt. Called on any thread."""
        self._outcomes.update(((one.call, one.phase, one.client), one) for one in outcomes)

    def note_work(self, call: int, phase: int, work: str) -> None:
        """Records what the clients of a phase do: their functions and aggregations."""
        self._work[call, phase] = work

    def counts(self) -> dict[str, int]:
        """Returns the number of outcomes of each kind, such as `{"done": 48, "failed": 2}`."""
        return dict(Counter(one.kind for one in self))

    def of_kind(self, kind: str) -> list[ClientOutcome]:
        """Returns the outcomes of a kind, such as `failed`.

        Raises:
          InvalidValueError: If there is no such kind.
        """
        if kind not in _KINDS:
            raise InvalidValueError(f"Expected one of the kinds {', '.join(_KINDS)}, found {kind!r}")
        return [one for one in self if one.kind == kind]

    def to_frame(self) -> Any:
        """Returns the outcomes as a pandas data frame, one row each, with the error as text.

        Raises:
          ImportError: If pandas is not installed.
        """
        pandas: Any = importlib.import_module("pandas")
        rows = [[getattr(one, name) for name in _NAMES[:-1]] + [one.error and str(one.error)] for one in self]
        return pandas.DataFrame(rows, columns=list(_NAMES))

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Writes the outcomes to a file, as JSON. An error is written as its class and its text.

        Raises:
          OSError: If the file cannot be written.
        """
        rows = [[*[getattr(one, name) for name in _NAMES[:-1]], *_written(one.error)] for one in self]
        columns = [*_NAMES[:-1], "error", "message"]
        phases = [[*key, self._work[key]] for key in sorted(self._work)]
        content = json.dumps({"format": _FORMAT, "columns": columns, "rows": rows, "phases": phases})
        unfinished = Path(f"{os.fspath(path)}.unfinished")
        try:
            unfinished.write_text(content, encoding="utf-8")
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: "str | os.PathLike[str]") -> "ClientOutcomes":
        """Reads outcomes that `save` has written.

        Raises:
          InvalidValueError: If the file does not contain outcomes.
          OSError: If the file cannot be read.
        """
        found = cls()
        try:
            content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"the format {content['format']!r}")
            rows = list(map(_outcome_of, content["rows"]))
            found.add(rows)
            _check_complete(found, len(rows))
            for call, phase, work in content["phases"]:
                if not all(type(part) is kind for part, kind in ((call, int), (phase, int), (work, str))):
                    raise ValueError(f"the phase {[call, phase, work]!r:.200}")
                found.note_work(call, phase, work)
            if found._work.keys() != {(one.call, one.phase) for one in rows}:
                raise ValueError("other phases than those of the outcomes")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidValueError(
                f"Expected the outcomes of clients in {os.fspath(path)}, found {type(error).__name__}: {error}; pass a "
                "file that ClientOutcomes.save has written"
            ) from error
        return found

    def of_call(self, call: int) -> "RecordedCall":
        """Returns the outcomes of a call."""
        phases: dict[int, dict[int, ClientOutcome]] = {}
        for one in self._outcomes.values():
            if one.call == call:
                phases.setdefault(one.phase, {})[one.client] = one
        numbers = range(max(phases, default=-1) + 1)
        return RecordedCall(
            [phases.get(number, {}) for number in numbers], [self._work.get((call, number)) for number in numbers]
        )

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[ClientOutcome]:
        return iter(self._in_order())

    @overload
    def __getitem__(self, index: int) -> ClientOutcome: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ClientOutcome]: ...
    def __getitem__(self, index: int | slice) -> ClientOutcome | Sequence[ClientOutcome]:
        return self._in_order()[index]

    def _in_order(self) -> list[ClientOutcome]:
        return [self._outcomes[key] for key in sorted(self._outcomes)]

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts().items())
        return f"<ClientOutcomes of {len(self)} runs of clients{': ' * bool(counts)}{counts}>"


@contextlib.contextmanager
def client_outcomes() -> Generator[ClientOutcomes, None, None]:
    """Records what becomes of each client of the calls in the block: done, failed, late or absent.

        with fedstack.client_outcomes() as outcomes:
            result = train_round(model, clients)
        outcomes.to_frame().sort_values("seconds").tail()

    Calls that the block makes in other threads are not recorded. Blocks can be nested; the inner one records.

    Yields:
      The outcomes, which grow with each phase of a call.
    """
    outcomes = ClientOutcomes()
    with current_scope().adding(Telling(outcomes)).entered():
        yield outcomes


@attrs.frozen(eq=False)
class Telling(SystemScope):
    """Part of the scope of phases that tell which clients ran where, and how long.

    Attributes:
      outcomes: Where the outcomes are recorded; `None` on a worker, and if only observers are told.
      call: The number of the call; `None` outside of calls.
    """

    outcomes: ClientOutcomes | None = None
    call: int | None = None

    def of_invocation(self) -> "Telling | None":
        # A computation that a function of a client calls is part of the outcome of the client.
        if self.outcomes is None or self.call is not None:
            return None
        return Telling(self.outcomes, self.outcomes.next_call())

    def record(
        self,
        phase: int,
        work: str,
        ran: Iterable[Ran],
        failures: Mapping[int, Exception],
        absent: Iterable[int],
        clients: int,
    ) -> None:
        """Records the outcomes of a phase.

        Args:
          phase: The number of the phase.
          work: What the clients do.
          ran: The clients that ran.
          failures: The errors of the clients that failed, by client.
          absent: The clients that did not run.
          clients: The number of clients.
        """
        gone = set(absent)
        ran = list(_without(ran, gone) if gone else ran)
        failures = {client: error for client, error in failures.items() if client not in gone}
        places: dict[int, tuple[str, float]] = {}
        if failures or self.outcomes is not None:  # observers alone need no place of each client that is done
            places = {client: (worker, seconds / len(some)) for some, worker, seconds in ran for client in some}
        if observers.present:
            _tell(phase, ran, failures, places)
        if self.outcomes is None or self.call is None:
            return
        call = self.call

        def outcome(client: int) -> ClientOutcome:
            if client in gone:
                return ClientOutcome(call, phase, client, "absent")
            (worker, took), error = places.get(client, ("", None)), failures.get(client)
            return ClientOutcome(call, phase, client, _kind(error), worker, took or None, error)

        self.outcomes.note_work(call, phase, work)
        self.outcomes.add(map(outcome, range(clients)))


def _without(ran: Iterable[Ran], absent: Container[int]) -> Iterator[Ran]:
    """Yields the clients that ran together, without clients that were absent."""
    for some, worker, seconds in ran:
        present = [client for client in some if client not in absent]
        for part in ranges_of(present):
            yield part, worker, seconds * len(part) / len(present)


def _tell(
    phase: int, ran: Iterable[Ran], failures: Mapping[int, Exception], places: Mapping[int, tuple[str, float]]
) -> None:
    """Tells observers what became of the clients of a phase."""
    ids = current_scope().span.ids
    for some, worker, seconds in ran:
        first, count = some.start, len(some)
        observers.tell(
            ClientsRan(**ids, number=phase, first_client=first, clients=count, worker=worker, seconds=seconds)
        )
    for client in sorted(failures):
        error, (worker, took) = failures[client], places.get(client, ("", None))
        observers.tell(
            ClientFailed(
                **ids,
                client=client,
                number=phase,
                kind=_kind(error),
                error=type(error).__name__,
                message=str(error),
                worker=worker,
                seconds=took or 0.0,
            )
        )


def _kind(error: Exception | None) -> str:
    return "done" if error is None else "late" if isinstance(error, ClientTimeoutError) else "failed"
