"""Writes the state of a program to one file, and reads it. A file is written whole or not at all.

| part | content |
| --- | --- |
| 8 bytes | `FEDSTATE` |
| 4 bytes | CRC-32 of the next two parts |
| 8 bytes | the length of the header |
| header | JSON: the format, each value with its name, kind, dtype, shape and CRC-32, and what is released with it |
| values | the bytes of arrays and of serialized objects, each at a multiple of 64 bytes from the start of this part |

Numbers are little-endian. No part of a file is ever executed.
"""

import contextlib
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack._version import __version__
from fedstack.computations.types.language import Serializable
from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.synced_folders import sync_folder
from fedstack.foundations.value_text import describe

_MAGIC, _FORMAT = b"FEDSTATE", 1
_ALIGNMENT = 64
_HEAD = len(_MAGIC) + 12
# The kinds of values that JSON has, or that a text stands for.
_TEXTS: dict[str, Callable[[str], object]] = {
    "int": int,
    "float": float.fromhex,
    "complex": complex,
    "bool": "True".__eq__,
}


@attrs.frozen(eq=False)
class SavedState:
    """The content of a file.

    Attributes:
      values: The values by name. Objects that were serialized are `bytes`.
      releases: What was released with the state, by the name of the release manager.
      written_by: The version of fedstack that wrote the file.
    """

    values: Mapping[str, object]
    releases: Mapping[str, object]
    written_by: str


class DamagedStateError(ProgramStateError):
    """Raised if a file is a program state but not as it was written."""


@attrs.define
class _Parts:
    """The values of a file while it is written."""

    entries: list[dict[str, object]] = attrs.field(factory=list[dict[str, object]])
    contents: list[memoryview] = attrs.field(factory=list[memoryview])
    size: int = 0

    def add(self, name: str, kind: str, content: "bytes | NDArray[Any]", **more: object) -> None:
        view = memoryview(content) if isinstance(content, bytes) else _bytes_of(content)
        entry = {"name": name, "kind": kind, "start": self.size, "size": len(view), "crc": zlib.crc32(view), **more}
        self.entries.append(entry)
        padding = -len(view) % _ALIGNMENT
        self.contents += [view, memoryview(bytes(padding))]
        self.size += len(view) + padding


def write_state(path: Path, values: Iterable[tuple[str, object]], releases: Mapping[str, object]) -> None:
    """Writes a state. Once this returns, the file survives a power failure.

    Args:
      path: The path of the file, which must not exist.
      values: The values, each with its name.
      releases: What is released with the state, as JSON, by the name of the release manager.

    Raises:
      InvalidValueError: If a value is of a kind that cannot be written.
      ProgramStateError: If the file cannot be written. Then it does not exist.
    """
    parts = _Parts()
    for name, value in values:
        _add(parts, name, value)
    fields = {"format": _FORMAT, "fedstack": __version__, "values": parts.entries, "releases": releases}
    header = json.dumps(fields).encode()
    length = len(header).to_bytes(8, "little")
    checked = zlib.crc32(header, zlib.crc32(length)).to_bytes(4, "little")
    padding = bytes(-(_HEAD + len(header)) % _ALIGNMENT)
    write_whole(path, [_MAGIC, checked, length, header, padding, *parts.contents])


def _add(parts: _Parts, name: str, value: object) -> None:
    if isinstance(value, Serializable):
        parts.add(name, "object", value.to_bytes())
    elif isinstance(value, (bytes, bytearray)):
        parts.add(name, "bytes", bytes(value))
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(cast("NDArray[Any]", value))
        kind = "scalar" if isinstance(value, np.generic) else "array"
        if array.dtype.hasobject:
            _add_strings(parts, name, array)
        else:
            parts.add(name, kind, array, dtype=_dtype_text(array.dtype), shape=array.shape)
    elif value is None or isinstance(value, str):
        parts.entries.append({"name": name, "kind": "none" if value is None else "str", "value": value})
    elif type(value) in (bool, int, float, complex):
        text = value.hex() if isinstance(value, float) else str(value)
        parts.entries.append({"name": name, "kind": type(value).__name__, "value": text})
    else:
        raise InvalidValueError(
            f"Expected numbers, strings, arrays and objects with to_bytes and from_bytes in a program's state, found "
            f"{describe(value)} at {name or 'the top'}; convert it, or make its class a federated_language.Serializable"
        )


def _add_strings(parts: _Parts, name: str, array: "NDArray[Any]") -> None:
    """Adds an array of strings, which are objects in NumPy."""
    strings = cast("list[object]", array.ravel().tolist())
    if not all(isinstance(one, (bytes, str)) for one in strings):
        raise InvalidValueError(
            f"Expected numbers or strings in the arrays of a program's state, found an array of objects at "
            f"{name or 'the top'}; convert it"
        )
    texts = [[one.hex(), "bytes"] if isinstance(one, bytes) else [one, "str"] for one in strings]
    parts.entries.append({"name": name, "kind": "strings", "value": texts, "shape": array.shape})


