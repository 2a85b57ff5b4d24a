"""The head of a file of clients' states, which has the format of safetensors.

| part | content |
| --- | --- |
| 8 bytes | the length of the header, little-endian |
| header | JSON: metadata, with a CRC-32 of the header and the layout of the records; the tensors; spaces |
| `client_ids` | the ids of the clients as JSON; spaces |
| `crc32` | `<u4[clients]`, the CRC-32 of each record |
| `states` | a record for each client, from a multiple of 64 bytes |

The records are an array of their dtype if all tensors of a state have the same one, and no bytes are between them:
of shape `[clients, *shape]` if a state is one tensor, otherwise `[clients, elements]`. All others are bytes.
"""

import json
import math
import operator
import os
import re
import stat
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

import attrs
import numpy as np

from fedstack._version import __version__
from fedstack.data.client_seeds import ClientId
from fedstack.data.client_states.record_layout import record_dtype
from fedstack.data.headed_file import ALIGNMENT, damaged, opened_at_once
from fedstack.errors import InvalidValueError, ProgramStateError

WHAT = "file of clients' states"
_FORMAT = "2"
_FORMER = b"FEDCLNTS"  # what files of the format before begin with
_MAGIC, _NO_CHECK = "fedstack client states", "00000000"
_BEGINNING = f'{{"__metadata__":{{"{_MAGIC}":"'.encode()
_CHECK_END = len(_BEGINNING) + len(_NO_CHECK)
_LENGTH_BYTES = 8
_MOST_WRONG = 4  # of the first bytes of a file that is taken for a damaged one
_MOST_BITS = 14_000  # of a number that Python writes as text
_BEFORE = "client_ids", "crc32"  # the tensors before the records
# Files of a program have numbers, those of workers what tells the call, the clients and the attempt.
_NAME = re.compile("[0-9]{8,}|[0-9a-f]+(-[0-9a-f]+)+")
# What the lengths of headers begin with, as the next part begins at a multiple of `ALIGNMENT`.
_LOW_BYTES = bytes(low for low in range(256) if (low + _LENGTH_BYTES) % ALIGNMENT == 0)
# The names that safetensors has for dtypes.
_DTYPES = {
    "|b1": "BOOL",
    "|i1": "I8",
    "|u1": "U8",
    "<i2": "I16",
    "<u2": "U16",
    "<f2": "F16",
    "bfloat16": "BF16",
    "<i4": "I32",
    "<u4": "U32",
    "<f4": "F32",
    "<i8": "I64",
    "<u8": "U64",
    "<f8": "F64",
}


@attrs.frozen(eq=False)
class ShardHead:
    """What a file has before its records.

    Attributes:
      fields: The layout of the records; see `RecordLayout`.
      client_ids: The clients, in the order of their records.
      crcs: The CRC-32 of each record.
      digest: The CRC-32 of the whole head.
      start: The position of the first record in the file.
    """

    fields: Sequence[Sequence[Any]]
    client_ids: Sequence[ClientId]
    crcs: Sequence[int]
    digest: int
    start: int


def write_head(fields: Sequence[Sequence[Any]], client_ids: Sequence[ClientId], crcs: Sequence[int]) -> bytes:
    """Returns what a file has before its records.

    Args:
      fields: The layout of the records; see `RecordLayout`.
      client_ids: The clients.
      crcs: The CRC-32 of the record of each.

    Raises:
      InvalidValueError: If an id is too long.
    """
    ids, checks = json.dumps(ids_as_json(client_ids)).encode(), np.array(crcs, "<u4").tobytes()
    ids += b" " * (-(len(ids) + len(checks)) % ALIGNMENT)
    metadata = {_MAGIC: _NO_CHECK, "format": _FORMAT, "fedstack": __version__, "fields": json.dumps(fields)}
    header, end = dict[str, object](__metadata__={**metadata, "crc32 of client_ids": str(zlib.crc32(ids))}), 0
    for name, (dtype, shape, size) in {
        "client_ids": ("U8", [len(ids)], len(ids)),
        "crc32": ("U32", [len(crcs)], len(checks)),
        "states": _tensor_of(fields, len(crcs)),
    }.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-(_LENGTH_BYTES + len(content)) % ALIGNMENT)
    length = len(content).to_bytes(_LENGTH_BYTES, "little")
    return length + _BEGINNING + _check_of(length, content) + content[_CHECK_END:] + ids + checks


