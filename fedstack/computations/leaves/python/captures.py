"""Finds the variables that a function by value brings along, to name those that are large or cannot be written."""

import dis
import inspect
import logging
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import NamedTuple

from fedstack.computations.leaves.python.function_pickles import dumps
from fedstack.computations.leaves.python.named_functions import resolves_to_itself
from fedstack.computations.types.bounded_cache import SharedCache

_logger = logging.getLogger(__name__)
# What a function brings is written with each call, and goes to each worker. Of a large whole, large parts are named.
_LARGE_BYTES = 8 << 20
_LARGE_PART_BYTES = 1 << 20
_MOST_NAMES = 5
_MAX_TOLD = 1000
# The functions that were told of, by module and name: a notebook makes them anew with each run of a cell.
_told: SharedCache[tuple[str, str], bool] = SharedCache(_MAX_TOLD, _MAX_TOLD)


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
    if size < _LARGE_BYTES or _told.get(key):
        return
    _told.put(key, True, 1)
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
