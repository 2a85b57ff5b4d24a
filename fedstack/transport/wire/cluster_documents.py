"""Reads descriptions of clusters: TOML files, and environment variables with such a file or its path."""

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
    """What describes a cluster.

    Attributes:
      cluster: The jobs, as they were written.
      where: Their source, for error messages.
    """

    cluster: object
    where: str


def cluster_in_file(path: str | os.PathLike[str]) -> Document:
    """Returns the cluster of a file.

    Raises:
      InvalidValueError: If it cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidValueError(
            f"Expected a file with a cluster, found {path}, which cannot be read: {reason}"
        ) from error
    return _document(text, str(path))


def cluster_in(text: str, where: str = "") -> Document:
    """Returns the cluster that a text describes: TOML, JSON, or the path of a file of such, which is one line.

    Args:
      text: The text.
      where: What it was in, for error messages.

    Raises:
      InvalidValueError: If it does not.
    """
    if text.lstrip().startswith(("[", "{")) or "\n" in text.strip():
        return _document(text, where or "the text")
    named = f", named by {where}" if where else ""
    try:
        found = cluster_in_file(text.strip())
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}{named}") from error.__cause__
    return attrs.evolve(found, where=f"{found.where}{named}")


def cluster_in_environment(variables: Mapping[str, str]) -> Document:
    """Returns the cluster that variables describe.

    Raises:
      InvalidValueError: If they describe none.
    """
    if variables.get(VARIABLE, "").strip():
        return cluster_in(variables[VARIABLE], VARIABLE)
    if variables.get(TENSORFLOWS_VARIABLE, "").strip():
        content = _tensorflows(variables)
        if _KEY not in content:
            raise InvalidValueError(f"Expected a {_KEY!r} in {TENSORFLOWS_VARIABLE}, found none")
        return Document(content[_KEY], TENSORFLOWS_VARIABLE)
    raise InvalidValueError(
        f"Expected a cluster in {VARIABLE} (a path, or the content of such a file) or {TENSORFLOWS_VARIABLE}, found "
        "neither variable set"
    )


def task_in_environment(variables: Mapping[str, str]) -> tuple[object, object]:
    """Returns job and index of the task that variables name; `None` for those that they lack.

    Raises:
      InvalidValueError: If they cannot be read.
    """
    job, index = variables.get(_JOB, "").strip(), variables.get(_TASK, "").strip()
    if index and not index.isdecimal():
        raise InvalidValueError(f"Expected the index of a task in {_TASK}, found {index!r}")
    task: Mapping[str, object] = {}
    if not variables.get(VARIABLE, "").strip() and variables.get(TENSORFLOWS_VARIABLE, "").strip():
        task = _table(_tensorflows(variables).get("task", {}), f"the task in {TENSORFLOWS_VARIABLE}")
    found = task.get("index")
    if isinstance(found, str) and found.isdecimal():  # as some who write the variable do
        found = int(found)
    return job or task.get("type"), int(index) if index else found


def _document(text: str, where: str) -> Document:
    content = _parsed(text, where)
    others = ", ".join(repr(key) for key in content if key != _KEY)
    if _KEY not in content or others:
        raise InvalidValueError(
            f"Expected one table, [{_KEY}], with a list of addresses for each job, found {others or 'none'}; in {where}"
        )
    return Document(content[_KEY], where)


def _tensorflows(variables: Mapping[str, str]) -> Mapping[str, Any]:
    return _parsed(variables[TENSORFLOWS_VARIABLE], TENSORFLOWS_VARIABLE, is_json=True)


def _parsed(text: str, where: str, *, is_json: bool = False) -> Mapping[str, Any]:
    is_json = is_json or text.lstrip().startswith("{")
    try:
        content = cast(object, json.loads(text, object_pairs_hook=_once) if is_json else tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # what both raise is a ValueError
        raise InvalidValueError(f"Expected {'JSON' if is_json else 'TOML'}, found that {error}; in {where}") from error
    return _table(content, where)


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Returns an object of JSON; a name that comes twice is a mistake, as TOML has it."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def _table(content: object, where: str) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise InvalidValueError(f"Expected a table, found {describe(content)}; in {where}")
    return cast("Mapping[str, Any]", content)
