"""Refers to Python functions by module and qualified name, and finds them again."""

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TypeGuard, cast

from fedstack.errors import CarrierError
from fedstack.foundations.caches import SharedCache
from fedstack.foundations.error_text import name_text, text_of
from fedstack.foundations.value_text import shorten

# Loading runs what somebody wrote: it can raise anything, and may want to end the process. Ctrl-C is not its own.
LOADING_ERRORS = (Exception, SystemExit)
# What Python calls the module that is run as a program, `multiprocessing` that of its parent, and `runpy` a file.
_PROGRAMS = ("__main__", "__mp_main__", "<run_path>")


class Decorated:
    """A base of computations of a function, their `__wrapped__`: a reference to one means that function."""


def resolve_reference(module: str, qualname: str) -> Callable[..., object]:
    """Imports `module` and finds `qualname` in it; a decorated computation gives the function inside.

    Raises:
      CarrierError: If there is no such module or function, it is another module's and only imported there, it is no
        function, or the module cannot be imported or may not be.
    """
    if not _may_be_imported(module):
        raise CarrierError(f"Expected the name of a module that may be imported, found {name_text(module)!r}")
    shown = name_text(f"{module}:{qualname}")
    try:
        imported = importlib.import_module(module)
    except LOADING_ERRORS as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            raise CarrierError(
                f"Cannot load the function {shown}: importing {name_text(module)} raised {describe_error(error)}"
            ) from error
        raise _not_found(module, qualname, error) from error
    found = _function_in(imported, module, qualname)
    note_file(found)
    return found


def _may_be_imported(module: str) -> bool:
    """Returns whether it is the name of a module, and neither of `__main__`, a program, nor of `__init__`.

    The latter is the body of a package, which would run again under another name.
    """
    parts = module.split(".")
    return all(part.isidentifier() and not (part.startswith("__") and part.endswith("__")) for part in parts)


def _function_in(imported: object, module: str, qualname: str) -> Callable[..., object]:
    """Returns the function or class that a module defines under a name."""
    found = _member_of(imported, module, qualname)
    shown = name_text(f"{module}:{qualname}")
    # A module that imports `os` has a name `os.system`, which nobody means by allowing the module.
    if _names_of(found) != (module, qualname):
        raise CarrierError(f"Expected a function defined as {shown}, found {_shown(found)} there")
    if not callable(found):
        raise CarrierError(f"Expected a function as {shown}, found {_shown(found)} there")
    return found


def _member_of(imported: object, module: str, qualname: str) -> object:
    """Returns what a module has under a name, by way of its classes only.

    Nothing but the import runs: neither `__getattr__` of modules and classes, nor properties. What decorators made is
    taken as it is, so that what they do is done.
    """
    found: object = imported
    for name in qualname.split("."):
        if found is imported and isinstance(imported, ModuleType):
            found = vars(imported).get(name, _NOTHING)
        elif _is_class(found):
            found = inspect.getattr_static(found, name, _NOTHING)
        else:
            found = _NOTHING
        if found is _NOTHING:
            raise _not_found(module, qualname, AttributeError(f"there is no {name_text(name)!r} in it"))
        if type(found) is staticmethod:
            found = cast("staticmethod[..., object]", found).__func__
    return inspect.getattr_static(found, "__wrapped__", found) if issubclass(type(found), Decorated) else found


_NOTHING = object()


def _is_class(found: object) -> TypeGuard[type]:
    return issubclass(type(found), type)  # isinstance() would ask the object for its class


def _names_of(found: object) -> tuple[object, object]:
    """Returns module and qualified name of an object as it was defined, without asking it: it may be of any class."""
    if _is_class(found):
        namespace = cast("Mapping[str, object]", _CLASS["__dict__"].__get__(found))
        return namespace.get("__module__"), _CLASS["__qualname__"].__get__(found)
    if type(found) in _FUNCTIONS:
        function = cast(FunctionType, found)
        return function.__module__, function.__qualname__
    return inspect.getattr_static(found, "__module__", None), inspect.getattr_static(found, "__qualname__", None)


_CLASS = vars(type)
_FUNCTIONS = (FunctionType, BuiltinFunctionType)


def _shown(found: object) -> str:
    """Names what was found by its class and its own name: what `repr` says is up to it."""
    names = ":".join(name for name in _names_of(found) if isinstance(name, str))
    return f"a `{type(found).__name__}`" + (f" {shorten(names)}" if names else "")


