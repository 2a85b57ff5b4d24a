"""Creates calls of Python functions, runs them on workers, and keeps the per-worker values that they use.

The arguments of a call are pickled. They may contain references to the value of another call or to a per-worker value.
A worker replaces these references with the values when it runs the call.
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
"""The kinds of references in arguments: to a value, to a value in a box, and to a per-worker value."""


def _iterator_over(make: Callable[[], Iterable[object]]) -> Iterator[object]:
    """Calls `make` to create a dataset, and returns an iterator over it. Runs on a worker."""
    return iter(make())


def _itself(value: Any) -> Any:
    return value


class ArgumentOnly:
    """The base class of objects that represent a value on workers.

    Such an object can only be passed as an argument to a scheduled function, which receives the value instead.
    """

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidValueError(f"{self!r} cannot be pickled; pass it as an argument to the scheduled function")


class PerWorkerValues(ArgumentOnly):
    """A value of which each worker has its own copy.

    A worker creates its copy on first use. If the worker is lost, the copy is created again. Workers drop their copies
    some time after the last reference to this object is gone. Pass this object as an argument to Python functions. On
    each worker, only one closure at a time uses the copy.

    Args:
      source: A function that each worker calls to create its copy, or a value to copy to each worker.
      what: The name of the value in messages; by default a description of `source`.
    """

    def __init__(self, source: object, what: str = "") -> None:
        self.key = uuid.uuid4().hex
        self._what = what = what or describe(source)
        try:
            content = dumps(source if callable(source) else functools.partial(_itself, source))
        except Exception as error:  # objects in the source may raise any exception when they are pickled
            raise CarrierError(f"Pickling {what} raised {type(error).__name__}: {error}") from error
        self.maker = ConstantArgument(np.frombuffer(content, np.uint8), BOX, is_shared=True)

    def __next__(self) -> NoReturn:
        raise NotImplementedError(
            f"next() cannot be called on {self!r} in the coordinator's program; pass the object as an argument to a "
            "scheduled function, and call next() there"
        )

    def __repr__(self) -> str:
        return f"<PerWorkerValues of {self._what}>"


class PerWorkerDataset(ArgumentOnly):
    """A dataset of which each worker has its own copy. `iter` returns a per-worker value: an iterator on each worker.

    Args:
      source: A function that each worker calls to create the dataset, or a dataset to copy to each worker.

    Raises:
      InvalidValueError: If `source` can be iterated over only once, or not at all.
    """

    def __init__(self, source: Iterable[object] | Callable[[], Iterable[object]]) -> None:
        if not callable(source) and (isinstance(source, Iterator) or not isinstance(cast(object, source), Iterable)):
            raise InvalidValueError(
                f"Expected a dataset that can be iterated over repeatedly, or a function that returns one, found "
                f"{describe(source)}"
            )
        self._make = source if callable(source) else functools.partial(_itself, source)
        self._what = describe(source)

    @functools.cached_property
    def datasets(self) -> PerWorkerValues:
        """The dataset on each worker, for functions that take a dataset instead of an iterator."""
        return PerWorkerValues(self._make, self._what)

    def __iter__(self) -> PerWorkerValues:  # type: ignore[override]
        return PerWorkerValues(functools.partial(_iterator_over, self._make), f"iterators over {self._what}")

    def __repr__(self) -> str:
        return f"<PerWorkerDataset of {self._what}>"


def function_of(function: Callable[..., object], name: str, types: Sequence[Type]) -> CalledFunction:
    """Wraps a Python function so that workers can call it.

    Args:
      function: The Python function.
      name: The name of the function in messages.
      types: The types of the members of the argument.

    Raises:
      InvalidComputationError: If `function` is a coroutine function.
      InvalidValueError: If `function` has captured an object that can be passed only as an argument.
    """
    check_returns(function, name)
    for variable, value in variables_of(function):
        if isinstance(value, ArgumentOnly):
            raise InvalidValueError(
                f"{name!r} captures {value!r} as {variable!r}, but this object can only be passed as an argument; "
                f"write schedule({name}, args=({variable},))"
            )

    def body(members: Sequence[Any]) -> Box:
        return _run(function, name, members)

    body.__name__ = body.__qualname__ = name
    return CalledFunction(python_computation([StructType(types)], BOX)(body), name, _signature_of(function))


def _signature_of(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        # Use the signature of the decorated function, since a decorator may change the parameters.
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None


def opener_for(expected: Type) -> CalledFunction:
    """Returns a function that unpacks a value of the expected type from its box."""

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
      name: The name of the function in messages.
      args: The positional arguments.
      kwargs: The keyword arguments.
      result_of: Returns the argument for a handle to a closure's value, and `None` for any other object.
      function_for: Returns the function that workers run, given the types of the members of its argument.

    Raises:
      CarrierError: If an object in the arguments cannot be pickled.
      ForeignValueError: If the arguments contain a value of another coordinator.
      TypeMismatchError: If the arguments do not match the signature of the function.
    """
    members: list[ConstantArgument | ResultArgument] = []
    positions: dict[object, int] = {}
    uses: dict[str, int] = {}

    def place(key: object, member: ConstantArgument | ResultArgument) -> int:
        if key not in positions:
            members.append(member)
            positions[key] = len(members)  # counted from 1, because the pickle is inserted as member 0
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
    except Exception as error:  # objects in the arguments may raise any exception when they are pickled
        raise CarrierError(
            f"Pickling the arguments of {name!r} raised {type(error).__name__}: {error}; pass no objects that belong "
            "to this process, such as locks and open files"
        ) from error
    members.insert(0, ConstantArgument(np.frombuffer(dumps((list(uses.items()), content)), np.uint8), BOX))
    function = function_for([member.type_signature for member in members])
    if function.signature is not None:
        bound(function.signature, name, args, kwargs)
    return ClosureCall(function, StructArgument([None] * len(members), members), boxed=True)


