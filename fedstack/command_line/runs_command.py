"""The subcommand `fedstack runs`, which lists the runs of a folder, compares two of them, and starts one again."""

import datetime
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from fedstack.command_line.command import FAILURE, SUCCESS, say, subcommand, table_lines
from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.foundations.error_text import counted, size_text, text_of

if TYPE_CHECKING:
    from fedstack.program.runs.compared_runs import ComparedRuns, Difference
    from fedstack.program.runs.found_runs import FoundRun

_MOST_SHOWN = 8
_WIDTH = 60


def run(folder: Path, compare: tuple[str, str] | None, resume: str | None, json: bool) -> int:
    """Prints the runs of a folder or what differs between two, or runs one again and returns its exit status."""
    from fedstack.program.runs.found_runs import find_runs  # slow to import

    if resume is not None and (compare or json):
        raise click.UsageError("expected --resume alone, found it with --compare or --json")
    found, errors = find_runs(folder)
    if resume is not None:
        return _resume(_named(found, resume, folder, errors))
    if compare:
        return _compare(*(_named(found, name, folder, errors) for name in compare), as_json=json)
    if not found and not errors:
        raise InvalidValueError(
            f"Expected folders with a run.json below {folder}, found none; pass a folder in which a program has opened "
            "a fedstack.program.Run"
        )
    for line in [_as_json(found, errors)] if json else _lines(found):
        say(line)
    for error in errors.values():
        say(f"fedstack runs: error: {error}", to_error=True)
    return FAILURE if errors else SUCCESS


def _named(runs: "Sequence[FoundRun]", name: str, folder: Path, errors: Mapping[str, ProgramStateError]) -> "FoundRun":
    for one in runs:
        if one.name == Path(name).as_posix():
            return one
    if (wrong := errors.get(Path(name).as_posix())) is not None:
        raise wrong
    names = ", ".join(one.name for one in runs[:_MOST_SHOWN]) + " …" * (len(runs) > _MOST_SHOWN)
    raise InvalidValueError(f"Expected the name of a run below {folder}, found {name!r}; there are: {names or 'none'}")


def _lines(runs: "Sequence[FoundRun]") -> Iterator[str]:
    if runs:
        header = ("run", "program", "seed", "rounds", "versions", "size", "clients' states", "last metrics", "open")
        yield from table_lines(header, [_row(one) for one in runs], words=2)


def _row(one: "FoundRun") -> tuple[str, ...]:
    versions = ", ".join(map(str, one.versions[-_MOST_SHOWN:]))
    metrics = _fitting([f"{name}={_short(value)}" for name, value in one.last_metrics.items()])
    return (
        one.name,
        one.record.name,
        str(one.record.seed),
        str(one.rounds),
        f"{'… ' * (len(one.versions) > _MOST_SHOWN)}{versions}" or "none",
        size_text(one.size),
        ", ".join(f"{name} {size_text(size)}" for name, size in one.client_states.items()) or "none",
        metrics or "none",
        _open(one) or "no",
    )


def _fitting(metrics: Sequence[str]) -> str:
    """Returns the metrics that fit into a line, and how many more there are."""
    shown, width = list[str](), 0
    for metric in metrics:
        width += len(metric) + 1
        if shown and width > _WIDTH:
            return f"{' '.join(shown)} and {len(metrics) - len(shown)} more (--json)"
        shown.append(metric)
    return " ".join(shown)


def _open(one: "FoundRun") -> str:
    if one.holder is None:
        return ""
    since = datetime.datetime.fromtimestamp(one.holder.since).isoformat(" ", "seconds")
    return f"since {since}, by process {one.holder.pid} on {one.holder.host}"


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _as_json(runs: "Sequence[FoundRun]", errors: Mapping[str, ProgramStateError]) -> str:
    listed: list[dict[str, Any]] = [
        {
            "run": one.name,
            **attrs.asdict(one.record),
            "rounds": one.rounds,
            "versions": one.versions,
            "bytes": one.size,
            "client_states": one.client_states,
            "last_metrics": one.last_metrics,
            "open": None if one.holder is None else attrs.asdict(one.holder),
        }
        for one in runs
    ]
    return json.dumps(
        {"ok": not errors, "runs": listed, "errors": {name: str(error) for name, error in errors.items()}}
    )


