"""Pickles functions by value, with cloudpickle, and names variables that are large or cannot be pickled.

Unpickling executes the code that was written.
"""

import dis
import functools
import inspect
import io
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, cast

from fedstack.computations.leaves.named_functions import is_script, resolves_to_itself
from fedstack.foundations.caches import SharedCache

_CACHED: type = type(functools.lru_cache(len))
Reduced = tuple[Callable[..., object], tuple[object, ...]]
_reducers: dict[type, Callable[[Any], Reduced]] = {}


def register_reducer(kind: type, reduce: Callable[[Any], Reduced]) -> None:
    """Registers how instances of a class are written, as `__reduce__` does for classes of one's own."""
    _reducers[kind] = reduce


def dumps(value: object, refer: Callable[[object], object] = lambda part: None) -> bytes:
    """Returns a value as bytes; functions of scripts and notebooks are written by value, those of modules by name.

    Args:
      value: The value.
      refer: Returns what is written instead of a part, for `find` of `loads`; `None` to write the part itself.

    Raises:
      Exception: Whatever a part of the value raises that cannot be written.
    """
    buffer = io.BytesIO()
    pickler = _pickler()(buffer)
    pickler.refer = refer
    pickler.dump(value)
    return buffer.getvalue()


def loads(content: bytes, find: Callable[[Any], object] | None = None) -> Any:
    """Returns the value. This executes code in the content.

    Args:
      content: The result of `dumps`.
      find: Returns the part for what `refer` has returned.
    """
    return pickle.loads(content) if find is None else _Unpickler(content, find).load()


class _Unpickler(pickle.Unpickler):
    """An unpickler that finds parts. From Python 3.13 on `persistent_load` must be a method, not an attribute."""

    def __init__(self, content: bytes, find: Callable[[Any], object]) -> None:
        super().__init__(io.BytesIO(content))
        self._find = find

    def persistent_load(self, pid: Any) -> object:
        return self._find(pid)


@functools.cache
def _pickler() -> Any:
    """Returns the class of picklers. It is made on first use, because cloudpickle is slow to import."""
    import cloudpickle

    base = cast("Any", cloudpickle).CloudPickler

    class Pickler(base):
        def persistent_id(self, obj: object) -> object:
            return self.refer(obj)

        def reducer_override(self, obj: Any) -> Any:
            # cloudpickle would refer to it by a name that does not exist in another process.
            if type(obj) is _CACHED and obj.__module__ == "__main__":
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            if type(obj) in _reducers:
                return _reducers[type(obj)](obj)
            # cloudpickle would refer to modules other than `__main__` by name.
            if isinstance(obj, (FunctionType, type)) and is_script(obj.__module__) and obj.__module__ in sys.modules:
                cloudpickle.register_pickle_by_value(sys.modules[obj.__module__])
            return base.reducer_override(self, obj)

    return Pickler


def _cached(function: Callable[..., object], parameters: dict[str, Any]) -> object:
    """Returns a function with a cache of its own, which is empty."""
    return functools.lru_cache(**parameters)(function)


_logger = logging.getLogger(__name__)
# A function is written with its captures for each call and worker. If it is large, its large captures are named.
_LARGE_BYTES = 8 << 20
_LARGE_PART_BYTES = 1 << 20
_MOST_NAMES = 5
_MAX_WARNED_OF = 1000
# The functions that were warned of, by module and name, since a notebook makes them anew with each run of a cell.
_warned_of: SharedCache[tuple[str, str], bool] = SharedCache(_MAX_WARNED_OF, _MAX_WARNED_OF)


class Capture(NamedTuple):
    """A variable that a function refers to."""

    name: str
    value: object


def variables_of(function: Callable[..., object]) -> Iterator[Capture]:
    """Yields the variables that are written with a function by value: its own, and those of functions among them.

    These are its globals, its closure and its defaults. Modules, and functions and classes of modules, are omitted,
    since they are written by name.
    """
    waiting: list[object] = [function]
    seen = set[int]()
    while waiting:
        found = _function_in(waiting.pop())
        if not isinstance(found, FunctionType) or id(found) in seen:
            continue
        seen.add(id(found))
        for name, value in _references_of(found):
            inner = _function_in(value)
            if isinstance(inner, FunctionType):
                waiting += [] if resolves_to_itself(inner) else [inner]
            elif not isinstance(value, (ModuleType, type)):
                yield Capture(name, value)


def _function_in(value: object) -> object:
    """Returns the function in a computation, a cached function or a method; other values as they are."""
    if isinstance(value, MethodType):
        return value.__func__
    return value if isinstance(value, FunctionType) else inspect.getattr_static(value, "__wrapped__", value)


def _references_of(function: FunctionType) -> Iterator[tuple[str, object]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has not been assigned
            continue
    for name in dict.fromkeys(_names_in(code)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults)
    yield from (function.__kwdefaults__ or {}).items()


def _names_in(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # a function or, before Python 3.12, a comprehension inside
            yield from _names_in(constant)


def warn_if_large(function: Callable[..., object], name: str, size: int) -> None:
    """Logs a warning for a function with large captures, once, and names them.

    Args:
      function: The function.
      name: Its name in messages.
      size: Its size in bytes when it is written.
    """
    key = str(getattr(function, "__module__", "")), name
    if size < _LARGE_BYTES or _warned_of.get(key):
        return
    _warned_of.put(key, True, 1)
    sizes = {variable.name: _size_of(variable.value) for variable in variables_of(function)}
    large = sorted((found, variable) for variable, found in sizes.items() if found >= _LARGE_PART_BYTES)[::-1]
    named = [f"{variable!r} ({found / 1e6:.0f} MB)" for found, variable in large[:_MOST_NAMES]]
    what = ", ".join(named) or f"{size / 1e6:.0f} MB"
    if len(named) == 1:
        travels, advice = "travels", "give it as an argument, or load it in the worker"
    else:
        travels, advice = "travel", "give them as arguments, or load them in the worker"
    _logger.warning("%s %s with %r in each call; %s", what, travels, name, advice)


def _size_of(value: object) -> int:
    try:
        return len(dumps(value))
    except Exception:  # it was written as part of the function, but alone it may fail
        return 0


def unwritable_variable(function: Callable[..., object]) -> str:
    """Returns the name of a variable that cannot be written by value; empty if each can be written alone."""
    for name, value in variables_of(function):
        try:
            dumps(value)
        except Exception:  # whatever it raises
            return name
    return ""
