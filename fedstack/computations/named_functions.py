"""Refers to Python functions by module and qualified name, and finds them again."""

import functools
import hashlib
import importlib
import inspect
import os
from collections.abc import Callable
from typing import cast

from fedstack.computations.texts import text_of
from fedstack.errors import CarrierError

# Loading runs what somebody wrote: it can raise anything, and may want to end the process. Ctrl-C is not its own.
LOADING_ERRORS = (Exception, SystemExit)
# When each file that functions were taken from was last written, and its size, as of the first of them.
_files_as_imported: dict[str, tuple[int, int]] = {}


def resolve_reference(module: str, qualname: str) -> Callable[..., object]:
    """Imports `module` and finds `qualname` in it; a decorated computation gives the function inside.

    Raises:
      CarrierError: If there is no such module or function, it is another module's and only imported there, or the
        module cannot be imported.
    """
    try:
        imported = importlib.import_module(module)
    except LOADING_ERRORS as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            raise CarrierError(
                f"Expected to load the function {module}:{qualname}, found that importing {module} raised "
                f"{told_of(error)}"
            ) from error
        raise _not_found(module, qualname, error) from error
    try:
        function = inspect.unwrap(
            cast("Callable[..., object]", functools.reduce(getattr, qualname.split("."), imported))
        )
    except Exception as error:  # a module may say itself what is in it
        raise _not_found(module, qualname, error) from error
    # A module that imports `os` has a name `os.system`, which nobody means by allowing the module.
    if (getattr(function, "__module__", None), getattr(function, "__qualname__", None)) != (module, qualname):
        raise CarrierError(f"Expected a function defined as {module}:{qualname}, found {function!r} there")
    state = _state_of_file(function)
    if state is not None:
        _files_as_imported.setdefault(*state)
    return function


def check_unchanged(function: Callable[..., object]) -> None:
    """Checks that the file of a function is the one that was imported: only its source as it is now can be read.

    Raises:
      CarrierError: If it has been written since.
    """
    state = _state_of_file(function)
    if state is not None and _files_as_imported.get(state[0], state[1]) != state[1]:
        raise CarrierError(
            f"Expected the source of {function.__module__}:{function.__qualname__} to be what was imported, found that "
            "its file has changed since; start the worker anew"
        )


def _state_of_file(function: Callable[..., object]) -> tuple[str, tuple[int, int]] | None:
    try:
        file = inspect.getsourcefile(function)
        if file is None:
            return None
        found = os.stat(file)
    except (OSError, TypeError):
        return None
    return file, (found.st_mtime_ns, found.st_size)


def _not_found(module: str, qualname: str, error: BaseException) -> CarrierError:
    return CarrierError(
        f"Expected an installed function {module}:{qualname}, found none: {type(error).__name__}: {text_of(error)}"
    )


def told_of(error: BaseException) -> str:
    """Returns what to say of an error of loading: its class and text, and what to do where that can be known."""
    text = text_of(error)
    advice = ""
    if isinstance(error, ImportError):
        advice = "; install what it imports"
    elif isinstance(error, AttributeError) and text.startswith("Can't get attribute"):  # as pickle says it
        advice = "; put what it refers to into a module that is installed on the worker"
    return f"{type(error).__name__}: {text}".removesuffix(": ") + advice


def digest_of(function: Callable[..., object]) -> bytes:
    """Returns the SHA-256 of a function's source, or nothing where there is no source."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).digest()
    except (OSError, TypeError):
        return b""


def resolves_to_itself(function: Callable[..., object]) -> bool:
    """Tells whether a reference to a function leads to it again."""
    if getattr(function, "__module__", "__main__") == "__main__" or getattr(function, "__closure__", None):
        return False
    try:
        return resolve_reference(function.__module__, function.__qualname__) is function
    except (CarrierError, AttributeError):
        return False
