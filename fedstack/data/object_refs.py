"""Reads values that are in Ray's object store: a client's value may be a `ray.ObjectRef`."""

from collections.abc import Sequence
from typing import Any

import attrs

from fedstack.computations.types.language import Type
from fedstack.computations.values.deferred_column import Elsewhere, Where, stands_for
from fedstack.errors import FedstackError, InvalidValueError, RemoteError
from fedstack.foundations.error_text import printable, text_of


@stands_for("ray.ObjectRef")
@attrs.frozen
class RayObject(Elsewhere):
    """Stands for what an `ObjectRef` refers to.

    Attributes:
      ref: The `ray.ObjectRef`.
    """

    ref: Any

    @classmethod
    def read(cls, found: Sequence["RayObject"], member: Type, where: Where) -> Sequence[object]:
        return read_refs([one.ref for one in found], where)


def imported_ray() -> Any:
    """Returns the package, which is imported where somebody has an object of it."""
    import ray

    return ray


def read_refs(refs: Sequence[Any], where: Where) -> Sequence[Any]:
    """Returns what is in the object store; arrays are read-only views of it.

    Args:
      refs: Objects of class `ray.ObjectRef`.
      where: Gives the path of the value at an index, for messages.

    Raises:
      InvalidValueError: If a task has failed that should have made a value, or Ray has been shut down.
      RemoteError: If Ray has lost a value and cannot make it again.
    """
    ray = imported_ray()
    if not ray.is_initialized():  # to ask for anything would start another Ray
        raise InvalidValueError(
            f"Expected a value, found an ObjectRef of a Ray that has been shut down; at {where(0)}; call ray.init() "
            "and make the value anew"
        )
    try:
        return ray.get(list(refs))
    except Exception:
        for index, ref in enumerate(refs):  # the error does not tell whose it is
            try:
                ray.get(ref)
            except Exception as error:
                raise _unreadable(error, where(index), ray.exceptions) from error
        raise


def _unreadable(error: Any, place: str, kinds: Any) -> FedstackError:
    if isinstance(error, kinds.TaskCancelledError):  # before the task has begun, or as what it raised
        return InvalidValueError(
            f"The Ray task was cancelled that should have made the value at {place}; call it again, or leave the "
            "client out"
        )
    if isinstance(error, kinds.RayTaskError):
        cause = error.cause
        lines = printable(str(error).partition("\n")[2].rpartition("\n")[0])
        return InvalidValueError(
            f"A Ray task raised {type(cause).__name__}: {text_of(cause)}; it should have made the value at {place}"
            + (lines and f"\n{lines}")
        )
    if isinstance(error, (kinds.WorkerCrashedError, kinds.RayActorError, kinds.OutOfMemoryError)):
        return RemoteError(
            f"The process ended that should have made a value ({_said(error)}); at {place}; mend the task if it ends "
            "its process (os._exit, a crash, too much memory), or let Ray try it again: max_retries",
            code="DATA_LOSS",
        )
    if isinstance(error, kinds.RayError):
        return RemoteError(
            f"Ray has lost a value: {_said(error)}; at {place}; make it anew, in a task, which Ray can run again, "
            "or in a process that stays: what ray.put made ends with the process that called it",
            code="DATA_LOSS",
        )
    return InvalidValueError(f"Reading an ObjectRef raised {_said(error)}; at {place}; make the value anew")


def _said(error: Exception) -> str:
    """Returns the first sentence of an error of Ray's that says something; of settings and log files others tell."""
    paragraphs = text_of(error).split("\n\n")
    said = next((one for one in paragraphs if not one.startswith("Failed to retrieve object")), paragraphs[0])
    said = said.partition("\n\t")[0].partition(". ")[0].strip().rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def said_in_task(error: Exception) -> tuple[str, str]:
    """Returns what an error of Ray Data says, in a line, and the lines of a user's function if that raised."""
    cause: object = getattr(error, "cause", None)
    if type(cause).__name__ != "UserCodeException":
        return _said(cause if isinstance(cause, Exception) else error), ""
    # Ray keeps of what the function raised only how it was told, before the rest.
    lines = printable(str(error).partition("\n\nThe above exception was")[0]).splitlines()[1:]
    frames = 1 + max((index for index, line in enumerate(lines) if line.startswith("  ")), default=-1)
    return " ".join(lines[frames:]), "\n".join(lines[:frames])
