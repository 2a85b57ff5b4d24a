"""Writes a value together with its type, and reads it: for receivers that do not know the type beforehand.

Whatever travels with its type does so as one message, `TypedValue`, with the bytes of large arrays beside it: values
that are created in a session, what is put in place of a variable, results of functions of a coordinator. Where both
sides know the type (arguments of methods, partial results of a phase), only the packed value travels.
"""

from collections.abc import Callable

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.proto.extensions_pb2 import TypedValue


def write_typed(payload: object, type_spec: Type, packer: Packer, into: TypedValue | None = None) -> TypedValue:
    """Writes a payload and its type.

    Args:
      payload: The payload.
      type_spec: Its type.
      packer: Gets the bytes that travel beside the message.
      into: The message to write into, which is empty; by default a new one.

    Raises:
      TypeMismatchError: If the payload does not fit the type.
    """
    typed = TypedValue() if into is None else into
    typed.type.CopyFrom(type_spec.to_proto())
    packer.pack(typed.value, payload, type_spec)
    return typed


def read_typed(
    typed: TypedValue,
    unpacker: Unpacker,
    read_type: Callable[[computation_pb2.Type], Type] = type_from_proto,
    path: str = "value",
) -> tuple[object, Type]:
    """Returns a payload and its type.

    Args:
      typed: The message.
      unpacker: Has the memory for the bytes beside it, or has them.
      read_type: Reads the type; it may refuse some.
      path: Where the value stands, for messages.

    Raises:
      FedstackError: If the message contradicts itself or announces too much.
    """
    type_spec = read_type(typed.type)
    return unpacker.unpack(typed.value, type_spec, path), type_spec
