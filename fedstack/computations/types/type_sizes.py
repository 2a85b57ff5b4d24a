"""Measures types: a struct may name the same type many times, so a few bytes can stand for any number of tensors."""

from fedstack.computations.types.language import (
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_memory import TypeMemo
from fedstack.computations.types.type_structure import fields_of
from fedstack.foundations.error_text import printable, shortened

_known: TypeMemo[tuple[int, int]] = TypeMemo()
_SHOWN_TENSORS = 100
_MAX_TEXT_BYTES = 4096  # names may have any length


def count_leaves(type_spec: Type) -> int:
    """Returns how many tensors a value of a type has, those of sequences and functions once.

    What comes several times counts each time, and an empty struct like a tensor.
    """
    return _sizes(type_spec)[0]


def struct_depth(type_spec: Type) -> int:
    """Returns how many structs of a type are inside of each other."""
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
    """Returns how many tensors a type has that was not read yet; stops counting above `most`."""
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
    """Writes a type for a message, as the language does; of a large one only the first members of its structs."""
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
