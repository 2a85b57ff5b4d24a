"""Resolves references to Python functions by module and qualified name, and compares versions of their source."""

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

# Loading runs other authors' code, which may raise any error or exit. KeyboardInterrupt is raised by the user only.
LOADING_ERRORS = (Exception, SystemExit)
# The names of modules that run as programs under Python, `multiprocessing` (the parent's program) and `runpy`.
_PROGRAMS = ("__main__", "__mp_main__", "<run_path>")


class Decorated:
    """The base class of computations that wrap a function. References to such a computation refer to `__wrapped__`."""


def resolve_reference(module: str, qualname: str) -> Callable[..., object]:
    """Imports a module and returns one of its functions, or the function of one of its decorated computations.

    Args:
      module: The name of the module.
      qualname: The qualified name of the function.

    Raises:
      CarrierError: If the module or the function does not exist, the module must not or cannot be imported, the object
        is not a function, or the module does not define the function but imports it from another module.
    """
    if not _may_be_imported(module):
        raise CarrierError(f"Expected the name of an importable module, found {name_text(module)!r}")
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
    """Returns whether a text is the name of a module other than `__main__` and `__init__`.

    Importing `__init__` would run the body of a package again under another name.
    """
    parts = module.split(".")
    return all(part.isidentifier() and not (part.startswith("__") and part.endswith("__")) for part in parts)


def _function_in(imported: object, module: str, qualname: str) -> Callable[..., object]:
    """Returns the function or class that a module defines under the given name."""
    found = _member_of(imported, module, qualname)
    shown = name_text(f"{module}:{qualname}")
    # If a module that imports `os` is allowed, `os.system` must not become allowed too.
    if _names_of(found) != (module, qualname):
        raise CarrierError(f"Expected {shown} to be a function that its module defines, found {_shown(found)}")
    if not callable(found):
        raise CarrierError(f"Expected {shown} to be a function, found {_shown(found)}")
    return found


def _member_of(imported: object, module: str, qualname: str) -> object:
    """Returns a member of a module, or of a class in the module.

    The lookup runs no code: neither `__getattr__` of modules and classes nor properties. Objects that decorators
    returned are not unwrapped, so that a call includes the behavior that the decorator adds.
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
            raise _not_found(module, qualname, AttributeError(f"there is no member {name_text(name)!r}"))
        if type(found) is staticmethod:
            found = cast("staticmethod[..., object]", found).__func__
    return inspect.getattr_static(found, "__wrapped__", found) if issubclass(type(found), Decorated) else found


_NOTHING = object()


def _is_class(found: object) -> TypeGuard[type]:
    return issubclass(type(found), type)  # isinstance() would read the object's `__class__`, which may run code


def _names_of(found: object) -> tuple[object, object]:
    """Returns the module and the qualified name of an object's definition, without running code of its class."""
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
    """Returns a description of an object by its class and name, without calling its `repr`."""
    names = ":".join(name for name in _names_of(found) if isinstance(name, str))
    return f"a `{type(found).__name__}`" + (f" {shorten(names)}" if names else "")


def _not_found(module: str, qualname: str, error: BaseException) -> CarrierError:
    advice = "install the same version on the driver's machine and the worker"
    if isinstance(error, ModuleNotFoundError):
        advice = "install the module where the function runs, or add the module's folder to PYTHONPATH there"
    return CarrierError(
        f"Cannot find the function {name_text(f'{module}:{qualname}')}: {type(error).__name__}: "
        f"{text_of(error)}; {advice}"
    )


def describe_error(error: BaseException) -> str:
    """Returns a description of a loading error: its class and text, and advice if there is any."""
    text = text_of(error)
    advice = ""
    if isinstance(error, ImportError):
        advice = "; install the missing dependency"
    elif isinstance(error, AttributeError) and text.startswith("Can't get attribute"):  # the text of pickle's error
        advice = "; move this object into a module that is installed on the worker"
    return f"{type(error).__name__}: {text}".removesuffix(": ") + advice


def resolves_to_itself(function: Callable[..., object]) -> bool:
    """Returns whether a function can be found by its module and name. Imports no modules."""
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
    """Returns whether importing a module elsewhere would run a program.

    This is the case if the program was started from the module, for example by `python -m package`, or if the top level
    of the module is still being executed.

    Args:
      module: The `__module__` of an object.
    """
    if not isinstance(module, str):
        return False
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return module.rpartition(".")[2] in _PROGRAMS or bool(getattr(spec, "_initializing", False))


def script_of(function: Callable[..., object]) -> str:
    """Returns the file name of the script that defines a function; empty if the function is not part of a script."""
    module = getattr(function, "__module__", None)
    file = getattr(sys.modules.get(module), "__file__", None) if isinstance(module, str) and is_script(module) else None
    return os.path.basename(file or "")


_FileState = tuple[int, int]
# The modification time and size of each file with imported functions, recorded when the first function was imported.
_files_as_imported: dict[str, _FileState] = {}
_MAX_DIGESTS = 1000
# The key is the function's code or the module's name, the file, and the state of the file.
_digests: SharedCache[tuple[object, str | None, _FileState | None], bytes] = SharedCache(_MAX_DIGESTS, _MAX_DIGESTS)


def function_digest(function: Callable[..., object]) -> bytes:
    """Returns the SHA-256 digest of a function's source; empty if the source is not available."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _made_of(function) if code is None else _digest_of(function, code, code.co_filename)


def module_digest(module: str) -> bytes:
    """Returns the SHA-256 digest of a module's source file; empty if the source is not available.

    Args:
      module: The name of a module that has been imported.
    """
    found = sys.modules.get(module)
    return b"" if found is None else _digest_of(found, module, getattr(found, "__file__", None))


def _digest_of(found: Callable[..., object] | ModuleType, named: object, file: str | None) -> bytes:
    """Returns the digest of a function's or module's source, which is cached until the file is modified."""
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
    """Records the state of an imported function's file, unless the state has already been recorded."""
    file, state = _file_of(function)
    if state is not None:
        _files_as_imported.setdefault(file, state)


def check_unchanged(function: Callable[..., object]) -> None:
    """Checks that a function's file has not been modified since its import.

    After a modification, the source of the imported function is unknown, because only the current file can be read.

    Raises:
      CarrierError: If the file has been modified.
    """
    file, state = _file_of(function)
    if state is not None and _files_as_imported.get(file, state) != state:
        raise CarrierError(
            f"The file that defines {function.__module__}:{function.__qualname__} has changed since it was imported; "
            "restart the worker"
        )


def _file_of(function: Callable[..., object]) -> tuple[str, _FileState | None]:
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        file = None
    return file or "", _state_of(file)


def _state_of(file: str | None) -> _FileState | None:
    """Returns the modification time and the size of a file, or `None` if the file cannot be read."""
    try:
        found = os.stat(file or "")
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
