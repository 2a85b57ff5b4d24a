"""Pickles functions by value with cloudpickle, and identifies variables that are large or cannot be pickled.

Unpickling executes code from the pickle.
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

_NO_FILE = "<dynamic-code>"
_CACHED: type = type(functools.lru_cache(len))
Reduced = tuple[Callable[..., object], tuple[object, ...]]
_reducers: dict[type, Callable[[Any], Reduced]] = {}


def register_reducer(kind: type, reduce: Callable[[Any], Reduced]) -> None:
    """Registers the function that reduces instances of a class for pickling, as `__reduce__` would."""
    _reducers[kind] = reduce


def dumps(value: object, refer: Callable[[object], object] = lambda part: None) -> bytes:
    """Returns a pickle of a value. Functions of scripts and notebooks are pickled by value, other functions by name.

    Args:
      value: The value.
      refer: Called with each part of the value. Returns an id that is written in place of the part and is resolved by
        the `find` argument of `loads`, or `None` to write the part itself.

    Raises:
      Exception: Any error that a part of the value raises when it is pickled.
    """
    buffer = io.BytesIO()
    pickler = _pickler()(buffer)
    pickler.refer = refer
    pickler.dump(value)
    return buffer.getvalue()


def loads(content: bytes, find: Callable[[Any], object] | None = None) -> Any:
    """Returns the value of a pickle. This executes code from the pickle.

    Args:
      content: The result of `dumps`.
      find: Returns the part for an id that the `refer` argument of `dumps` returned.
    """
    return pickle.loads(content) if find is None else _Unpickler(content, find).load()


class _Unpickler(pickle.Unpickler):
    """Unpickles values and resolves the ids of parts that were left out.

    It is a class because `persistent_load` must be a method, rather than an attribute, since Python 3.13.
    """

    def __init__(self, content: bytes, find: Callable[[Any], object]) -> None:
        super().__init__(io.BytesIO(content))
        self._find = find

    def persistent_load(self, pid: Any) -> object:
        return self._find(pid)


@functools.cache
def _pickler() -> Any:
    """Returns the class of picklers. It is created on first use, because importing cloudpickle is slow."""
    import cloudpickle

    base = cast("Any", cloudpickle).CloudPickler

    class Pickler(base):
        def persistent_id(self, obj: object) -> object:
            return self.refer(obj)

        def reducer_override(self, obj: Any) -> Any:
            # cloudpickle would pickle the cached function under a name that does not exist in other processes.
            if type(obj) is _CACHED and obj.__module__ == "__main__":
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            if type(obj) in _reducers:
                return _reducers[type(obj)](obj)
            if type(obj) is CodeType:
                return _with_file_name(obj, *base.dispatch_table[CodeType](obj))
            # cloudpickle would pickle functions of modules other than `__main__` by name.
            if isinstance(obj, (FunctionType, type)) and is_script(obj.__module__) and obj.__module__ in sys.modules:
                cloudpickle.register_pickle_by_value(sys.modules[obj.__module__])
            return base.reducer_override(self, obj)

    return Pickler


def _with_file_name(code: CodeType, kind: type, arguments: tuple[object, ...]) -> Reduced:
    """Returns how cloudpickle reduces code, with the name of its file for errors, which cloudpickle 3.1.3 drops."""
    return kind, tuple([code.co_filename if one == _NO_FILE else one for one in arguments])


def _cached(function: Callable[..., object], parameters: dict[str, Any]) -> object:
    """Returns the function, wrapped in an empty `lru_cache` with the given parameters."""
    return functools.lru_cache(**parameters)(function)


_logger = logging.getLogger(__name__)
# A function is pickled with its captures for every call and worker, so users are warned about large captures.
_LARGE_BYTES = 8 << 20
_LARGE_PART_BYTES = 1 << 20
_MOST_NAMES = 5
_MAX_WARNED_OF = 1000
# The functions about which a warning has been logged. The key is the module and name, because running a notebook cell
# again creates new function objects.
_warned_of: SharedCache[tuple[str, str], bool] = SharedCache(_MAX_WARNED_OF, _MAX_WARNED_OF)


class Capture(NamedTuple):
    """A variable that a function refers to."""

    name: str
    value: object


def variables_of(function: Callable[..., object]) -> Iterator[Capture]:
    """Yields the variables that are pickled with a function by value.

    These are the globals, closure variables and defaults that the function uses, and the variables of any functions
    among them. Modules, and functions and classes of modules, are omitted, because they are pickled by name.
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
    """Returns the function inside a computation, cached function or method. Other values are returned unchanged."""
    if isinstance(value, MethodType):
        return value.__func__
    return value if isinstance(value, FunctionType) else inspect.getattr_static(value, "__wrapped__", value)


def _references_of(function: FunctionType) -> Iterator[tuple[str, object]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the variable has not been assigned
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
        if isinstance(constant, CodeType):  # an inner function or, before Python 3.12, a comprehension
            yield from _names_in(constant)


def warn_if_large(function: Callable[..., object], name: str, size: int) -> None:
    """Logs a warning that names the large captures of a function, once per function.

    Args:
      function: The function.
      name: The name of the function in messages.
      size: The size of the pickled function in bytes.
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
        travels, advice = "is", "pass it as an argument, or load it in the worker"
    else:
        travels, advice = "are", "pass them as arguments, or load them in the worker"
    _logger.warning("%s %s sent with %r in each call; %s", what, travels, name, advice)


def _size_of(value: object) -> int:
    try:
        return len(dumps(value))
    except Exception:  # a value that was pickled as part of the function may fail to pickle on its own
        return 0


def unwritable_variable(function: Callable[..., object]) -> str:
    """Returns the name of a variable that cannot be pickled; empty if each variable can be pickled on its own."""
    for name, value in variables_of(function):
        try:
            dumps(value)
        except Exception:  # the value may raise anything
            return name
    return ""
