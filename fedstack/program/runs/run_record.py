"""Writes what a run is to a file in its folder, and reads it: the program, how it was started, seed and parameters."""

import datetime
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import attrs
import numpy as np

from fedstack._version import __version__
from fedstack.data.headed_file import write_whole
from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.value_text import describe
from fedstack.program.argument_checks import check_instance

RECORD = "run.json"
_FORMAT = 1

Parameter: TypeAlias = "int | float | str | bool"


@attrs.frozen
class RunRecord:
    """What a run is.

    Attributes:
      name: The name of the program.
      command: The command that started it last, with its Python; empty if it was started in a notebook or a shell.
      folder: The working folder of the command.
      seed: The seed.
      parameters: The parameters by name.
      run_folder: The folder of the run when the command started it; empty if an older fedstack did.
      fedstack: The version of fedstack that began the run.
      created: When the run began, in ISO 8601 and UTC.
    """

    name: str
    command: tuple[str, ...]
    folder: str
    seed: int
    parameters: Mapping[str, Parameter]
    run_folder: str = ""
    fedstack: str = __version__
    created: str = attrs.field(
        factory=lambda: datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    )

    @property
    def shell_line(self) -> str:
        """The command as it can be typed into a shell."""
        return f"cd {shlex.quote(self.folder)} && {shlex.join(self.command)}"

    def started_by(self, later: "RunRecord") -> "RunRecord":
        """Returns this record with the command of a later one, if that has a command."""
        if not later.command:
            return self
        return attrs.evolve(self, command=later.command, folder=later.folder, run_folder=later.run_folder)

    def write(self, folder: Path) -> None:
        """Writes the record to the folder of a run, as a whole or not at all.

        Raises:
          ProgramStateError: If it cannot be written.
        """
        content = json.dumps({"format": _FORMAT, **attrs.asdict(self)}, indent=2)
        write_whole(folder / RECORD, [f"{content}\n".encode()])

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """Reads the record of a run.

        Raises:
          FileNotFoundError: If the folder has none.
          ProgramStateError: If the record is damaged or cannot be read, or the file is of something else.
        """
        path = folder / RECORD
        if path.exists() and not path.is_file():  # to read a pipe might never end
            raise ProgramStateError(f"Expected the record of a run in {path}, found no regular file; remove it")
        try:
            found: Any = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ProgramStateError(f"Cannot read {path}: {text_of(error)}; allow it") from error
        except ValueError as error:
            raise ProgramStateError(
                f"Expected the record of a run in {path}, found a damaged file ({text_of(error)}); remove it, and open "
                "the run again with its seed and parameters"
            ) from error
        if not isinstance(found, dict) or "format" not in found or "fedstack" not in found:
            raise ProgramStateError(
                f"Expected the record of a run in {path}, found a file of something else; choose another folder"
            )
        fields = cast("dict[str, Any]", found)
        if fields["format"] != _FORMAT:
            raise ProgramStateError(
                f"Expected format {_FORMAT} in {path}, found format {fields['format']}, which fedstack "
                f"{fields['fedstack']} wrote; use that version or a newer one"
            )
        try:
            return cls(
                str(fields["name"]), tuple(map(str, fields["command"])), str(fields["folder"]), int(fields["seed"]),
                dict(fields["parameters"]), str(fields.get("run_folder", "")), str(fields["fedstack"]),
                str(fields["created"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ProgramStateError(
                f"Expected the record of a run in {path}, found one that lacks a part or has another in its place "
                f"({text_of(error)}); remove it, and open the run again with its seed and parameters"
            ) from error


def this_command() -> tuple[str, ...]:
    """Returns the command of this process, without its environment; empty in a notebook or a shell."""
    if hasattr(sys, "ps1") or not sys.argv[0] or sys.argv[0] == "-":
        return ()
    return (sys.executable, *sys.orig_argv[1:])


def checked_parameters(parameters: Mapping[str, object] | None) -> dict[str, Parameter]:
    """Returns parameters with Python's own numbers.

    Raises:
      InvalidValueError: If a name is no string, or a value is no number, string or boolean.
    """
    found: dict[str, Parameter] = {}
    if parameters is not None:
        check_instance("parameters", parameters, Mapping, "pass a dictionary of numbers, strings and booleans")
    for name, given in (parameters or {}).items():
        value = cast("np.generic", given).item() if isinstance(given, np.generic) else given
        if not isinstance(cast(object, name), str) or not isinstance(value, (int, float, str)):
            raise InvalidValueError(
                f"Expected names with numbers, strings and booleans as the parameters of a run, found {name!r} with "
                f"{describe(cast(object, given))}; write it as text, or leave it out"
            )
        found[name] = value
    return found


def check_same(path: Path, before: RunRecord, now: RunRecord) -> None:
    """Checks that a run goes on with its seed and its parameters.

    Raises:
      InvalidValueError: If it does not.
    """
    expected, found = _differing(before, now)
    if expected:
        raise InvalidValueError(
            f"Expected {', '.join(expected)} in the run {path}, as it was begun, found {', '.join(found)}; pass what "
            "it was begun with, or choose another folder"
        )


def _differing(before: RunRecord, now: RunRecord) -> tuple[list[str], list[str]]:
    """Returns the settings of two runs that differ, as texts."""
    names = dict.fromkeys([*before.parameters, *now.parameters])
    pairs: list[tuple[str, object, object]] = [("the seed", before.seed, now.seed)]
    pairs += [(name, before.parameters.get(name), now.parameters.get(name)) for name in names]
    differ = [(name, one, other) for name, one, other in pairs if json.dumps(one) != json.dumps(other)]
    return [_setting(name, one) for name, one, _ in differ], [_setting(name, other) for name, _, other in differ]


def differing_settings(one: RunRecord, other: RunRecord) -> list[str]:
    """Returns the seed and the parameters that differ between two runs, each with both values."""
    return [f"{left} / {right.partition(' = ')[2]}" for left, right in zip(*_differing(one, other))]


def _setting(name: str, value: object) -> str:
    return f"{name} = {'none' if value is None else json.dumps(value)}"
