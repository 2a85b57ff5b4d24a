"""Writes what a server says: as text for people, or as a JSON object a line for machines."""

import datetime
import json
import logging
import time
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

# What a record may have beside its message (`extra` of logging): of which call it is, and of which function and client.
_FIELDS = ("call", "function", "client")


class JsonFormatter(logging.Formatter):
    """Makes one line of a record, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        given = vars(record)
        fields = {name: given.get(name) for name in _FIELDS}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(record.levelname.lower(), record.name, record.getMessage(), when=record.created, **fields)


def json_line(level: str, logger: str, message: str, *, when: float | None = None, **more: Any) -> str:
    """Returns a JSON object, in one line without its end, that says something.

    Args:
      level: One of `LEVELS`.
      logger: Who says it.
      message: What is said.
      when: At what time, in seconds as of `time.time`; now by default.
      more: More members of the object, as far as they are not `None`.
    """
    moment = datetime.datetime.fromtimestamp(time.time() if when is None else when, datetime.timezone.utc)
    entry = {"time": moment.isoformat(), "level": level, "logger": logger, "message": message, **more}
    return json.dumps({name: value for name, value in entry.items() if value is not None}, default=str)


def printed_as_json(text: bytes) -> bytes:
    """Returns what a function prints as JSON objects, one for each of its lines that is not empty."""
    lines = text.decode("utf-8", "backslashreplace").splitlines()
    return "".join(json_line("info", "output", line) + "\n" for line in lines if line.strip()).encode()


def configure_logging(level: str, form: str, out: TextIO) -> None:
    """Logs everything of at least `level`, one of `LEVELS`, in one of `FORMATS`, to a stream."""
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        JsonFormatter() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)  # those of functions too: each line is to be in that format