def _compare(one: "FoundRun", other: "FoundRun", *, as_json: bool) -> int:
    from fedstack.program.runs.compared_runs import compare_runs

    found = compare_runs(one, other)
    if as_json:
        say(json.dumps({"ok": True, "same": found.are_the_same, **attrs.asdict(found)}))
    else:
        say("\n".join(_differences(found, one.name, other.name)))
    return SUCCESS if found.are_the_same else FAILURE


def _differences(found: "ComparedRuns", one: str, other: str) -> Iterator[str]:
    if found.settings:
        yield f"settings of {one} / {other}: {', '.join(found.settings)}"
    if found.metrics_round is not None:
        yield f"round {found.metrics_round} is the first with other metrics: {_shown(found.metrics)}"
    if found.state_version is not None:
        yield f"version {found.state_version} is the first kept by both with another state: {_shown(found.state)}"
    if found.are_the_same:
        versions = ", ".join(map(str, found.versions)) or "none"
        yield f"the same {counted(min(found.rounds), 'round')}; states compared: {versions}"
    if found.rounds[0] != found.rounds[1]:
        yield f"{one} has {counted(found.rounds[0], 'round')}, {other} has {found.rounds[1]}"


def _shown(differences: "Sequence[Difference]") -> str:
    texts = [
        f"{one.name}: {one.text}" + ("" if one.largest is None else f", largest absolute difference {one.largest:.6g}")
        for one in differences[:_MOST_SHOWN]
    ]
    return "; ".join(texts) + (f"; and {len(differences) - _MOST_SHOWN} more" if len(differences) > _MOST_SHOWN else "")


def _resume(one: "FoundRun") -> int:
    if one.holder is not None:
        raise ProgramStateError(
            f"Expected a run that has ended, found that {one.holder} has {one.folder} open; wait until it "
            "ends, or end it"
        )
    if not one.record.command:
        raise InvalidValueError(
            f"Expected a command in {one.folder / 'run.json'}, found none, as for runs that a notebook or a shell has "
            "begun; run the notebook again"
        )
    place = one.record.run_folder
    if place and not (os.path.exists(place) and os.path.samefile(place, one.folder)):
        raise InvalidValueError(
            f"Expected the run in {place}, with which its command goes on, found it in {one.folder}, as after a copy "
            "or a move; start the program by hand with that folder"
        )
    say(one.record.shell_line, to_error=True)
    try:
        process = subprocess.Popen(one.record.command, cwd=one.record.folder)
    except OSError as error:
        raise ProgramStateError(
            f"Cannot start {one.record.command[0]} in {one.record.folder} for {one.name}: {text_of(error)}; start the "
            "program by hand"
        ) from error

    # Ctrl-C reaches the program, too, which ends as it likes.
    def on_signal(number: int, _: object) -> None:
        if number == signal.SIGTERM:
            process.terminate()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


COMMAND = subcommand(
    "runs",
    run,
    "List the runs of programs in a folder, compare two, or start one again.",
    [
        click.Argument(["folder"], type=Path, metavar="FOLDER"),
        click.Option(
            ["--compare"],
            nargs=2,
            metavar="A B",
            help="show the first round that differs between two runs; the exit code is 1 if one does",
        ),
        click.Option(
            ["--resume"],
            metavar="RUN",
            help="start the command of a run again in its working folder, and return its exit status",
        ),
        click.Option(["--json"], is_flag=True, help="print JSON"),
    ],
    more="Runs are the folders that `fedstack.program.Run` makes, named by their paths below FOLDER.",
)
