"""Makes calls of Python functions, runs them at workers, and keeps the per-worker values that they use.

The arguments of a call are pickled with it. Objects in them that stand for something at the worker, such as the value
of another call or a per-worker value, are resolved when the call runs there.
"""

import contextlib
import functools
import inspect
import threading
import uuid
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, cast

import attrs
import numpy as np

from fedstack.computations.leaves.declared_types import check_returns
from fedstack.computations.leaves.function_pickles import dumps, loads, variables_of
from fedstack.computations.leaves.python_computation import bound, python_computation
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import StructType, Type
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import CarrierError, ContextError, ForeignValueError, InvalidValueError
from fedstack.service.coordinator.calls.boxes import BOX, Box, box, unboxed, unboxed_as
from fedstack.service.coordinator.calls.closures import (
    CalledFunction,
    ClosureCall,
    ConstantArgument,
    ResultArgument,
    StructArgument,
)
from fedstack.service.executor.session import ClosureScope

_VALUE, _BOXED, _KEPT = "value", "boxed", "kept"
"""The kinds of references in arguments: to a value, to a boxed value, to a per-worker value."""


def _iterator_over(make: Callable[[], Iterable[object]]) -> Iterator[object]:
    """Starts an iteration at a worker."""
    return iter(make())


def _itself(value: Any) -> Any:
    return value


class ArgumentOnly:
    """Stands for something at workers. Functions receive that as an argument; this object itself is of no use there."""

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidValueError(
            f"Expected nothing of this process in what is sent to a worker, found {self!r}; give it as an argument"
        )


class PerWorkerValues(ArgumentOnly):
    """A value that each worker has a copy of: created there on first use, and again after the worker was lost.

    Workers drop it some time after the last reference to this is gone.

    Pass it as an argument to Python functions; one closure at a time uses it.

    Args:
      source: A function that creates it, called at each worker, or a value to copy.
      what: Its name in messages; by default a description of the source.
    """

    def __init__(self, source: object, what: str = "") -> None:
        self.key = uuid.uuid4().hex
        self._what = what = what or describe(source)
        try:
            content = dumps(source if callable(source) else functools.partial(_itself, source))
        except Exception as error:  # objects that it refers to may raise anything
            raise CarrierError(f"Pickling {what} raised {type(error).__name__}: {error}") from error
        self.maker = ConstantArgument(np.frombuffer(content, np.uint8), BOX, is_shared=True)

    def __next__(self) -> NoReturn:
        raise NotImplementedError(
            f"Expected to be used in a scheduled function, found a call of next() on {self!r}; give it as an argument"
        )

    def __repr__(self) -> str:
        return f"<PerWorkerValues of {self._what}>"


class PerWorkerDataset(ArgumentOnly):
    """A dataset that each worker has a copy of; `iter` returns one iterator per worker.

    Args:
      source: A function that creates it, called at each worker, or a dataset to copy.

    Raises:
      InvalidValueError: If it can be iterated over only once, or not at all.
    """

    def __init__(self, source: Iterable[object] | Callable[[], Iterable[object]]) -> None:
        if not callable(source) and (isinstance(source, Iterator) or not isinstance(cast(object, source), Iterable)):
            raise InvalidValueError(
                f"Expected a dataset that can be iterated over again and again, or a function that returns one, found "
                f"{describe(source)}"
            )
        self._make = source if callable(source) else functools.partial(_itself, source)
        self._what = describe(source)

    @functools.cached_property
    def datasets(self) -> PerWorkerValues:
        """The dataset of each worker, for functions that take the dataset instead of an iterator."""
        return PerWorkerValues(self._make, self._what)

    def __iter__(self) -> PerWorkerValues:  # type: ignore[override]
        return PerWorkerValues(functools.partial(_iterator_over, self._make), f"iterators over {self._what}")

    def __repr__(self) -> str:
        return f"<PerWorkerDataset of {self._what}>"


def function_of(function: Callable[..., object], name: str, types: Sequence[Type]) -> CalledFunction:
    """Returns the function that workers run for a Python function.

    Args:
      function: The function.
      name: Its name in messages.
      types: The types of the members of its argument.

    Raises:
      InvalidComputationError: If it is a coroutine function.
      InvalidValueError: If it has captured an object that it can only be given as an argument.
    """
    check_returns(function, name)
    for variable, value in variables_of(function):
        if isinstance(value, ArgumentOnly):
            raise InvalidValueError(
                f"Expected {name!r} to get what workers have as an argument, found {value!r} captured as {variable!r}; "
                f"write schedule({name}, args=({variable},))"
            )

    def body(members: Sequence[Any]) -> Box:
        return _run(function, name, members)

    body.__name__ = body.__qualname__ = name
    return CalledFunction(python_computation([StructType(types)], BOX)(body), name, _signature_of(function))


