"""Writes the state of a program to one file, and reads it.

The header has each value with its name, kind, dtype, shape and CRC-32, and what is released with the state. The
contents are the bytes of arrays and of serialized objects, each at a multiple of 64 bytes. No part of a file is ever
executed.
"""

import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import Serializable
from fedstack.data.headed_file import ALIGNMENT, FileKind, write_whole
from fedstack.errors import InvalidValueError
from fedstack.foundations.value_text import describe

_KIND = FileKind(b"FEDSTATE", 1, "program state")
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
        padding = -len(view) % ALIGNMENT
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
    parts = _parts_of(values)
    write_whole(path, [_KIND.head({"values": parts.entries, "releases": releases}), *parts.contents])


def check_savable(values: Iterable[tuple[str, object]]) -> None:
    """Checks that values, each with its name, are of kinds that `write_state` writes.

    Raises:
      InvalidValueError: If not.
    """
    _parts_of(values)


def _parts_of(values: Iterable[tuple[str, object]]) -> _Parts:
    parts = _Parts()
    for name, value in values:
        _add(parts, name, value)
    return parts


def _add(parts: _Parts, name: str, value: object) -> None:
    if isinstance(value, Serializable):
        parts.add(name, "object", value.to_bytes())
    elif isinstance(value, (bytes, bytearray)):
        parts.add(name, "bytes", bytes(value))
    elif isinstance(value, np.ma.MaskedArray):
        raise InvalidValueError(
            f"Expected arrays without masks in a program's state, found a masked one at {name or 'the top'}; save its "
            "data and its mask as two arrays, or fill it"
        )
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(cast("NDArray[Any]", value))
        if issubclass(array.dtype.type, np.void):
            raise InvalidValueError(
                f"Expected arrays of numbers or strings in a program's state, found {describe(array)} at "
                f"{name or 'the top'}; save its fields one by one, or its bytes"
            )
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
            f"{describe(value)} at {name or 'the top'}; {_advice(value)}"
        )


def _advice(value: object) -> str:
    if hasattr(value, "__array__"):
        return "pass its array, as in np.asarray(value)"
    return "convert it, or make its class a federated_language.Serializable"


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
    with _KIND.open(path) as (file, fields):
        contents = memoryview(cast(Any, np.fromfile(file, np.uint8)))
    values = {entry["name"]: _read_value(entry, contents, path) for entry in fields["values"]}
    return SavedState(values, fields["releases"], fields["fedstack"])


def check_state(path: Path, most_read: int) -> Mapping[str, object]:
    """Checks the header of a state, its size, and the bytes of its values if they are few; returns its releases.

    Args:
      path: The path of the file.
      most_read: The bytes of values that are read at most.

    Raises:
      FileNotFoundError: If the file does not exist.
      ProgramStateError: See `read_state`.
    """
    with _KIND.open(path) as (file, fields):
        ends = [entry["start"] + entry["size"] for entry in fields["values"] if "start" in entry]
        if os.fstat(file.fileno()).st_size - file.tell() < max(ends, default=0):
            raise _KIND.damaged(path, "its end")
    return read_state(path).releases if max(ends, default=0) <= most_read else fields["releases"]


def read_releases(path: Path) -> Mapping[str, object]:
    """Returns what was released with a state. Reads only the header of the file.

    Raises:
      FileNotFoundError: If the file does not exist.
      ProgramStateError: See `read_state`.
    """
    with _KIND.open(path) as (_, fields):
        return fields["releases"]


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
        raise _KIND.damaged(path, entry["name"] or "its value")
    if kind in ("object", "bytes"):
        return bytes(content)
    dtype: np.dtype[Any] = np.dtype(entry["dtype"])
    shape: Sequence[int] = entry["shape"]
    array: NDArray[Any] = np.frombuffer(content, dtype, math.prod(shape)).reshape(shape).astype(dtype.newbyteorder("="))
    return array[()] if kind == "scalar" else array
