"""Logs which calls were refused and which failed, but not so often that a client can fill the disk."""

import logging
import time
from collections.abc import Callable

import attrs

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import RetryableError
from fedstack.errors import CarrierError, FedstackError, LeafError, ResourceLimitError
from fedstack.foundations.error_text import name_text, printable, shortened
from fedstack.service.host.call_table import host_of
from fedstack.transport.wire.status import StatusError

_logger = logging.getLogger(__name__)
Clock = Callable[[], float]
_SECONDS = 60.0
_MOST_PEERS = 1000
_FAILURES = 30
_MAX_REASON_BYTES = 500
# Their texts name functions, modules and sizes; the texts of other errors may contain values of clients.
_SAFE = (CarrierError, ResourceLimitError)


@attrs.define
class _Minute:
    """The lines logged about a peer since a point in time, and how many were suppressed."""

    since: float
    lines: int = 0
    left_out: int = 0


class _Lines:
    """Limits the log lines a minute about each peer.

    Args:
      most: The most lines.
      clock: Returns the time in seconds.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._clock = clock
        self._minutes: dict[str, _Minute] = {}  # the oldest first

    def take(self, host: str) -> int | None:
        """Returns how many lines have been left out since the last one; `None` if this is to be left out too."""
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
    """Logs calls that were refused or have failed, with a limit for each peer.

    Calls without a token of the server get one line a minute. Failed calls get thirty at most, without values of
    clients. Errors that callers handle by another attempt, such as a worker that stops or an unknown session, get none.

    Args:
      clock: Returns the time in seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._refusals = _Lines(1, clock)
        self._failures = _Lines(_FAILURES, clock)

    def refused(self, peer: str, *, had_token: bool) -> None:
        """Logs a call that was refused.

        Args:
          peer: The caller, in gRPC's form: `ipv4:10.0.0.1:50000`.
          had_token: Whether it brought any token. The token itself is not logged: it may be nearly right.
        """
        host = host_of(peer)
        before = self._refusals.take(host)
        if before is not None:
            _logger.warning(
                "Refused a call from %s, which brought %s%s; more of them within %g s are counted only",
                _place(host),
                "a token that is none of this server's" if had_token else "no token",
                _more(before),
                _SECONDS,
            )

    def failed(self, peer: str, method: str, error: Exception) -> None:
        """Logs a call that failed.

        Args:
          peer: The caller, in gRPC's form: `ipv4:10.0.0.1:50000`.
          method: The full name of the method.
          error: What the caller gets.
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
    """Returns what failed, in one line: the function, its client and the class of what it raised."""
    kind = _in_a_line(type(error).__name__)
    reason = f"{kind}: {_in_a_line(str(error))}" if isinstance(error, _SAFE) else kind
    if not (error.computation_name or isinstance(error, LeafError)):
        return reason
    failed = f" failed with {reason}"
    if isinstance(error, LeafError):
        raised = error.__cause__
        failed = " failed" if raised is None else f" raised {_in_a_line(type(raised).__name__)}"
    client = "" if error.client_index is None else f" at client {error.client_index}"
    return f"{name_text(error.computation_name)!r}{failed}{client}"


def _fields(error: FedstackError) -> dict[str, object]:
    """Returns the further fields of a JSON log line; the id of a call is that of its events."""
    function = name_text(error.computation_name) or None
    return {"call": current_scope().span.call or None, "function": function, "client": error.client_index}


def _in_a_line(text: str) -> str:
    return shortened(printable(" ".join(text.split())), _MAX_REASON_BYTES)