def _signature_of(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        # The signature as Python calls it: a function wrapped by a decorator may have other parameters.
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some functions that are not written in Python
        return None


def opener_for(expected: Type) -> CalledFunction:
    """Returns the function that takes a value of a type out of its box."""

    def unboxes(boxed: Box) -> Any:
        return unboxed_as(boxed, expected)

    return CalledFunction(python_computation([BOX], expected)(unboxes), "unboxes")


def python_call(
    name: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    result_of: Callable[[object], ResultArgument | None],
    function_for: Callable[[Sequence[Type]], CalledFunction],
) -> ClosureCall:
    """Returns the call of a Python function.

    Args:
      name: Its name in messages.
      args: Its arguments by position.
      kwargs: Its arguments by name.
      result_of: Returns the closure behind an object that stands for its value; `None` for any other object.
      function_for: Returns the function that workers run, given the types of the members of the argument.

    Raises:
      CarrierError: If something in the arguments cannot be pickled.
      ForeignValueError: If an argument is a value of another coordinator.
      TypeMismatchError: If the function cannot be called with these arguments.
    """
    members: list[ConstantArgument | ResultArgument] = []
    positions: dict[object, int] = {}
    uses: dict[str, int] = {}

    def place(key: object, member: ConstantArgument | ResultArgument) -> int:
        if key not in positions:
            members.append(member)
            positions[key] = len(members)  # the first member is the pickle
        return positions[key]

    def refer(part: object) -> object:
        if isinstance(part, PerWorkerDataset):
            part = part.datasets
        if isinstance(part, PerWorkerValues):
            uses[part.key] = place(part.key, part.maker)
            return _KEPT, part.key
        result = result_of(part)
        if result is None:
            return None
        return _BOXED if result.boxed else _VALUE, place(result.closure, result)

    try:
        content = dumps((tuple(args), dict(kwargs)), refer)
    except ForeignValueError:
        raise
    except Exception as error:  # objects in them may raise anything
        raise CarrierError(
            f"Pickling the arguments of {name!r} raised {type(error).__name__}: {error}; give nothing that belongs to "
            "this process, such as locks and open files"
        ) from error
    members.insert(0, ConstantArgument(np.frombuffer(dumps((list(uses.items()), content)), np.uint8), BOX))
    function = function_for([member.type_signature for member in members])
    if function.signature is not None:
        bound(function.signature, name, args, kwargs)
    return ClosureCall(function, StructArgument([None] * len(members), members), boxed=True)


@attrs.define(eq=False)
class _PerWorkerEntry:
    """A per-worker value that a worker keeps for one coordinator.

    Attributes:
      lock: Held while a closure uses it.
      made: Whether it has been created.
      value: The value.
      maker: The box that it was created from; a value of the coordinator's session, while that refers to it.
      ends_with_maker: Whether it is dropped together with the maker.
    """

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    made: bool = False
    value: object = None
    maker: "Callable[[], object]" = lambda: None
    ends_with_maker: bool = False


def _run(function: Callable[..., object], name: str, members: Sequence[Any]) -> Box:
    uses, content = loads(members[0].tobytes())
    with contextlib.ExitStack() as stack:
        # In the same order everywhere, so that two closures that use the same values do not deadlock.
        kept = {key: stack.enter_context(_in_use(key, members[position])) for key, position in sorted(uses)}

        def find(reference: tuple[str, Any]) -> object:
            kind, which = reference
            if kind == _KEPT:
                return kept[which]
            return unboxed(members[which]) if kind == _BOXED else members[which]

        args, kwargs = loads(content, find)
        return box(function(*args, **kwargs), name)


@contextlib.contextmanager
def _in_use(key: str, maker: Box) -> Generator[object, None, None]:
    """Gives the value that a worker keeps under a key to one closure at a time; creates it if it is missing."""
    closures = current_scope().of(ClosureScope)
    if closures is None:
        raise ContextError("Per-worker values are available only in functions that a ClusterCoordinator runs")
    kept = closures.kept
    entry: _PerWorkerEntry = kept.setdefault(key, _PerWorkerEntry())
    with entry.lock:
        if not entry.made:
            entry.value = loads(maker.tobytes())()
            entry.made, entry.maker = True, weakref.ref(maker)
        elif not entry.ends_with_maker and entry.maker() is maker:  # otherwise each call has another copy
            weakref.finalize(maker, kept.pop, key, None).atexit = False
            entry.ends_with_maker = True
        yield entry.value


def current_worker_index() -> int:
    """Returns the index, counted from 0, of the coordinator's worker that runs the calling function.

    Raises:
      ContextError: If the calling function is not run by a coordinator.
    """
    closures = current_scope().of(ClosureScope)
    if closures is None or closures.worker_index is None:
        raise ContextError("Expected a function that a coordinator runs at a worker, found none; schedule it")
    return closures.worker_index
