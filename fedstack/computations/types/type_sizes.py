"""Measures types, formats types for messages, and checks whether one type is assignable to another.

A struct may repeat the same type many times, so a few bytes can describe any number of tensors. Therefore a type from a
peer is measured before any code traverses or prints it.
"""

from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fedstack.computations.types.language import (
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    array_pb2,
    computation_pb2,
)
from fedstack.computations.types.type_structure import TypeMemo, fields_of, join_path
from fedstack.errors import TypeMismatchError
from fedstack.foundations.error_text import name_text, printable, shortened

_known: TypeMemo[tuple[int, int]] = TypeMemo()
_SHOWN_TENSORS = 100
_MAX_TEXT_BYTES = 4096  # the names of members have no maximum length


def count_leaves(type_spec: Type) -> int:
    """Returns the number of tensors in a type.

    The element type of a sequence and the types of a function count once each. A type that occurs several times counts
    each time. An empty struct counts as one tensor.
    """
    return _sizes(type_spec)[0]


def struct_depth(type_spec: Type) -> int:
    """Returns the maximum depth of nested structs in a type."""
    return _sizes(type_spec)[1]


def _sizes(type_spec: Type) -> tuple[int, int]:
    if isinstance(type_spec, TensorType):
        return 1, 0
    found = _known.get(type_spec)
    if found is None:
        members = [_sizes(child) for child in type_spec.children()]
        leaves = max(1, sum(count for count, _ in members))
        depth = isinstance(type_spec, StructType) + max((depth for _, depth in members), default=0)
        found = _known.put(type_spec, (leaves, depth))
    return found


def least_leaves(proto: computation_pb2.Type, most: int) -> int:
    """Returns the number of tensors in a type that has not been parsed yet. Counting stops above `most`."""
    found = 0
    waiting = [proto]
    while waiting and found <= most:
        part = waiting.pop()
        kind = part.WhichOneof("type")
        if kind == "struct":
            waiting += [element.value for element in part.struct.element[: most + 1]]
            found += not part.struct.element
        elif kind == "function":
            waiting += [part.function.parameter, part.function.result]
        elif kind == "sequence":
            waiting.append(part.sequence.element)
        elif kind == "federated":
            waiting.append(part.federated.member)
        else:
            found += 1
    return found


def type_text(type_spec: Type) -> str:
    """Returns the text of a type for a message, in the language's notation. Large structs are abbreviated."""
    is_small = count_leaves(type_spec) <= _SHOWN_TENSORS
    return shortened(printable(str(type_spec) if is_small else _text(type_spec, _SHOWN_TENSORS)), _MAX_TEXT_BYTES)


def _text(type_spec: Type, room: int) -> str:
    if isinstance(type_spec, StructType):
        return _struct_text(type_spec, room)
    if isinstance(type_spec, FederatedType):
        member = _text(type_spec.member, room)
        return f"{member if type_spec.all_equal else f'{{{member}}}'}@{type_spec.placement}"
    if isinstance(type_spec, SequenceType):
        return f"{_text(type_spec.element, room)}*"
    if isinstance(type_spec, FunctionType):
        parameter = "" if type_spec.parameter is None else f"{_text(type_spec.parameter, room // 2)} "
        return f"({parameter}-> {_text(type_spec.result, room // 2)})"
    return str(type_spec)


def _struct_text(struct: StructType, room: int) -> str:
    shown: list[str] = []
    fields = fields_of(struct)
    for name, member in fields:
        if room <= 0:
            break
        shown.append(("" if name is None else f"{name}=") + _text(member, room))
        room -= count_leaves(member)
    left = len(fields) - len(shown)
    return f"<{','.join(shown + [f'… {left} more'] * bool(left))}>"


def count_name_bytes(message: Message, most: int) -> int:
    """Returns the total size in bytes of the distinct texts in a message. Counting stops above `most`.

    The texts are the names of members, references, intrinsics and content types. Equal texts count once, because a
    message repeats a type for every node of the computation that has this type. Arrays are skipped: they contain no
    names.
    """
    found = 0
    known: set[str] = set()
    waiting = [message]
    while waiting and found <= most:
        for field, value in waiting.pop().ListFields():
            parts: Any = (value,) if isinstance(value, (str, Message)) else value
            if field.type == FieldDescriptor.TYPE_STRING:
                found += sum(len(text.encode()) for text in parts if text not in known)
                known.update(parts)
            elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not array_pb2.Array.DESCRIPTOR:
                waiting.extend(parts)
    return found


def check_assignable(expected: Type, found: Type, path: str) -> None:
    """Checks that a value of one type can be used where another type is expected.

    Args:
      expected: The expected type.
      found: The type of the value.
      path: The path of the value, for the message.

    Raises:
      TypeMismatchError: If `found` is not assignable to `expected`. The message contains both types and the path.
    """
    if expected is found:
        return
    if isinstance(expected, StructType) and isinstance(found, StructType):
        theirs = fields_of(found)
        members = matched_members(expected, [name for name, _ in theirs], path)
        if members is not None:
            for (member_path, wanted), (_, given) in zip(members, theirs):
                check_assignable(wanted, given, member_path)
            return
    try:
        fits = expected.is_assignable_from(found)
    except TypeError as error:  # the language does not compare abstract types
        raise TypeMismatchError(f"Expected a concrete type, found {type_text(expected)}; at {path}; {error}") from error
    if not fits:
        raise TypeMismatchError(f"Expected {type_text(expected)}, found {type_text(found)}; at {path}")


def matched_members(expected: StructType, names: Sequence[str | None], path: str) -> Sequence[tuple[str, Type]] | None:
    """Returns the (path, type) pair of each member of a struct type, after checking the member names of a value.

    A member without a name matches any name. The result is `None` if the number of members differs.

    Args:
      expected: The struct type.
      names: The names of the value's members.
      path: The path of the value.

    Raises:
      TypeMismatchError: If the name of a member differs from the name in the type.
    """
    fields = fields_of(expected)
    if len(fields) != len(names):
        return None
    for index, (given, (wanted, _)) in enumerate(zip(names, fields)):
        if given is not None and given != wanted:
            where = join_path(path, wanted, index)
            raise TypeMismatchError(
                f"Expected the member names of {type_text(expected)}, found a member named {name_text(given)!r}; "
                f"at {where}"
            )
    return [(join_path(path, name, index), member) for index, (name, member) in enumerate(fields)]
