"""Holds the decorated Python functions of this process, and runs them as leaves.

While a computation stays in this process, its functions are handles, serial numbers in a registry. A function sees
structs by attribute, by key and by keyword; all else is common to every `Leaf`.
"""

import itertools
import logging
import weakref
from collections import Counter
from collections.abc import Callable
from typing import cast

import attrs
from google.protobuf import any_pb2

from fedstack.computations.leaves.declared_types import calls_by_name, unpacks
from fedstack.computations.leaves.leaf import Convert, Leaf, argument_converter, converted
from fedstack.computations.leaves.leaf_runtimes import PROCESS
from fedstack.computations.types.language import StructType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.containers import argument_maker
from fedstack.errors import CarrierError
from fedstack.foundations.error_text import name_text
from fedstack.proto import carriers_pb2

_logger = logging.getLogger(__name__)
# This many functions with the same code must be decorated in a loop.
_MANY = 200


@attrs.frozen(eq=False)
class PythonFunction:
    """A decorated function with its annotated types; `PythonHandle.serial` finds it in the registry."""

    function: Callable[..., object]
    name: str
    parameter: Type | None
    result: Type


class HandleRegistry:
    """Finds the functions of this process by the serial number of their handle.

    A function is referenced weakly as long as only the decorated object has its handle, and permanently once that has
    been built into another computation: from then on there may be copies of the handle anywhere.
    """

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self._known: weakref.WeakValueDictionary[int, PythonFunction] = weakref.WeakValueDictionary()
        self._kept: dict[int, PythonFunction] = {}
        self._kept_of_code: Counter[object] = Counter()

    def add(self, function: PythonFunction) -> int:
        """Registers a function and returns its serial number."""
        serial = next(self._serials)
        self._known[serial] = function
        return serial

    def keep(self, serial: int) -> None:
        """Keeps a function as long as the process lives. Logs a warning once for many functions with the same code."""
        found = self._known.get(serial)
        if found is None or serial in self._kept:
            return
        self._kept[serial] = found
        code = getattr(found.function, "__code__", found.name)
        self._kept_of_code[code] += 1
        if self._kept_of_code[code] == _MANY:
            _logger.warning(
                "%r has been decorated and built into computations %d times, and all of these stay in memory; decorate "
                "it once, and pass what differs as an argument",
                found.name,
                _MANY,
            )

    def find(self, serial: int) -> PythonFunction | None:
        """Returns a function; `None` if it has been garbage-collected."""
        return self._known.get(serial)

    def __len__(self) -> int:
        return len(self._known)


registry = HandleRegistry()


def handle_content(function: PythonFunction) -> tuple[any_pb2.Any, int]:
    """Registers a function and returns the content of its `data` block, and the serial number."""
    serial = registry.add(function)
    content = any_pb2.Any()
    content.Pack(carriers_pb2.PythonHandle(process=PROCESS, serial=serial, name=function.name))
    return content, serial


def handle_of(content: any_pb2.Any) -> carriers_pb2.PythonHandle | None:
    """Returns the handle that the content of a `data` block is; `None` for other contents."""
    handle = carriers_pb2.PythonHandle()
    return handle if content.Unpack(handle) else None


def known_function(handle: carriers_pb2.PythonHandle) -> PythonFunction | None:
    """Returns the function of a handle; `None` if it is of another process or garbage-collected."""
    return registry.find(handle.serial) if handle.process == PROCESS else None


def find_function(handle: carriers_pb2.PythonHandle) -> PythonFunction:
    """Returns the function of a handle.

    Raises:
      CarrierError: If there is none in this process.
    """
    found = known_function(handle)
    if found is None:
        raise CarrierError(f"This process no longer has the function {name_text(handle.name)!r}")
    return found


class PythonLeaf(Leaf):
    """A Python function with its declared types, ready to run."""

    result_advice = "if the function is right, state another result_type= (left out, it is that of a call on zeros)"

    def __init__(self, function: Callable[..., object], name: str, parameter: Type | None, result: Type) -> None:
        super().__init__(name, parameter, result)
        self._convert = None  # `evaluate` converts arguments
        self.evaluate = bind(function, parameter)  # not a method, which would add a call per client


def bind(function: Callable[..., object], parameter: Type | None) -> Convert:
    """Returns a function of one payload that calls `function` with its arguments unpacked as its signature asks."""
    if parameter is None:
        return lambda _: function()
    if not unpacks(function, parameter):
        convert = argument_converter(parameter, argument_maker)
        return function if convert is None else lambda payload: function(convert(payload))
    fields = fields_of(cast(StructType, parameter))
    converters = [argument_converter(t, argument_maker) for _, t in fields]
    if not calls_by_name(function, cast(StructType, parameter)):
        if not any(converters):
            return lambda payload: function(*cast("tuple[object, ...]", payload))
        return lambda payload: function(*converted(converters, payload))
    keys = [cast(str, name) for name, _ in fields]
    return lambda payload: function(**dict(zip(keys, converted(converters, payload))))
