"""Writes messages byte by byte, as peers of other makes do: by the numbers of their fields and nothing else."""

import struct
from collections.abc import Iterable

CLIENTS, SERVER = b"clients", b"server"
FLOAT, DOUBLE, INT32, STRING, INT64, BOOL, BFLOAT16, COMPLEX64, HALF = 1, 2, 3, 7, 9, 10, 14, 8, 19


def varint(number: int) -> bytes:
    number %= 1 << 64
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, *content: bytes) -> bytes:
    """Writes a field that is a message, a string or bytes, or numbers packed together."""
    whole = b"".join(content)
    return varint(field << 3 | 2) + varint(len(whole)) + whole


def numbers(field: int, values: Iterable[int]) -> bytes:
    return message(field, *map(varint, values))


# federated_language.Array: dtype=1, shape=2{dim=1}, lists 3 to 19, content=18.
LISTS = {BOOL: 3, INT32: 6, INT64: 7, HALF: 12, FLOAT: 13, DOUBLE: 14, COMPLEX64: 15, STRING: 17, BFLOAT16: 19}


def shape(dims: Iterable[int]) -> bytes:
    packed = numbers(1, dims) if dims else b""
    return message(2, packed)


def listed(dtype: int, values: Iterable, dims: Iterable[int] = ()) -> bytes:
    """An array whose elements stand one by one in the list of its dtype."""
    if dtype == STRING:
        content = b"".join(message(1, value) for value in values)
    elif dtype in (FLOAT, COMPLEX64):
        content = message(1, struct.pack(f"<{len(list(values))}f", *values))
    elif dtype == DOUBLE:
        content = message(1, struct.pack(f"<{len(list(values))}d", *values))
    else:
        content = numbers(1, values)
    return number(1, dtype) + shape(dims) + message(LISTS[dtype], content)


def raw(dtype: int, content: bytes, dims: Iterable[int]) -> bytes:
    """An array whose elements are the bytes that they have in memory."""
    return number(1, dtype) + shape(dims) + message(18, content)


# federated_language.Type: function=1, struct=2, sequence=3, tensor=4, federated=7.
def tensor_type(dtype: int, dims: Iterable[int] = ()) -> bytes:
    return message(4, number(1, dtype) + (numbers(2, dims) if dims else b""))


def struct_type(*members: tuple[bytes, bytes]) -> bytes:
    return message(2, *(message(1, (message(1, name) if name else b"") + message(2, t)) for name, t in members))


def sequence_type(element: bytes) -> bytes:
    return message(3, message(1, element))


def function_type(parameter: bytes | None, result: bytes) -> bytes:
    return message(1, (message(1, parameter) if parameter is not None else b"") + message(2, result))


def placement(uri: bytes, all_equal: bool = False, member: bytes | None = None) -> bytes:
    """A FederatedType: placement=1{value=2{uri=1}}, all_equal=2, member=3."""
    content = message(1, message(2, message(1, uri))) + (number(2, 1) if all_equal else b"")
    return content + (message(3, member) if member is not None else b"")


# Value: computation=2, struct=3, sequence=4, federated=5, array=6.
def array(content: bytes) -> bytes:
    return message(6, content)


def struct_of(*members: tuple[bytes, bytes] | bytes) -> bytes:
    pairs = [member if isinstance(member, tuple) else (b"", member) for member in members]
    return message(3, *(message(1, (message(1, name) if name else b"") + message(2, value)) for name, value in pairs))


def sequence(*elements: Iterable[bytes], element_type: bytes | None = None) -> bytes:
    content = b"" if element_type is None else message(2, element_type)
    return message(4, content, *(message(4, *(message(1, leaf) for leaf in element)) for element in elements))


def federated(uri: bytes, *values: bytes, all_equal: bool = False, member: bytes | None = None) -> bytes:
    return message(5, message(1, placement(uri, all_equal, member)), *(message(2, value) for value in values))


def computation(type_spec: bytes, kind: int, content: bytes) -> bytes:
    """A Computation: type=1, then tensorflow=2, intrinsic=3, lambda=4, reference=6, data=10, literal=14."""
    return message(1, type_spec) + message(kind, content)


def literal(type_spec: bytes, content: bytes) -> bytes:
    return message(2, computation(type_spec, 14, message(1, content)))


# Requests.
def executor_id(name: bytes) -> bytes:
    return message(1, name)


def get_executor(**cardinalities: int) -> bytes:
    counts = cardinalities.items()
    return b"".join(message(1, message(1, message(1, uri.encode())), number(2, count)) for uri, count in counts)


def create_value(executor: bytes, value: bytes) -> bytes:
    return message(1, value) + message(2, executor_id(executor))


def create_call(executor: bytes, function: bytes, argument: bytes | None = None) -> bytes:
    given = b"" if argument is None else message(2, message(1, argument))
    return message(1, message(1, function)) + given + message(3, executor_id(executor))


def create_struct(executor: bytes, *members: tuple[bytes, bytes]) -> bytes:
    elements = (message(1, (message(1, name) if name else b"") + message(2, message(1, ref))) for name, ref in members)
    return b"".join(elements) + message(3, executor_id(executor))


def create_selection(executor: bytes, source: bytes, index: int) -> bytes:
    return message(1, message(1, source)) + number(3, index) + message(4, executor_id(executor))


def compute(executor: bytes, value: bytes) -> bytes:
    return message(1, message(1, value)) + message(2, executor_id(executor))


def dispose(executor: bytes, *values: bytes) -> bytes:
    return b"".join(message(1, message(1, value)) for value in values) + message(2, executor_id(executor))


def dispose_executor(executor: bytes) -> bytes:
    return message(1, executor_id(executor))
