"""Runs scheduled Python functions in the worker: finds what their arguments stand for there."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, MutableMapping, Sequence
from typing import Any

import attrs

from fedstack.computations.leaves.python.function_pickles import loads
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import Type
from fedstack.errors import ContextError
from fedstack.service.coordinator.calls.boxes import Box, box, unboxed, unboxed_as
from fedstack.service.executor.sessions.session import ClosureScope

VALUE, BOXED, KEPT = "value", "boxed", "kept"
"""What stands in arguments for something else: a value, one in a box, what the worker keeps."""


@attrs.define(eq=False)
class _Kept:
    """What a worker keeps for one coordinator.

    Attributes:
      lock: Is held while a closure uses it.
      made: Whether it is there.
      value: It.
      maker: What has made it; a value of the coordinator's session, as long as that refers to it.
      ends_with_maker: Whether it is dropped with that.
    """

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    made: bool = False
    value: object = None
    maker: "Callable[[], object]" = lambda: None
    ends_with_maker: bool = False


def body_of(function: Callable[..., object], name: str) -> Callable[[Sequence[Any]], Box]:
    """Returns what runs in a worker for a Python function; it takes the members of its argument as one."""

    def run(members: Sequence[Any]) -> Box:
        return _run(function, name, members)

    return run


def opener_of(expected: Type) -> Callable[[Box], Any]:
    """Returns what takes a value out of its box where a computation wants one of a type."""

    def unboxes(boxed: Box) -> Any:
        return unboxed_as(boxed, expected)

    return unboxes


def _run(function: Callable[..., object], name: str, members: Sequence[Any]) -> Box:
    uses, content = loads(members[0].tobytes())
    with contextlib.ExitStack() as stack:
        # In the same order everywhere, so that two that use the same do not wait for each other.
        kept = {key: stack.enter_context(_in_use(key, members[position])) for key, position in sorted(uses)}

        def find(reference: tuple[str, Any]) -> object:
            kind, which = reference
            if kind == KEPT:
                return kept[which]
            return unboxed(members[which]) if kind == BOXED else members[which]

        args, kwargs = loads(content, find)
        return box(function(*args, **kwargs), name)


@contextlib.contextmanager
def _in_use(key: str, maker: Box) -> Generator[object, None, None]:
    """Gives what a worker keeps under a key to one closure at a time; it is made where it is not there."""
    kept = _keeping()
    entry: _Kept = kept.setdefault(key, _Kept())
    with entry.lock:
        if not entry.made:
            entry.value = loads(maker.tobytes())()
            entry.made, entry.maker = True, weakref.ref(maker)
        elif not entry.ends_with_maker and entry.maker() is maker:  # else it is another copy for each call
            weakref.finalize(maker, kept.pop, key, None).atexit = False
            entry.ends_with_maker = True
        yield entry.value


def _keeping() -> MutableMapping[str, Any]:
    closures = current_scope().of(ClosureScope)
    if closures is None:
        raise ContextError("Expected a worker that keeps what its clients make, found a process that works for itself")
    return closures.kept


def current_worker_index() -> int:
    """Returns which of the coordinator's workers runs the function that asks, counted from 0.

    Raises:
      ContextError: If it is not run by a coordinator.
    """
    closures = current_scope().of(ClosureScope)
    if closures is None or closures.worker_index is None:
        raise ContextError("Expected a function that a coordinator runs at a worker, found none; schedule it")
    return closures.worker_index
