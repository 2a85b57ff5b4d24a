"""Reads clients' values from Ray's object store, if they are passed as `ray.ObjectRef`s."""

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
    """A placeholder for the value of a `ray.ObjectRef`.

    Attributes:
      ref: The `ray.ObjectRef`.
    """

    ref: Any

    @classmethod
    def read(cls, found: Sequence["RayObject"], member: Type, where: Where) -> Sequence[object]:
        return read_refs([one.ref for one in found], where)


def imported_ray() -> Any:
    """Returns the `ray` module, which is imported only when a value is one of its objects."""
    import ray

    return ray


def read_refs(refs: Sequence[Any], where: Where) -> Sequence[Any]:
    """Returns values from the object store. Arrays are read-only views of the store's memory.

    Args:
      refs: The references, of class `ray.ObjectRef`.
      where: A function from the index of a reference to the path of its value, for error messages.

    Raises:
      InvalidValueError: If the task that should create a value has failed, or Ray has been shut down.
      RemoteError: If Ray has lost a value and cannot create it again.
    """
    ray = imported_ray()
    if not ray.is_initialized():  # otherwise, ray.get would start a new Ray instance
        raise InvalidValueError(
            f"Expected a value at {where(0)}, found an ObjectRef of a Ray instance that has been shut down; call "
            "ray.init() and create the value again"
        )
    try:
        return ray.get(list(refs))
    except Exception:
        for index, ref in enumerate(refs):  # the error does not identify the value, so read the values one by one
            try:
                ray.get(ref)
            except Exception as error:
                raise _unreadable(error, where(index), ray.exceptions) from error
        raise


def _unreadable(error: Any, place: str, kinds: Any) -> FedstackError:
    if isinstance(error, kinds.TaskCancelledError):  # cancelled before it began, or while it ran
        return InvalidValueError(
            f"The Ray task that should create the value at {place} was cancelled; run the task again, or omit the "
            "client"
        )
    if isinstance(error, kinds.RayTaskError):
        cause = error.cause
        lines = printable(str(error).partition("\n")[2].rpartition("\n")[0])
        return InvalidValueError(
            f"The Ray task that should create the value at {place} raised {type(cause).__name__}: {text_of(cause)}"
            + (lines and f"\n{lines}")
        )
    if isinstance(error, (kinds.WorkerCrashedError, kinds.RayActorError, kinds.OutOfMemoryError)):
        return RemoteError(
            f"The process that should create the value at {place} terminated ({_said(error)}); fix the task if it "
            "terminates its process (os._exit, a crash, too much memory), or let Ray retry it with max_retries",
            code="DATA_LOSS",
        )
    if isinstance(error, kinds.RayError):
        return RemoteError(
            f"Ray has lost the value at {place}: {_said(error)}; a value stored with ray.put is lost when its process "
            "ends, so create the value in a task, which Ray can repeat, or in a process that keeps running",
            code="DATA_LOSS",
        )
    return InvalidValueError(f"Reading the ObjectRef at {place} raised {_said(error)}; create the value again")


def _said(error: Exception) -> str:
    """Returns the first relevant sentence of a Ray error, without sentences about settings and log files."""
    paragraphs = text_of(error).split("\n\n")
    said = next((one for one in paragraphs if not one.startswith("Failed to retrieve object")), paragraphs[0])
    said = said.partition("\n\t")[0].partition(". ")[0].strip().rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def said_in_task(error: Exception) -> tuple[str, str]:
    """Returns a one-line message for a Ray Data error, and the traceback lines if a user's function raised it."""
    cause: object = getattr(error, "cause", None)
    if type(cause).__name__ != "UserCodeException":
        return _said(cause if isinstance(cause, Exception) else error), ""
    # Ray keeps only the printed traceback of the function's error, before the traceback of Ray's own error.
    lines = printable(str(error).partition("\n\nThe above exception was")[0]).splitlines()[1:]
    frames = 1 + max((index for index, line in enumerate(lines) if line.startswith("  ")), default=-1)
    return " ".join(lines[frames:]), "\n".join(lines[:frames])
