"""Says what takes the results of a program, client by client or by columns."""

from collections.abc import Sequence
from typing import Protocol

from fedstack.computations.values.columns import Column


class ResultStream(Protocol):
    """Takes what a program yields for one client after the other."""

    def add(self, results: list[object]) -> None:
        """Takes the results of the next client, one payload per result of the program, out of a list of its own."""
        ...

    def close(self) -> None:
        """Signals the end of the stream."""
        ...


class Sink(Protocol):
    """Takes what a program yields for blocks of clients, in any order and from several threads."""

    ordered: bool

    def feed(self, start: int, results: Sequence[Column]) -> None:
        """Takes the results of the clients from `start` on, one column per result of the program."""
        ...

    def stream(self, start: int) -> ResultStream:
        """Returns what takes the results of the clients from `start` on one by one."""
        ...
