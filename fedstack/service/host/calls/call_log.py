"""Logs refused and failed calls, with a limit on the number of lines so that a client cannot fill the disk."""

import logging
import time
from collections.abc import Callable

import attrs

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import RetryableError
from fedstack.errors import CarrierError, FedstackError, LeafError, ResourceLimitError
from fedstack.foundations.error_text import name_text, printable, shortened
from fedstack.service.host.calls.call_table import host_of
from fedstack.transport.wire.status import StatusError

_logger = logging.getLogger(__name__)
Clock = Callable[[], float]
_SECONDS = 60.0
_MOST_PEERS = 1000
_FAILURES = 30
_MAX_REASON_BYTES = 500
# The messages of these errors name functions, modules and sizes. Messages of other errors may contain clients' values.
_SAFE = (CarrierError, ResourceLimitError)


@attrs.define
class _Minute:
    """Counts the log lines written and suppressed for a peer since a point in time."""

    since: float
    lines: int = 0
    left_out: int = 0


class _Lines:
    """Limits the number of log lines per minute for each peer.

    Args:
      most: The maximum number of lines.
      clock: Returns the time in seconds.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        self._minutes: dict[str, _Minute] = {}  # oldest first

    def take(self, host: str) -> int | None:
        """Returns the number of lines suppressed since the last logged line, or `None` to suppress this line too."""
        now = self._clock()
        minute = self._minutes.get(host)
        before = 0
        if minute is None or now - minute.since >= _SECONDS:
            before = 0 if minute is None else minute.left_out
            self._minutes.pop(host, None)
            while len(self._minutes) >= _MOST_PEERS:
                del self._minutes[next(iter(self._minutes))]
            minute = self._minutes[host] = _Minute(now)
        if minute.lines >= self._most:
            minute.left_out += 1
            return None
        minute.lines += 1
        return before

    def __len__(self) -> int:
        return len(self._minutes)


def _place(host: str) -> str:
    kind = host.rstrip(":")
    return "a Unix socket" if kind == "unix" else kind or "an unknown peer"


def _more(before: int) -> str:
    return f" ({before} more since the last line)" if before else ""


class CallLog:
    """Logs refused and failed calls, with a limit on the number of lines for each peer.

    For each peer, at most one refused call and 30 failed calls are logged per minute. The lines never contain clients'
    values.

    Errors that callers handle by retrying, such as those of a stopping worker or an unknown session, are not logged.

    Args:
      clock: Returns the time in seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._refusals = _Lines(1, clock)
        self._failures = _Lines(_FAILURES, clock)

    def refused(self, peer: str, *, had_token: bool) -> None:
        """Logs a refused call.

        Args:
          peer: The caller in gRPC's notation, such as `ipv4:10.0.0.1:50000`.
          had_token: Whether the call included a token. The token itself is not logged, because it may differ from a
            valid token only by a typo.
        """
        host = host_of(peer)
        before = self._refusals.take(host)
        if before is not None:
            _logger.warning(
                "Refused a call from %s with %s%s; further refusals within %g s are counted but not logged",
                _place(host),
                "a token that this server does not accept" if had_token else "no token",
                _more(before),
                _SECONDS,
            )

    def failed(self, peer: str, method: str, error: Exception) -> None:
        """Logs a failed call.

        Args:
          peer: The caller in gRPC's notation, such as `ipv4:10.0.0.1:50000`.
          method: The full name of the method.
          error: The error that the caller receives.
        """
        if not isinstance(error, FedstackError) or isinstance(error, (RetryableError, StatusError)):
            return
        host = host_of(peer)
        before = self._failures.take(host)
        if before is not None:
            called, fields = method.rpartition("/")[2], _fields(error)
            found = called, _reason(error), _place(host), _more(before)
            _logger.warning("%s failed: %s; called from %s%s", *found, extra=fields)

    def __repr__(self) -> str:
        return f"<CallLog of {len(self._refusals)} peers refused, {len(self._failures)} whose calls failed>"


def _reason(error: FedstackError) -> str:
    """Returns a one-line description of a failure: the function, the client, and the class of the raised error."""
    kind = _in_a_line(type(error).__name__)
    reason = f"{kind}: {_in_a_line(str(error))}" if isinstance(error, _SAFE) else kind
    if not (error.computation_name or isinstance(error, LeafError)):
        return reason
    failed = f" failed with {reason}"
    if isinstance(error, LeafError):
        raised = error.__cause__
        failed = " failed" if raised is None else f" raised {_in_a_line(type(raised).__name__)}"
    client = "" if error.client_index is None else f" at client {error.client_index}"
    client = "" if failed.endswith(client) else client  # the text of the error has the place, too
    return f"{name_text(error.computation_name)!r}{failed}{client}"


def _fields(error: FedstackError) -> dict[str, object]:
    """Returns the fields that JSON log lines contain besides the message. The call's events have the same call id."""
    function = name_text(error.computation_name) or None
    return {"call": current_scope().span.call or None, "function": function, "client": error.client_index}


def _in_a_line(text: str) -> str:
    return shortened(printable(" ".join(text.split())), _MAX_REASON_BYTES)