def _not_found(module: str, qualname: str, error: BaseException) -> CarrierError:
    advice = "install the same version on both sides"
    if isinstance(error, ModuleNotFoundError):
        advice = "install its module where it runs, or name the module's folder in PYTHONPATH there"
    return CarrierError(
        f"Expected an installed function {name_text(f'{module}:{qualname}')}, found none: {type(error).__name__}: "
        f"{text_of(error)}; {advice}"
    )


def describe_error(error: BaseException) -> str:
    """Returns what to say of an error of loading: its class and text, and what to do where that can be known."""
    text = text_of(error)
    advice = ""
    if isinstance(error, ImportError):
        advice = "; install what it imports"
    elif isinstance(error, AttributeError) and text.startswith("Can't get attribute"):  # as pickle says it
        advice = "; put what it refers to into a module that is installed on the worker"
    return f"{type(error).__name__}: {text}".removesuffix(": ") + advice


def resolves_to_itself(function: Callable[..., object]) -> bool:
    """Returns whether a reference to a function leads to it again. It imports nothing."""
    module = getattr(function, "__module__", None)
    if not isinstance(module, str) or not _may_be_imported(module) or is_script(module):
        return False
    if getattr(function, "__closure__", None):
        return False
    try:
        return _function_in(sys.modules.get(module), module, function.__qualname__) is function
    except (CarrierError, AttributeError):
        return False


def is_script(module: object) -> bool:
    """Returns whether a process that imported this module would run a program.

    A program has been started from it, as `python -m package` does, or computations are called by its own top level.

    Args:
      module: What an object has as `__module__`.
    """
    if not isinstance(module, str):
        return False
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return module.rpartition(".")[2] in _PROGRAMS or bool(getattr(spec, "_initializing", False))


def script_of(function: Callable[..., object]) -> str:
    """Returns the name of the file of the program that a function belongs to; nothing if there is none."""
    module = getattr(function, "__module__", None)
    file = getattr(sys.modules.get(module), "__file__", None) if isinstance(module, str) and is_script(module) else None
    return os.path.basename(file or "")


_FileState = tuple[int, int]
# When each file that functions were taken from was last written, and its size, as of the first of them.
_files_as_imported: dict[str, _FileState] = {}
_MAX_DIGESTS = 1000
# By what they are of, the name of its file, and when that was last written.
_digests: SharedCache[tuple[object, str | None, _FileState | None], bytes] = SharedCache(_MAX_DIGESTS, _MAX_DIGESTS)


def function_digest(function: Callable[..., object]) -> bytes:
    """Returns the SHA-256 of a function's source, or nothing where there is no source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _made_of(function) if code is None else _digest_of(function, code, code.co_filename)


def module_digest(module: str) -> bytes:
    """Returns the SHA-256 of the source file of a module, or nothing where there is none.

    Args:
      module: The name of a module that has been imported.
    """
    found = sys.modules.get(module)
    return b"" if found is None else _digest_of(found, module, getattr(found, "__file__", None))


def _digest_of(found: Callable[..., object] | ModuleType, named: object, file: str | None) -> bytes:
    """Returns a digest, which is computed again only when the file has been written since."""
    key = named, file, _state_of(file)
    digest = _digests.get(key)
    if digest is None:
        digest = _made_of(found)
        _digests.put(key, digest, 1)
    return digest


def _made_of(found: Callable[..., object] | ModuleType) -> bytes:
    try:
        return hashlib.sha256(inspect.getsource(found).encode()).digest()
    except (OSError, TypeError):
        return b""


def note_file(function: Callable[..., object]) -> None:
    """Records the file of a function that was imported, unless an earlier one of that file was."""
    file, state = _file_of(function)
    if state is not None:
        _files_as_imported.setdefault(file, state)


def check_unchanged(function: Callable[..., object]) -> None:
    """Checks that the file of a function is the one that was imported: only its source as it is now can be read.

    Raises:
      CarrierError: If it has been written since.
    """
    file, state = _file_of(function)
    if state is not None and _files_as_imported.get(file, state) != state:
        raise CarrierError(
            f"The file of {function.__module__}:{function.__qualname__} has changed since it was imported; start the "
            "worker anew"
        )


def _file_of(function: Callable[..., object]) -> tuple[str, _FileState | None]:
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        file = None
    return file or "", _state_of(file)


def _state_of(file: str | None) -> _FileState | None:
    """Returns when a file was last written, and its size; `None` if there is none."""
    try:
        found = os.stat(file or "")
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
