"""The options of `fedstack serve` for limits: one for each field of their tables."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TypeVar

import attrs
import click

from fedstack.command_line.command import seconds, whole_number
from fedstack.command_line.environment_options import EnvironmentOption
from fedstack.service.limits.limits import (
    DataWorkerLimits,
    DispatcherLimits,
    ServerLimits,
    ServiceLimits,
    option_of,
)

# A name that several tables have is one option.
LIMITS: tuple[type[attrs.AttrsInstance], ...] = (ServiceLimits, ServerLimits, DispatcherLimits, DataWorkerLimits)
_Table = TypeVar("_Table", bound=attrs.AttrsInstance)


def _limit_options() -> Iterator[click.Option]:
    """Yields an option for each limit."""
    for field in {field.name: field for table in LIMITS for field in attrs.fields(table)}.values():
        if "most" in field.metadata:
            metavar = "BYTES" if field.name.endswith("_bytes") else "N"
            kind, description = whole_number(1, field.metadata["most"]), f"most {field.metadata['what']}"
        elif "what" in field.metadata:
            metavar, kind, description = "SECONDS", seconds(1), f"how long {field.metadata['what']}"
        else:
            continue
        yield EnvironmentOption(option_of(field.name), metavar, description, type=kind, default=field.default)


def limits_of(table: type[_Table], options: SimpleNamespace) -> _Table:
    """Returns the limits of a table that the options ask for."""
    given = vars(options)
    return table(**{f.name: given[f.name] for f in attrs.fields(table) if f.name in given})


LIMIT_OPTIONS: tuple[click.Option, ...] = tuple(_limit_options())
