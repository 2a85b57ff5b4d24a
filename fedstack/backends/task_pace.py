"""Decides how many clients a task has, for engines whose tasks have a single answer.

A task costs some time of its own, so tasks are made from the measured time of clients: each takes at least fifty times
as long as it costs. The first tasks of a function, which has not been measured, are small, so that little is lost with
a worker.
"""

import math

import attrs

from fedstack.computations.plan.program import Program
from fedstack.executors.base.hand_ins import SECONDS_PER_BYTE
from fedstack.foundations.caches import made_once

_TIMES_ITS_COST = 50
# A task has this many times as many clients as a worker runs at the same time, so that its last clients run together.
_TIMES_AT_ONCE = 4
# The number of clients of a task whose clients have not been measured.
_FIRST = 8


@attrs.define(eq=False)
class TaskPace:
    """The measured speed of a program in tasks, of which the last measurement counts.

    Attributes:
      seconds: The time of a task divided by its number of clients, in seconds; `None` before the first measurement.
      at_once: The number of clients that a worker has run at the same time.
      result_bytes: The size of the result of a task, in bytes.
    """

    seconds: float | None = None
    at_once: int = 1
    result_bytes: int = 0

    def note(self, clients: int, seconds: float, at_once: int) -> None:
        """Records how long a task has run."""
        if clients:
            self.seconds, self.at_once = max(seconds / clients, 1e-9), max(1, at_once)

    def clients_per_task(self, left: int, cost: float) -> int:
        """Returns the number of clients of the next task.

        Args:
          left: The number of clients that are left.
          cost: The time that a task costs in addition to the time to send its result, in seconds.
        """
        if self.seconds is None:
            return left if left < 2 * _FIRST else _FIRST
        cost += self.result_bytes * SECONDS_PER_BYTE
        least = max(math.ceil(_TIMES_ITS_COST * cost / self.seconds), _TIMES_AT_ONCE * self.at_once)
        return left if left < 2 * least else least


@made_once
def task_pace_of(program: Program) -> TaskPace:
    """Returns the pace of a program, which all phases that run the program share."""
    return TaskPace()