def read_head(file: IO[bytes], path: Path) -> ShardHead:
    """Reads the head of a file, which is at its beginning.

    Raises:
      DamagedStateError: If it is damaged.
      ProgramStateError: If the file is of another kind or format.
    """
    length, size = file.read(_LENGTH_BYTES), os.fstat(file.fileno()).st_size
    if length == _FORMER:
        raise ProgramStateError(
            f"Expected a {WHAT} in format {_FORMAT} in {path}, found the format before; use the version of fedstack "
            "that wrote it, or choose another folder"
        )
    count = int.from_bytes(length, "little")
    content = file.read(max(count, _CHECK_END) if count <= size else _CHECK_END)  # a damaged length may be huge
    if not _may_begin(length + content):
        raise ProgramStateError(
            f"Expected a {WHAT} of fedstack in {path}, found another kind of file; remove it, or choose another folder"
        )
    if len(content) != count:
        raise damaged(WHAT, path, "its beginning")
    if not content.startswith(_BEGINNING) or content[len(_BEGINNING) : _CHECK_END] != _check_of(length, content):
        raise damaged(WHAT, path, "its header")
    header = json.loads(content)
    metadata = header["__metadata__"]
    if metadata["format"] != _FORMAT:
        raise ProgramStateError(
            f"Expected format {_FORMAT} in the {WHAT} {path}, found format {metadata['format']}, which fedstack "
            f"{metadata['fedstack']} wrote; use that version or a newer one"
        )
    ids, checks = [file.read(end - begin) for begin, end in (header[name]["data_offsets"] for name in _BEFORE)]
    if str(zlib.crc32(ids)) != metadata["crc32 of client_ids"]:
        raise damaged(WHAT, path, "the ids of its clients")
    begin, end = header["states"]["data_offsets"]
    if size != _LENGTH_BYTES + count + end:
        raise damaged(WHAT, path, "its end")
    crcs = cast("list[int]", np.frombuffer(checks, "<u4").tolist())
    digest = zlib.crc32(length + content + ids + checks)
    return ShardHead(
        json.loads(metadata["fields"]), ids_from_json(json.loads(ids)), crcs, digest, _LENGTH_BYTES + count + begin
    )


def may_be_shard(path: Path) -> bool:
    """Returns whether fedstack may have written a file, perhaps before a crash, as its name and beginning tell."""
    if not _NAME.fullmatch(path.stem) or path.is_symlink():
        return False
    try:
        with open(path, "rb", buffering=0, opener=opened_at_once) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return is_regular and _may_begin(file.read(_LENGTH_BYTES + len(_BEGINNING)))
    except OSError:
        return False


def ids_as_json(client_ids: Iterable[ClientId]) -> list[object]:
    """Returns ids of clients as JSON.

    Raises:
      InvalidValueError: If an id is too long a number.
    """
    found = [{"hex": one.hex()} if isinstance(one, bytes) else one for one in client_ids]
    if any(isinstance(one, int) and one.bit_length() > _MOST_BITS for one in found):
        raise InvalidValueError(
            f"Expected whole numbers of at most {_MOST_BITS} bits as ids of clients, found a larger one; use strings"
        )
    return cast("list[object]", found)


def ids_from_json(found: Iterable[Any]) -> list[ClientId]:
    """Returns the ids of clients that `ids_as_json` has returned as JSON."""
    return [bytes.fromhex(cast("dict[str, str]", one)["hex"]) if isinstance(one, dict) else one for one in found]


def _may_begin(content: bytes) -> bool:
    """Returns whether a file with this beginning may be a shard.

    After a crash, bytes may be missing or zero. A few others may be wrong, as after a failure of the disk.
    """
    length, beginning = content[:_LENGTH_BYTES], content[_LENGTH_BYTES:][: len(_BEGINNING)]
    if len(beginning) == len(_BEGINNING):
        is_shard = sum(map(operator.ne, beginning, _BEGINNING)) <= _MOST_WRONG
    else:
        is_shard = length[:1] in _LOW_BYTES and not any(length[5:]) and _BEGINNING.startswith(beginning)
    return is_shard or not any(content[: _LENGTH_BYTES + len(_BEGINNING)])


def _check_of(length: bytes, content: bytes) -> bytes:
    """Returns the digits of the CRC-32 of a header, which does not count the digits that are in it."""
    return b"%08x" % zlib.crc32(content[_CHECK_END:], zlib.crc32(_BEGINNING, zlib.crc32(length)))


def _tensor_of(fields: Sequence[Sequence[Any]], clients: int) -> tuple[str, list[int], int]:
    """Returns the dtype, the shape and the bytes of the tensor that has the records."""
    size = record_dtype(fields).itemsize
    names, shapes = {name for _, name, _ in fields}, [tuple(shape) for _, _, shape in fields]
    name = names.pop()
    elements = sum(map(math.prod, shapes))
    if names or name not in _DTYPES or elements * np.dtype(name).itemsize != size:
        return "U8", [clients, size], clients * size
    shape = shapes[0] if len(shapes) == 1 else (elements,)
    return _DTYPES[name], [clients, *shape], clients * size
