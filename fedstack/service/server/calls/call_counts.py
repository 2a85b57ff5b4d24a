"""Counts the calls that have ended."""

from collections import Counter
from collections.abc import Iterator


class CallCounts:
    """How many calls ended, by method and by code.

    Only methods that the server has are counted by name, so a client cannot make the table grow.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, method: str, code: str) -> None:
        """Counts one call of `method`, such as `grpc.health.v1.Health/Check`, that ended with `code`, such as `OK`."""
        self._counts[method, code] += 1

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Yields method, code and count, in the order of the names."""
        for (method, code), count in sorted(self._counts.items()):
            yield method, code, count

    def __repr__(self) -> str:
        return f"CallCounts({dict(self._counts)})"
