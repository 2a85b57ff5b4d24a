"""Names the functions of this process by handles: what a computation has in it as long as it stays here."""

import itertools
import logging
import weakref
from collections import Counter
from collections.abc import Callable

import attrs
from google.protobuf import any_pb2

from fedstack.computations.leaves.leaf_runtimes import PROCESS
from fedstack.computations.types.language import Type
from fedstack.errors import CarrierError
from fedstack.foundations.error_text import name_text
from fedstack.proto import carriers_pb2

_logger = logging.getLogger(__name__)
# So many functions of the same lines are made in a loop.
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

    A function is held weakly as long as only the object that the decorator returned refers to it, and for good once
    that object has been built into another computation: from then on copies of the handle may be anywhere.
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
        """Holds the function for as long as the process lives; warns once of many that are made by the same lines."""
        found = self._known.get(serial)
        if found is None or serial in self._kept:
            return
        self._kept[serial] = found
        code = getattr(found.function, "__code__", found.name)
        self._kept_of_code[code] += 1
        if self._kept_of_code[code] == _MANY:
            _logger.warning(
                "%r has been decorated and built into computations %d times, and all of these stay in memory; decorate "
                "it once, and give what differs as an argument",
                found.name,
                _MANY,
            )

    def find(self, serial: int) -> PythonFunction | None:
        """Returns the function, or `None` if it is gone."""
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


def keep_function(serial: int) -> None:
    """Holds a function for as long as the process lives: copies of its handle may be anywhere."""
    registry.keep(serial)


def known_function(handle: carriers_pb2.PythonHandle) -> PythonFunction | None:
    """Returns the function of a handle, or `None` if it is another process's or gone."""
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
