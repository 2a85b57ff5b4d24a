"""Gives packages names that are imported when they are first asked for."""

import importlib
import sys
from collections.abc import Callable, Collection, Mapping


def lazy_names(
    package: str, modules: Mapping[str, str], subpackages: Collection[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns the `__getattr__` and the `__dir__` of a package.

    Args:
      package: Its name.
      modules: The names that it gives, and the module of each, below `fedstack`.
      subpackages: Packages in it that are there without an import of their own.
    """

    def get(name: str) -> object:
        if name in modules:
            value = getattr(importlib.import_module(f"fedstack.{modules[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if name in subpackages:
            return importlib.import_module(f"{package}.{name}")
        # With these Python suggests a name that is like it, out of `names()`.
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])

    def names() -> list[str]:
        own = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*own, *modules, *subpackages})

    return get, names
