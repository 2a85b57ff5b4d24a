"""Makes calls of Python functions: their arguments are written along, and values of other calls are found there."""

import inspect
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedstack.computations.leaves.declared_types import check_returns
from fedstack.computations.leaves.python.captures import variables_of
from fedstack.computations.leaves.python.function_pickles import dumps
from fedstack.computations.leaves.python.python_computation import bound, python_computation
from fedstack.computations.types.language import StructType, Type
from fedstack.errors import CarrierError, ForeignValueError, InvalidValueError
from fedstack.service.coordinator.calls.boxes import BOX
from fedstack.service.coordinator.calls.calls import Call, Function, Known, Lasting, Members, Result
from fedstack.service.coordinator.calls.closure_bodies import BOXED, KEPT, VALUE, body_of, opener_of
from fedstack.service.coordinator.calls.per_worker import ArgumentOnly, PerWorkerDataset, PerWorkerValues


def function_of(function: Callable[..., object], name: str, types: Sequence[Type]) -> Function:
    """Returns what workers run for a Python function.

    Args:
      function: The function.
      name: What messages call it.
      types: The types of the members of its argument.

    Raises:
      InvalidComputationError: If it is a coroutine function.
      InvalidValueError: If it has captured what it can only be given as an argument.
    """
    check_returns(function, name)
    for variable, value in variables_of(function):
        if isinstance(value, ArgumentOnly):
            raise InvalidValueError(
                f"Expected {name!r} to get what workers have as an argument, found {value!r} captured as {variable!r}; "
                f"write schedule({name}, args=({variable},))"
            )
    body = body_of(function, name)
    body.__name__ = body.__qualname__ = name
    return Function(python_computation([StructType(types)], BOX)(body), name, _signature_of(function))


def _signature_of(function: Callable[..., object]) -> inspect.Signature | None:
    try:
        # As Python calls it: what a decorator wraps may have other parameters.
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some of those that are not written in Python
        return None


def opener_for(expected: Type) -> Function:
    """Returns what takes a value of a type out of its box."""
    return Function(python_computation([BOX], expected)(opener_of(expected)), "unboxes")


def python_call(
    name: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    result_of: Callable[[object], Result | None],
    function_for: Callable[[Sequence[Type]], Function],
) -> Call:
    """Returns the call of a Python function.

    Args:
      name: What messages call it.
      args: Its arguments by position.
      kwargs: Those by name.
      result_of: Returns the closure of something that stands for its value, and `None` for anything else.
      function_for: Returns what workers run, for the types of the members of the argument.

    Raises:
      CarrierError: If something in the arguments cannot be written.
      ForeignValueError: If it is a value of another coordinator.
      TypeMismatchError: If the function cannot be called with them.
    """
    members: list[Known | Lasting | Result] = []
    positions: dict[object, int] = {}
    uses: dict[str, int] = {}

    def place(key: object, member: Lasting | Result) -> int:
        if key not in positions:
            members.append(member)
            positions[key] = len(members)  # the first member is what is written here
        return positions[key]

    def refer(part: object) -> object:
        if isinstance(part, PerWorkerDataset):
            part = part.datasets
        if isinstance(part, PerWorkerValues):
            uses[part.key] = place(part.key, part.maker)
            return KEPT, part.key
        result = result_of(part)
        if result is None:
            return None
        return BOXED if result.boxed else VALUE, place(result.closure, result)

    try:
        content = dumps((tuple(args), dict(kwargs)), refer)
    except ForeignValueError:
        raise
    except Exception as error:  # what is in them may refuse in any way
        raise CarrierError(
            f"Pickling the arguments of {name!r} raised {type(error).__name__}: {error}; give nothing that belongs to "
            "this process, such as locks and open files"
        ) from error
    members.insert(0, Known(np.frombuffer(dumps((list(uses.items()), content)), np.uint8), BOX))
    function = function_for([member.type_signature for member in members])
    if function.signature is not None:
        bound(function.signature, name, args, kwargs)
    return Call(function, Members([None] * len(members), members), boxed=True)
