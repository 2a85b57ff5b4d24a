"""Registers the decorated Python functions of this process, and runs them as leaves.

As long as a computation stays in this process, it refers to functions by handle, a serial number in a registry. A
function can access structs by attribute and key, and receive their members as keyword arguments. Everything else is
implemented by `Leaf`.
"""

import functools
import importlib.util
import itertools
import logging
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import cast

import attrs
import numpy as np
from google.protobuf import any_pb2

from fedstack.computations.leaves.declared_types import calls_by_name, unpacks
from fedstack.computations.leaves.leaf import (
    Convert,
    Leaf,
    MakeSequence,
    SequenceArgument,
    argument_converter,
    converted,
)
from fedstack.computations.leaves.leaf_runtimes import PROCESS
from fedstack.computations.types.language import StructType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.containers import Maker, argument_maker
from fedstack.computations.values.tensor_values import read_only
from fedstack.errors import CarrierError
from fedstack.foundations.error_text import name_text
from fedstack.proto import carriers_pb2

_logger = logging.getLogger(__name__)
# If this many functions with the same code have been decorated, a loop is probably decorating them.
_MANY = 200
_PYTORCH = "torch"
# As many calls of a function may begin before the first of them has imported a module.
_FIRST_CALLS = 64


@attrs.frozen(eq=False)
class PythonFunction:
    """A decorated function with its declared types. The registry finds it by its `PythonHandle.serial`.

    Attributes:
      function: The function.
      name: The name of the function in messages.
      parameter: The parameter type; `None` if there is no parameter.
      result: The result type.
      vectorized: Whether the function processes several clients in one call; see `VectorizedLeaf`.
    """

    function: Callable[..., object]
    name: str
    parameter: Type | None
    result: Type
    vectorized: bool = False


class HandleRegistry:
    """The decorated functions of this process, by their handles' serial numbers.

    The registry references a function weakly as long as only the decorated object has its handle. When the decorated
    object is built into another computation, copies of the handle may exist anywhere. From then on, the registry keeps
    the function alive until the process ends.
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
        """Keeps a function alive until the process ends.

        Logs a warning, once, if many functions with the same code are kept.
        """
        found = self._known.get(serial)
        if found is None or serial in self._kept:
            return
        self._kept[serial] = found
        code = getattr(found.function, "__code__", found.name)
        self._kept_of_code[code] += 1
        if self._kept_of_code[code] == _MANY:
            _logger.warning(
                "%r has been decorated and built into computations %d times, and all copies stay in memory; decorate "
                "it once, and pass the values that differ as arguments",
                found.name,
                _MANY,
            )

    def find(self, serial: int) -> PythonFunction | None:
        """Returns the function with a serial number, or `None` if the function has been garbage-collected."""
        return self._known.get(serial)

    def __len__(self) -> int:
        return len(self._known)


registry = HandleRegistry()


def handle_content(function: PythonFunction) -> tuple[any_pb2.Any, int]:
    """Registers a function, and returns the content of its `data` block and its serial number."""
    serial = registry.add(function)
    content = any_pb2.Any()
    content.Pack(carriers_pb2.PythonHandle(process=PROCESS, serial=serial, name=function.name))
    return content, serial


def handle_of(content: any_pb2.Any) -> carriers_pb2.PythonHandle | None:
    """Returns the handle in the content of a `data` block, or `None` if the content is not a handle."""
    handle = carriers_pb2.PythonHandle()
    return handle if content.Unpack(handle) else None


def known_function(handle: carriers_pb2.PythonHandle) -> PythonFunction | None:
    """Returns the function of a handle, or `None` if it is in another process or has been garbage-collected."""
    return registry.find(handle.serial) if handle.process == PROCESS else None


def find_function(handle: carriers_pb2.PythonHandle) -> PythonFunction:
    """Returns the function of a handle.

    Raises:
      CarrierError: If the function is in another process or has been garbage-collected.
    """
    found = known_function(handle)
    if found is None:
        raise CarrierError(
            f"Expected a function of this process, found {name_text(handle.name)!r}, which belongs to another process "
            "or has been garbage-collected; keep a reference to the decorated function"
        )
    return found


class PythonLeaf(Leaf):
    """A leaf that runs a Python function with its declared types."""

    result_advice = (
        "if the function is right, pass another result_type (the default is inferred from a call with zeros)"
    )

    def __init__(self, function: Callable[..., object], name: str, parameter: Type | None, result: Type) -> None:
        super().__init__(name, parameter, result)
        self._convert = None  # `evaluate` converts arguments
        # An attribute, because a method would add one more call per client.
        self.evaluate = _bound(function, parameter)


def _bound(function: Callable[..., object], parameter: Type | None) -> Convert:
    """Returns what `bind` returns, for functions that may modify read-only arrays, too.

    PyTorch has no read-only tensors: `torch.from_numpy` and `torch.as_tensor` share the memory of an argument, and an
    optimizer would change it for all clients. Where PyTorch is in use, functions get copies of arrays, and so do the
    first calls of a function, which may import it, if it is installed.
    """
    plain, copying = bind(function, parameter), bind(function, parameter, tensor=_copy)
    if parameter is None or argument_converter(parameter, tensor=_copy) is None:
        return plain
    modules = sys.modules
    first = itertools.repeat(True, _FIRST_CALLS if has_pytorch() else 0)  # several threads draw from it

    def call(payload: object) -> object:
        if _PYTORCH in modules or next(first, False):
            return copying(payload)
        return plain(payload)

    return call


@functools.cache
def has_pytorch() -> bool:
    """Returns whether PyTorch is installed."""
    return _PYTORCH in sys.modules or importlib.util.find_spec(_PYTORCH) is not None


def _copy(value: object) -> object:
    return read_only(cast("np.ndarray", value).copy()) if isinstance(value, np.ndarray) else value


def bind(
    function: Callable[..., object],
    parameter: Type | None,
    maker_of: Callable[[StructType], Maker] = argument_maker,
    make_sequence: MakeSequence = SequenceArgument,
    tensor: Convert | None = None,
) -> Convert:
    """Returns a function that accepts a payload and calls `function` with the arguments that its signature requires.

    Args:
      function: The function.
      parameter: Its parameter type; `None` if it has no parameter.
      maker_of: Returns the function that builds the container of a struct type.
      make_sequence: Makes what the function receives as a sequence.
      tensor: Converts arrays, if they need it.
    """
    if parameter is None:
        return lambda _: function()
    if not unpacks(function, parameter):
        convert = argument_converter(parameter, maker_of, make_sequence, tensor)
        return function if convert is None else lambda payload: function(convert(payload))
    fields = fields_of(cast(StructType, parameter))
    converters = [argument_converter(t, maker_of, make_sequence, tensor) for _, t in fields]
    if not calls_by_name(function, cast(StructType, parameter)):
        if not any(converters):
            return lambda payload: function(*cast("tuple[object, ...]", payload))
        return lambda payload: function(*converted(converters, payload))
    keys = [cast(str, name) for name, _ in fields]
    return lambda payload: function(**dict(zip(keys, converted(converters, payload))))
