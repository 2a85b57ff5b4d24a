"""Writes messages in protobuf's text format as a page shows them: on one line what fits on one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

WIDTH = 110
_HEX_ID = re.compile(r"\b[0-9a-f]{32}\b")


def message_text(message: Message, indent: int = 0) -> str:
    """Returns a message in text format."""
    return "\n".join(_lines(message, " " * indent))


def _lines(message: Message, indent: str) -> Iterator[str]:
    for field, found in message.ListFields():
        values = [found]
        if isinstance(found, (Sequence, Mapping)) and not isinstance(found, (str, bytes)):
            values = list(found)
        for value in values:
            whole = _on_one_line(_only(message, field.name, value, repeated=found is not value))
            inside = not isinstance(value, Message) or _has_any(value)
            if inside or len(indent) + len(whole) <= WIDTH:
                yield indent + whole
            else:
                yield f"{indent}{field.name} {{"
                yield from _lines(value, indent + "  ")
                yield f"{indent}}}"


def _has_any(message: Message) -> bool:
    """Tells whether the fields of a message are not what its text shows."""
    return message.DESCRIPTOR.full_name == "google.protobuf.Any"


def _only(message: Message, name: str, value: Any, *, repeated: bool) -> Message:
    # `lambda` is a reserved word, so fields go by keyword.
    return type(message)(**{name: [value] if repeated else value})


def _on_one_line(message: Message) -> str:
    return text_format.MessageToString(message, as_one_line=True).replace("{  }", "{}").replace("{ }", "{}")


class ShortIds:
    """Replaces the random ids in a text by short ones, in the order in which they come."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = iter(names)
        self._known: dict[str, str] = {}

    def shorten(self, text: str) -> str:
        """Returns a text with short ids."""
        return _HEX_ID.sub(self._short, text)

    def _short(self, found: "re.Match[str]") -> str:
        if found[0] not in self._known:
            self._known[found[0]] = next(self._names)
        return self._known[found[0]]
