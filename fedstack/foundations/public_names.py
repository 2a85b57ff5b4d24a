"""Shows users which names exist: those that a package imports on first use, and the options of a function."""

import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])

# Options by the names that they have elsewhere, or had once.
_OTHER_NAMES = {"max_threads": "max_concurrent_clients"}


def takes_options(options: type | None = None, **defaults: object) -> Callable[[_F], _F]:
    """Returns a decorator that refuses unknown options, and shows the known ones in signature and docstring.

    Type checkers read `**options: Unpack[...]`; completion and `help()` read the signature that is set here.

    Args:
      options: The `TypedDict` of the function's `**options`; its docstring lists them as attributes. `None` for a
        function that names its parameters itself.
      **defaults: The defaults of the options.
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
            return function(*args, **kwargs)

        cast(Any, checked).__signature__ = signature.replace(parameters=named)
        if options is not None:
            checked.__doc__ = _with_attributes(function, options)
        return cast(_F, checked)

    return decorate


def defaults_of(*functions: Callable[..., object]) -> dict[str, Any]:
    """Returns the defaults of the parameters of functions."""
    found = [each for function in functions for each in inspect.signature(function).parameters.values()]
    return {each.name: each.default for each in found if each.default is not each.empty}


def options_for(function: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the options that are parameters of a function or class."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in parameters}


def _with_attributes(function: Callable[..., object], options: type) -> str:
    """Returns the docstring of a function, with the reference to the `TypedDict` replaced by its options."""
    _, _, attributes = inspect.cleandoc(options.__doc__ or "").partition("Attributes:\n")
    return inspect.cleandoc(function.__doc__ or "").replace(f"  **options: See `{options.__name__}`.", attributes)


def _refuse(given: Mapping[str, object], known: Collection[str]) -> None:
    unknown = sorted(set(given) - set(known))
    names = {name: name for name in known} | {old: new for old, new in _OTHER_NAMES.items() if new in known}
    close = difflib.get_close_matches(unknown[0], names, 1)
    advice = f"; write {names[close[0]]}" if close else "; leave it out"
    raise TypeError(f"Expected options among {', '.join(sorted(known))}, found {', '.join(unknown)}{advice}")


def lazy_names(
    package: str, modules: Mapping[str, str], subpackages: Collection[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns the `__getattr__` and the `__dir__` of a package.

    Args:
      package: The name of the package.
      modules: The names that the package exports, each with its module below `fedstack`.
      subpackages: Subpackages that are accessible without an import of their own.
    """

    def get(name: str) -> object:
        if name in modules:
            value = getattr(importlib.import_module(f"fedstack.{modules[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if name in subpackages:
            return importlib.import_module(f"{package}.{name}")
        # `name` and `obj` let Python suggest a similar name out of `names()`.
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])

    def names() -> list[str]:
        own = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*own, *modules, *subpackages})

    return get, names