def _bytes_of(array: "NDArray[Any]") -> memoryview:
    plain = np.ascontiguousarray(array)
    if sys.byteorder == "big" or plain.dtype.byteorder == ">":
        plain = plain.astype(plain.dtype.newbyteorder("<"))
    return memoryview(cast(Any, plain.reshape(-1).view(np.uint8)))


def _dtype_text(dtype: "np.dtype[Any]") -> str:
    return dtype.name if dtype.kind == "V" else dtype.newbyteorder("<").str


def read_state(path: Path) -> SavedState:
    """Reads a state, and checks every byte of it.

    Raises:
      FileNotFoundError: If the file does not exist.
      DamagedStateError: If the file is damaged.
      ProgramStateError: If it cannot be read, is no program state, or was written by a newer version of fedstack.
    """
    try:
        content = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ProgramStateError(f"Cannot read the program state {path}: {text_of(error)}; check the disk") from error
    view = memoryview(cast(Any, content))
    if len(view) < _HEAD or not any(view[:_HEAD]):
        raise _damaged(path, "its beginning")
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise ProgramStateError(
            f"Expected a program state of fedstack in {path}, found another kind of file; remove it, or choose another "
            "folder"
        )
    length = int.from_bytes(view[len(_MAGIC) + 4 : _HEAD], "little")
    header = view[_HEAD : _HEAD + length]
    checked = zlib.crc32(header, zlib.crc32(view[len(_MAGIC) + 4 : _HEAD]))
    if len(header) != length or checked != int.from_bytes(view[len(_MAGIC) : len(_MAGIC) + 4], "little"):
        raise _damaged(path, "its header")
    fields: Any = json.loads(bytes(header))
    if fields["format"] != _FORMAT:
        raise ProgramStateError(
            f"Expected format {_FORMAT} in the program state {path}, found format {fields['format']}, which fedstack "
            f"{fields['fedstack']} wrote; use that version or a newer one"
        )
    start = _HEAD + length + -(_HEAD + length) % _ALIGNMENT
    values = {entry["name"]: _read_value(entry, view[start:], path) for entry in fields["values"]}
    return SavedState(values, fields["releases"], fields["fedstack"])


def _read_value(entry: Mapping[str, Any], contents: memoryview, path: Path) -> object:
    kind = entry["kind"]
    if kind in ("none", "str"):
        return entry["value"]
    if kind in _TEXTS:
        return _TEXTS[kind](entry["value"])
    if kind == "strings":
        strings = [bytes.fromhex(text) if what == "bytes" else text for text, what in entry["value"]]
        found: NDArray[Any] = np.empty(len(strings), object)
        found[:] = strings
        return found.reshape(cast("Sequence[int]", entry["shape"]))
    content = contents[entry["start"] : entry["start"] + entry["size"]]
    if len(content) != entry["size"] or zlib.crc32(content) != entry["crc"]:
        raise _damaged(path, entry["name"] or "its value")
    if kind in ("object", "bytes"):
        return bytes(content)
    dtype: np.dtype[Any] = np.dtype(entry["dtype"])
    shape: Sequence[int] = entry["shape"]
    array: NDArray[Any] = np.frombuffer(content, dtype, math.prod(shape)).reshape(shape).astype(dtype.newbyteorder("="))
    return array[()] if kind == "scalar" else array


def _damaged(path: Path, what: str) -> DamagedStateError:
    return DamagedStateError(
        f"Expected the program state {path} as it was written, found that {what} is damaged or missing, as after a "
        "failure of the disk; remove the file, and load an older version"
    )


def write_whole(path: Path, parts: Sequence["bytes | memoryview"]) -> None:
    """Writes a file, or replaces one, so that it has its old or its new content after any failure.

    Args:
      path: The path of the file.
      parts: The content.

    Raises:
      ProgramStateError: If the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")  # what a killed process has left is written over
    try:
        with _removed_if_it_stays(beside):
            with open(beside, "wb", buffering=0) as file:
                for part in _at_most(parts, 1 << 30):
                    done = 0
                    while done < len(part):
                        done += cast(int, file.write(part[done:]))
                os.fsync(file.fileno())
            os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise ProgramStateError(
            f"Cannot write {path}: {text_of(error)}; what was there before is unchanged. Free some space, or allow "
            "writing to the folder, and run again"
        ) from error


def _at_most(parts: Sequence["bytes | memoryview"], size: int) -> Iterator[memoryview]:
    """Yields the parts in pieces that the system writes in one call. Small parts are joined."""
    small = bytearray()
    for part in parts:
        if len(part) < 1 << 16:
            small += part
            continue
        if small:
            yield memoryview(bytes(small))
            small.clear()
        view = memoryview(part)
        yield from (view[start : start + size] for start in range(0, len(view), size))
    yield memoryview(bytes(small))


@contextlib.contextmanager
def _removed_if_it_stays(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
