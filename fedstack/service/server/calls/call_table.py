"""Holds the calls that run, and gives each its place among those of other clients."""

import time

from fedstack.service.limits.fair_shares import FairShares
from fedstack.service.limits.limits import ServerLimits, exceeded
from fedstack.service.server.calls.call_stream import Task


class CallTable:
    """Calls that run, each at one of so many places.

    Args:
      limits: The limits of the server.
      limit: Which of them is the number of places.
      patience: How long a call that has sent nothing yet keeps its place from others, in seconds.
    """

    def __init__(self, limits: ServerLimits, limit: str, patience: float) -> None:
        self.running: dict[Task, str] = {}
        self.silent: dict[Task, float] = {}  # since when, the longest first
        self._limits = limits
        self._limit = limit
        self._patience = patience
        self._shares = FairShares(getattr(limits, limit))
        self._gave_way = set[Task]()

    def add(self, task: Task, caller: str) -> None:
        """Gives a call a place until its task is done, which is not before gRPC has sent the outcome.

        Raises:
          ResourceLimitError: If there is none.
        """
        if not self._shares.take(caller) and not (self._make_room() and self._shares.take(caller)):
            raise exceeded(self._limits, self._limit, self._shares.refused, "call again when others are done")
        self.running[task] = caller
        task.add_done_callback(self._remove)

    def hand_over(self, task: Task, successor: Task) -> None:
        """Gives the place of a call to the task that goes on with it."""
        caller = self.running.pop(task, None)
        if caller is not None:
            self.running[successor] = caller
            successor.add_done_callback(self._remove)

    def gave_way(self, task: Task) -> bool:
        """Tells whether a call was cancelled because it had sent nothing and others wanted its place."""
        return task in self._gave_way

    def _make_room(self) -> bool:
        for task, since in self.silent.items():
            if time.monotonic() - since < self._patience:
                return False
            del self.silent[task]
            self._remove(task)
            self._gave_way.add(task)
            task.add_done_callback(self._gave_way.discard)
            task.cancel()
            return True
        return False

    def _remove(self, task: Task) -> None:
        caller = self.running.pop(task, None)
        if caller is not None:
            self._shares.give_back(caller)
