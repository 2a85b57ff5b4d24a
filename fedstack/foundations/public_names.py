"""Makes names visible to users: the lazily imported names of a package, and the options of a function."""

import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

from fedstack.errors import FedstackError

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C")

# The current names of options, by names that other libraries or earlier versions use.
_OTHER_NAMES = {"max_threads": "max_concurrent_clients"}


def takes_options(options: type | None = None, **defaults: object) -> Callable[[_F], _F]:
    """Returns a decorator that rejects unknown options and adds the known options to the signature and the docstring.

    Type checkers read `**options: Unpack[...]`. Completion and `help()` read the signature that the decorator sets.
    Errors leave the function without its frames, because they are about what the caller passed.

    Args:
      options: The `TypedDict` of the function's `**options`, whose docstring lists the options as attributes. `None`
        for a function whose parameters are all named.
      **defaults: The default values of the options.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        named = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        if options is not None:
            named += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name])
                for name in options.__annotations__
            ]
        known = {each.name for each in named}

        @functools.wraps(function)
        def checked(*args: object, **kwargs: object) -> object:
            if not known.issuperset(kwargs):
                _refuse(kwargs, known - {"self", "cls"})
            try:
                return function(*args, **kwargs)
            except FedstackError as error:
                from fedstack.foundations.traceback_filter import without_own_frames  # imports asyncio, too

                raise without_own_frames(error) from error.__cause__

        cast(Any, checked).__signature__ = signature.replace(parameters=named)
        if options is not None:
            checked.__doc__ = _with_attributes(function, options)
        return cast(_F, checked)

    return decorate


def refuses_others(cls: type[_C]) -> type[_C]:
    """Returns a class of options, such as one of attrs, which rejects unknown options like `takes_options`."""
    init: Any = vars(cls)["__init__"]
    type.__setattr__(cls, "__init__", takes_options()(init))
    return cls


def defaults_of(*functions: Callable[..., object]) -> dict[str, Any]:
    """Returns the default values of the parameters of all given functions, by parameter name."""
    found = [each for function in functions for each in inspect.signature(function).parameters.values()]
    return {each.name: each.default for each in found if each.default is not each.empty}


def options_for(function: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are parameters of the given function or class."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in parameters}


def _with_attributes(function: Callable[..., object], options: type) -> str:
    """Returns the docstring of a function, with the reference to the `TypedDict` replaced by the list of options."""
    _, _, attributes = inspect.cleandoc(options.__doc__ or "").partition("Attributes:\n")
    return inspect.cleandoc(function.__doc__ or "").replace(f"  **options: See `{options.__name__}`.", attributes)


def _refuse(given: Mapping[str, object], known: Collection[str]) -> None:
    unknown = sorted(set(given) - set(known))
    names = {name: name for name in known} | {old: new for old, new in _OTHER_NAMES.items() if new in known}
    close = difflib.get_close_matches(unknown[0], names, 1)
    advice = f"; write {names[close[0]]}" if close else "; remove it"
    raise TypeError(f"Expected no options other than {', '.join(sorted(known))}, found {', '.join(unknown)}{advice}")


def lazy_names(
    package: str, modules: Mapping[str, str], subpackages: Collection[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` functions of a package that imports its names on first use.

    Args:
      package: The name of the package.
      modules: The exported names, each mapped to the name of its module, relative to `fedstack`.
      subpackages: The subpackages that are accessible without a separate import.
    """

    def get(name: str) -> object:
        if name in modules:
            value = getattr(importlib.import_module(f"fedstack.{modules[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if name in subpackages:
            return importlib.import_module(f"{package}.{name}")
        # With `name` and `obj`, Python suggests a similar name from `names()`.
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])

    def names() -> list[str]:
        own = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*own, *modules, *subpackages})

    return get, names
