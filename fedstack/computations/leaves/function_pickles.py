"""Writes functions by value, with cloudpickle, and reads them back. Reading executes what was written."""

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


_logger = logging.getLogger(__name__)
# What a function brings is written with each call, and goes to each worker. Of a large whole, large parts are named.
_LARGE_BYTES = 8 << 20
_LARGE_PART_BYTES = 1 << 20
_MOST_NAMES = 5
_MAX_WARNED_OF = 1000
# The functions that were warned of, by module and name, since a notebook makes them anew with each run of a cell.
_warned_of: SharedCache[tuple[str, str], bool] = SharedCache(_MAX_WARNED_OF, _MAX_WARNED_OF)


class Capture(NamedTuple):
    """What a function refers to: by which name, and what it is."""

    name: str
    value: object


def variables_of(function: Callable[..., object]) -> Iterator[Capture]:
    """Yields the variables that a function by value brings: its own, and those of functions that it brings.

    These are its globals, those of the functions around it, and its defaults. Modules, and functions and classes of
    modules, are left out: they go by name.
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
    """Returns the function in a computation, in what has a cache, or in a method; other values as they are."""
    if isinstance(value, MethodType):
        return value.__func__
    return value if isinstance(value, FunctionType) else inspect.getattr_static(value, "__wrapped__", value)


def _references_of(function: FunctionType) -> Iterator[tuple[str, object]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing has been assigned to it
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
    """Warns of a function that brings much with it, once, and names the variables.

    Args:
      function: The function.
      name: What messages call it.
      size: How many bytes it is as it goes.
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
    except Exception:  # it was written as part of the function; alone it may refuse
        return 0


def unwritable_variable(function: Callable[..., object]) -> str:
    """Returns the name of a variable that keeps a function from going by value; nothing if none does so alone."""
    for name, value in variables_of(function):
        try:
            dumps(value)
        except Exception:  # whatever it raises
            return name
    return ""
