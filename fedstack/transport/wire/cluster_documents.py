"""Reads descriptions of clusters from TOML files and environment variables."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs

from fedstack.errors import InvalidValueError
from fedstack.foundations.value_text import describe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "FEDSTACK_CLUSTER"
TENSORFLOWS_VARIABLE = "TF_CONFIG"
_JOB, _TASK = "FEDSTACK_JOB", "FEDSTACK_TASK"
_KEY = "cluster"


@attrs.frozen
class Document:
    """The description of a cluster, as read from a file or environment variable.

    Attributes:
      cluster: The jobs as read from the source, without checks.
      where: The source of the description, for error messages.
    """

    cluster: object
    where: str


def cluster_in_file(path: str | os.PathLike[str]) -> Document:
    """Reads the description of a cluster from a file.

    Raises:
      InvalidValueError: If the file cannot be read, or does not describe a cluster.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not encoded as UTF-8"
        raise InvalidValueError(f"Cannot read the description of a cluster in the file {path}: {reason}") from error
    return _document(text, str(path))


def cluster_in(text: str, where: str = "") -> Document:
    """Reads the description of a cluster from a string, or from the file that the string names.

    Args:
      text: The description in TOML or JSON, or the path of a file that contains it. A path is a single line.
      where: The source of the text, for error messages.

    Raises:
      InvalidValueError: If the text or the file does not describe a cluster.
    """
    if text.lstrip().startswith(("[", "{")) or "\n" in text.strip():
        return _document(text, where or "the text")
    named = f" (named by {where})" if where else ""
    try:
        found = cluster_in_file(text.strip())
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}{named}") from error.__cause__
    return attrs.evolve(found, where=f"{found.where}{named}")


def cluster_in_environment(variables: Mapping[str, str]) -> Document:
    """Reads the description of a cluster from environment variables.

    Raises:
      InvalidValueError: If the variables do not describe a cluster.
    """
    if variables.get(VARIABLE, "").strip():
        return cluster_in(variables[VARIABLE], VARIABLE)
    if variables.get(TENSORFLOWS_VARIABLE, "").strip():
        content = _tensorflows(variables)
        if _KEY not in content:
            raise InvalidValueError(f"{TENSORFLOWS_VARIABLE} has no member {_KEY!r}")
        return Document(content[_KEY], TENSORFLOWS_VARIABLE)
    raise InvalidValueError(
        f"Expected a cluster in {VARIABLE} (the path or content of a file) or {TENSORFLOWS_VARIABLE}, found neither "
        "variable set; set one of them"
    )


def task_in_environment(variables: Mapping[str, str]) -> tuple[object, object]:
    """Returns the job and index of the task that environment variables specify; `None` for missing parts.

    Raises:
      InvalidValueError: If the variables cannot be read.
    """
    job, index = variables.get(_JOB, "").strip(), variables.get(_TASK, "").strip()
    if index and not index.isdecimal():
        raise InvalidValueError(f"Expected the index of a task in {_TASK}, found {index!r}; set it to a whole number")
    task: Mapping[str, object] = {}
    if not variables.get(VARIABLE, "").strip() and variables.get(TENSORFLOWS_VARIABLE, "").strip():
        task = _table(_tensorflows(variables).get("task", {}), f"the task in {TENSORFLOWS_VARIABLE}")
    found = task.get("index")
    if isinstance(found, str) and found.isdecimal():  # some programs write the index as text
        found = int(found)
    return job or task.get("type"), int(index) if index else found


def _document(text: str, where: str) -> Document:
    content = _parsed(text, where)
    others = ", ".join(repr(key) for key in content if key != _KEY)
    if _KEY not in content or others:
        raise InvalidValueError(
            f"Expected only a table [{_KEY}] with a list of addresses per job, found {others or 'no table'} in {where}"
        )
    return Document(content[_KEY], where)


def _tensorflows(variables: Mapping[str, str]) -> Mapping[str, Any]:
    return _parsed(variables[TENSORFLOWS_VARIABLE], TENSORFLOWS_VARIABLE, is_json=True)


def _parsed(text: str, where: str, *, is_json: bool = False) -> Mapping[str, Any]:
    is_json = is_json or text.lstrip().startswith("{")
    try:
        content = cast(object, json.loads(text, object_pairs_hook=_once) if is_json else tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # both parsers raise a ValueError
        raise InvalidValueError(f"Invalid {'JSON' if is_json else 'TOML'} in {where}: {error}") from error
    return _table(content, where)


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Returns a JSON object as a dictionary; raises an error for duplicate names, which TOML also forbids."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def _table(content: object, where: str) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise InvalidValueError(f"Expected a table, found {describe(content)} in {where}")
    return cast("Mapping[str, Any]", content)
