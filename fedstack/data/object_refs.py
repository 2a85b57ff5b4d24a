"""Reads values from Ray's object store: a client's value may be a `ray.ObjectRef`."""

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
    """Stands for the value of an `ObjectRef`.

    Attributes:
      ref: The `ray.ObjectRef`.
    """

    ref: Any

    @classmethod
    def read(cls, found: Sequence["RayObject"], member: Type, where: Where) -> Sequence[object]:
        return read_refs([one.ref for one in found], where)


def imported_ray() -> Any:
    """Returns Ray, which is imported only if there is an object of it."""
    import ray

    return ray


def read_refs(refs: Sequence[Any], where: Where) -> Sequence[Any]:
    """Returns values from the object store; arrays are read-only views of it.

    Args:
      refs: Objects of class `ray.ObjectRef`.
      where: Returns the path of the value at an index, for error messages.

    Raises:
      InvalidValueError: If the task that should make a value has failed, or Ray has been shut down.
      RemoteError: If Ray has lost a value and cannot make it again.
    """
    ray = imported_ray()
    if not ray.is_initialized():  # ray.get would start another Ray
        raise InvalidValueError(
            f"Expected a value, found an ObjectRef of a Ray that has been shut down; at {where(0)}; call ray.init() "
            "and make the value again"
        )
    try:
        return ray.get(list(refs))
    except Exception:
        for index, ref in enumerate(refs):  # the error does not say which value it is about
            try:
                ray.get(ref)
            except Exception as error:
                raise _unreadable(error, where(index), ray.exceptions) from error
        raise


def _unreadable(error: Any, place: str, kinds: Any) -> FedstackError:
    if isinstance(error, kinds.TaskCancelledError):  # before the task has begun, or as what it raised
        return InvalidValueError(
            f"The Ray task that should make the value at {place} was cancelled; call it again, or leave the client out"
        )
    if isinstance(error, kinds.RayTaskError):
        cause = error.cause
        lines = printable(str(error).partition("\n")[2].rpartition("\n")[0])
        return InvalidValueError(
            f"The Ray task that should make the value at {place} raised {type(cause).__name__}: {text_of(cause)}"
            + (lines and f"\n{lines}")
        )
    if isinstance(error, (kinds.WorkerCrashedError, kinds.RayActorError, kinds.OutOfMemoryError)):
        return RemoteError(
            f"The process that should make a value ended ({_said(error)}); at {place}; fix the task if it ends its "
            "process (os._exit, a crash, too much memory), or let Ray try it again: max_retries",
            code="DATA_LOSS",
        )
    if isinstance(error, kinds.RayError):
        return RemoteError(
            f"Ray has lost a value: {_said(error)}; at {place}; make it again, in a task, which Ray can repeat, or in "
            "a process that stays: a value of ray.put ends with the process that called it",
            code="DATA_LOSS",
        )
    return InvalidValueError(f"Reading an ObjectRef raised {_said(error)}; at {place}; make the value again")


def _said(error: Exception) -> str:
    """Returns the first relevant sentence of an error of Ray, without those about settings and log files."""
    paragraphs = text_of(error).split("\n\n")
    said = next((one for one in paragraphs if not one.startswith("Failed to retrieve object")), paragraphs[0])
    said = said.partition("\n\t")[0].partition(". ")[0].strip().rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def said_in_task(error: Exception) -> tuple[str, str]:
    """Returns the message of an error of Ray Data, in a line, and the lines of a user's function if that raised."""
    cause: object = getattr(error, "cause", None)
    if type(cause).__name__ != "UserCodeException":
        return _said(cause if isinstance(cause, Exception) else error), ""
    # Of the function's error Ray keeps only the printed traceback, before the rest.
    lines = printable(str(error).partition("\n\nThe above exception was")[0]).splitlines()[1:]
    frames = 1 + max((index for index, line in enumerate(lines) if line.startswith("  ")), default=-1)
    return " ".join(lines[frames:]), "\n".join(lines[:frames])
