"""Calls a Python function the way the language's decorators promise, once or once per client.

The function sees structs by attribute, by key and by keyword; all else is what every `Leaf` does.
"""

from collections.abc import Callable
from typing import cast

from fedstack.computations.leaves.arguments import Convert, argument_converter, converted
from fedstack.computations.leaves.declared_types import calls_by_name, unpacks
from fedstack.computations.leaves.leaf import Leaf
from fedstack.computations.types.language import StructType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.containers import argument_maker


class PythonLeaf(Leaf):
    """A Python function with its declared types, ready to run."""

    result_advice = "if the function is right, state another result_type= (left out, it is that of a call on zeros)"

    def __init__(self, function: Callable[..., object], name: str, parameter: Type | None, result: Type) -> None:
        super().__init__(name, parameter, result)
        self._convert = None  # `evaluate` does it, as the function wants it
        self.evaluate = bind(function, parameter)  # instead of a method, which would be one more call per client


def bind(function: Callable[..., object], parameter: Type | None) -> Convert:
    """Returns a function of one payload that calls `function` with its arguments unpacked as its signature asks."""
    if parameter is None:
        return lambda _: function()
    if not unpacks(function, parameter):
        convert = argument_converter(parameter, argument_maker)
        return function if convert is None else _compose(function, convert)
    fields = fields_of(cast(StructType, parameter))
    converters = [argument_converter(t, argument_maker) for _, t in fields]
    if not calls_by_name(function, cast(StructType, parameter)):
        if not any(converters):
            return lambda payload: function(*cast("tuple[object, ...]", payload))
        return lambda payload: function(*converted(converters, payload))
    keys = [cast(str, name) for name, _ in fields]
    return lambda payload: function(**dict(zip(keys, converted(converters, payload))))


def _compose(function: Callable[..., object], convert: Convert) -> Convert:
    return lambda payload: function(convert(payload))
