"""Counts the bytes of names in messages: of structs' members, references, intrinsics, and of what contents are."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fedstack.computations.types.language import array_pb2

_ARRAY = array_pb2.Array.DESCRIPTOR


def count_name_bytes(message: Message, most: int) -> int:
    """Returns how many bytes the different texts in a message have; stops counting above `most`.

    The type of a model comes with each node of a computation that has to do with it. Arrays have no names.
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
            elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not _ARRAY:
                waiting.extend(parts)
    return found