@attrs.define(eq=False)
class _PerWorkerEntry:
    """A worker's copy of a per-worker value.

    Attributes:
      lock: Held while a closure uses the value.
      made: Whether the value has been created.
      value: The value.
      maker: A function that returns the array from which the value was created, or `None` once the array has been
        freed.
      ends_with_maker: Whether the value is dropped when the array is freed.
    """

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    made: bool = False
    value: object = None
    maker: "Callable[[], object]" = lambda: None
    ends_with_maker: bool = False


def _run(function: Callable[..., object], name: str, members: Sequence[Any]) -> Box:
    uses, content = loads(members[0].tobytes())
    with contextlib.ExitStack() as stack:
        # All closures lock their values in the same order, so that two closures with the same values cannot deadlock.
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
    """Provides a worker's copy of a per-worker value to one closure at a time. Creates the copy if it is missing."""
    closures = current_scope().of(ClosureScope)
    if closures is None:
        raise ContextError(
            "Per-worker values can be used only in functions that a ClusterCoordinator runs; pass the function to the "
            "coordinator's schedule method"
        )
    kept = closures.kept
    entry: _PerWorkerEntry = kept.setdefault(key, _PerWorkerEntry())
    with entry.lock:
        if not entry.made:
            entry.value = loads(maker.tobytes())()
            entry.made, entry.maker = True, weakref.ref(maker)
        elif not entry.ends_with_maker and entry.maker() is maker:  # calls share the array that the session keeps
            weakref.finalize(maker, kept.pop, key, None).atexit = False
            entry.ends_with_maker = True
        yield entry.value


def current_worker_index() -> int:
    """Returns the index of the worker that runs the calling function. Indices start at 0.

    Raises:
      ContextError: If the calling function is not run by a coordinator.
    """
    closures = current_scope().of(ClosureScope)
    if closures is None or closures.worker_index is None:
        raise ContextError(
            "current_worker_index() can be called only in a function that a coordinator runs; schedule the function "
            "with a ClusterCoordinator"
        )
    return closures.worker_index
