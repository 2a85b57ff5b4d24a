"""Writes functions by value, with cloudpickle, and reads them back. Reading executes what was written."""

import functools
import io
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from fedstack.computations.leaves.python.named_functions import is_script

_CACHED: type = type(functools.lru_cache(len))
Reduced = tuple[Callable[..., object], tuple[object, ...]]
_reducers: dict[type, Callable[[Any], Reduced]] = {}


def register_reducer(kind: type, reduce: Callable[[Any], Reduced]) -> None:
    """Makes `reduce` say how to write instances of a class, as `__reduce__` does where a class is one's own."""
    _reducers[kind] = reduce


def dumps(value: object, refer: Callable[[object], object] = lambda part: None) -> bytes:
    """Returns a value as bytes; functions of scripts and notebooks go by value, those of modules by name.

    Args:
      value: The value.
      refer: Returns what is written in place of a part, for `find` of `loads`; `None` to write the part itself.

    Raises:
      Exception: Whatever a part of the value raises that cannot be written.
    """
    buffer = io.BytesIO()
    pickler = _pickler()(buffer)
    pickler.refer = refer
    pickler.dump(value)
    return buffer.getvalue()


def loads(content: bytes, find: Callable[[Any], object] | None = None) -> Any:
    """Returns the value. This executes code that is in the content.

    Args:
      content: What `dumps` has returned.
      find: Returns the part for which there is something else in it.
    """
    return pickle.loads(content) if find is None else _Unpickler(content, find).load()


class _Unpickler(pickle.Unpickler):
    """Finds parts. As of Python 3.13 an attribute of the instance is no `persistent_load`."""

    def __init__(self, content: bytes, find: Callable[[Any], object]) -> None:
        super().__init__(io.BytesIO(content))
        self._find = find

    def persistent_load(self, pid: Any) -> object:
        return self._find(pid)


@functools.cache
def _pickler() -> Any:
    """Returns the class of picklers: made only when something is written, for cloudpickle is slow to import."""
    import cloudpickle

    base = cast("Any", cloudpickle).CloudPickler

    class Pickler(base):
        def persistent_id(self, obj: object) -> object:
            return self.refer(obj)

        def reducer_override(self, obj: Any) -> Any:
            # cloudpickle would refer to it by name, and in another process there is nothing of that name.
            if type(obj) is _CACHED and obj.__module__ == "__main__":
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            if type(obj) in _reducers:
                return _reducers[type(obj)](obj)
            # What has another name than `__main__` would be referred to by that.
            if isinstance(obj, (FunctionType, type)) and is_script(obj.__module__) and obj.__module__ in sys.modules:
                cloudpickle.register_pickle_by_value(sys.modules[obj.__module__])
            return base.reducer_override(self, obj)

    return Pickler


def _cached(function: Callable[..., object], parameters: dict[str, Any]) -> object:
    """Returns a function with a cache of its own, which is empty."""
    return functools.lru_cache(**parameters)(function)
