"""Defines the policy for failed clients, and the value that stands for a failed client."""

import math
from typing import Any

import attrs
from attrs.validators import optional

from fedstack.computations.values.deferred_column import refuse
from fedstack.errors import InvalidValueError
from fedstack.executors.survivors.outcomes import ClientOutcomes
from fedstack.foundations.error_text import counted, shortened
from fedstack.foundations.number_checks import (
    check_number,
    check_whole_number,
    number_validator,
    whole_number_of,
    whole_number_validator,
)
from fedstack.foundations.public_names import refuses_others
from fedstack.foundations.value_text import describe

_REPR_BYTES = 100


def _check_tolerate(_: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    _check_part(attribute.name, value, 0)


def _check_enough(_: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    _check_part(attribute.name, value, 1)
    if value == 0:
        raise InvalidValueError(
            f"Expected {attribute.name} to be more than 0, found {value}; pass the share or the number of the clients "
            "for which a phase waits"
        )


def _check_part(name: str, value: Any, least: int) -> None:
    if whole_number_of(value) is not None:
        check_whole_number(name, value, least)
        return
    check_number(name, value)
    if value > 1.0:
        raise InvalidValueError(
            f"Expected {name} to be a number of clients, or a share of them from 0.0 to 1.0, found {value}; "
            "pass 0.2 for a fifth of the clients, or 20 for 20 clients"
        )


def _check_replay(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not isinstance(value, ClientOutcomes):
        raise InvalidValueError(
            f"Expected {attribute.name} to be a fedstack.ClientOutcomes, found {describe(value)}; pass what "
            "fedstack.client_outcomes() or fedstack.ClientOutcomes.load(path) has returned"
        )


@refuses_others
@attrs.frozen(kw_only=True)
class ClientFailures:
    """A policy for clients that fail: how many may fail before a call ends with an error.

    A client that fails in a phase contributes to none of the aggregations of that phase and takes part in no later
    phase. What earlier phases have aggregated from it stands. The result depends on who failed in which phase, and not
    on where or when: it has the same bits for any number of workers. It differs from the result of a call without these
    clients, because the others keep their positions in the tree along which results are folded.

    A client fails if one of its functions or its sequence raises an error, if its result has the wrong type, if a value
    that it selects by or sums securely is out of range, if it takes too long, or if it ends its process. Errors of the
    server's functions, of functions that accumulate or merge, and of arguments end the call, as they do without a
    policy. The loss of a worker is not a failure of its clients, which run again.

    In results, a list with one value per client has a `ClientFailure` in the place of each failed client.

    Attributes:
      tolerate: The maximum number of failed clients (an `int`), or their maximum share of all clients of the call (a
        `float` from 0.0 to 1.0). By default, any number may fail, and a warning is logged if more than half of them do.
      min_clients: The minimum number of clients that must be left after each phase. With 0, all clients may fail: sums
        are then 0 and means NaN.
      client_seconds: The time that the functions of a client may take in a phase, in seconds, counted from the
        beginning of the first function. A client that takes longer fails; its thread cannot be stopped, and is
        abandoned. Clients then run one by one on each thread, and not as a batch. By default there is no limit. With
        `debug=True`, the limit is ignored.
      enough: The number of clients (an `int`) or the share of the clients that take part (a `float`) that must be done
        for a phase to end. The other clients of the phase are then late: they are left out like clients that fail, and
        their threads are abandoned, but they do not count towards `tolerate`. Which clients these are depends on time;
        `fedstack.client_outcomes` records it, and `replay` repeats it. By default, a phase waits for all clients.
      retries: The number of times that a client runs again after one of its functions has raised an error, on another
        worker if there is one. The client fails if it fails each time. A client that takes too long or ends its process
        does not run again.
      replay: The outcomes of earlier calls, from `fedstack.client_outcomes`. The first call of the context is then the
        first of these calls, and so on: the clients that failed or were late fail again, in the same phase and without
        being called, so that the results have the same bits. No other client may fail.
    """

    tolerate: float = attrs.field(default=1.0, validator=_check_tolerate)
    min_clients: int = attrs.field(default=1, validator=whole_number_validator(0))
    client_seconds: float | None = attrs.field(default=None, validator=optional(number_validator(positive=True)))
    enough: float | None = attrs.field(default=None, validator=optional(_check_enough))
    retries: int = attrs.field(default=0, validator=whole_number_validator(0))
    replay: ClientOutcomes | None = attrs.field(default=None, validator=optional(_check_replay), eq=False)

    @property
    def tolerates_all(self) -> bool:
        """Whether any number of clients may fail, which may be because nobody has thought of a limit."""
        return whole_number_of(self.tolerate) is None and self.tolerate == 1.0

    def most(self, clients: int) -> int:
        """Returns the maximum number of failed clients.

        Args:
          clients: The number of clients of the call.
        """
        share = self.tolerate
        # The share is rounded to 9 digits first: 0.29 of 100 clients are 29, although 0.29 * 100 < 29.
        return int(round(share * clients, 9)) if whole_number_of(share) is None else int(share)

    def least(self, clients: int) -> int:
        """Returns the minimum number of clients that must be left. By default, a call without clients is no failure.

        Args:
          clients: The number of clients of the call.
        """
        return self.min_clients if clients or self.min_clients > 1 else 0

    def enough_of(self, clients: int) -> int | None:
        """Returns the number of clients that must be done for a phase to end; `None` for all.

        Args:
          clients: The number of clients that take part in the phase.
        """
        share = self.enough
        if share is None or self.replay is not None:
            return None  # those that were late in a replayed call do not take part
        return math.ceil(round(share * clients, 9)) if whole_number_of(share) is None else int(share)

    @property
    def limits(self) -> str:
        """The limits as text for error messages."""
        return f"tolerate={self.tolerate}, min_clients={self.min_clients}"


@attrs.frozen
class ClientFailure:
    """Stands for a client that failed, in the place of its value.

    In the list of an argument, it stands for a client that does not take part in the call, so that the lists of one
    call can be passed to another.

    Attributes:
      client: The index of the client; `None` for a client that does not take part.
      phase: The number of the phase in which the client failed, counted from 0; `None` for a client that does not take
        part.
      error: The error; `None` for a client that does not take part.
    """

    client: int | None = None
    phase: int | None = None
    error: Exception | None = attrs.field(default=None, eq=lambda error: (type(error), str(error)))

    def __str__(self) -> str:
        if self.error is None:
            return "a client that does not take part"
        return f"client {self.client} failed in phase {self.phase}: {self.error}"

    def __repr__(self) -> str:
        if self.error is None:
            return "<ClientFailure: does not take part>"
        words = shortened(str(self.error).partition("\n")[0], _REPR_BYTES)
        return f"<ClientFailure of client {self.client} in phase {self.phase}: {words}>"


refuse(
    f"{ClientFailure.__module__}.{ClientFailure.__qualname__}",
    "a ClientFailure",
    "put it in the place of a client's whole value, and set client_failures on the context",
)


def named_some(clients: list[int], most: int = 10) -> str:
    """Returns a phrase for some clients, of which only the first are named."""
    shown = ", ".join(map(str, clients[:most]))
    left = len(clients) - most
    noun = "client" if len(clients) == 1 else "clients"
    return f"{noun} {shown}" + (f" and {counted(left, 'other')}" if left > 0 else "")
