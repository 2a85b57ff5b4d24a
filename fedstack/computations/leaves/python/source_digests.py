"""Tells versions of functions and of their modules apart by their source."""

import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType

from fedstack.computations.types.bounded_cache import SharedCache
from fedstack.errors import CarrierError

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
