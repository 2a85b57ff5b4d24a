"""Joins server tasks that follow each other into one task, because a task costs more than a step of a program."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fedstack.computations.plan.program import Expression, Join, Program, ProgramStep, Slot, replaced
from fedstack.computations.plan.tasks import ServerTask, Task, slots_read


def joined(tasks: Sequence[Task], result: Expression, constants: frozenset[int]) -> list[Task]:
    """Returns the tasks of a schedule, in which chains of server tasks are one task each.

    A task joins the one before it if nothing else reads the result of that one, and it could not run earlier than it:
    all else that it reads is there when the chain begins.

    Args:
      tasks: The tasks, in an order in which they can run.
      result: The expression for the result of the schedule.
      constants: The slots of literals.
    """
    readers = Counter(slot for task in tasks for slot in task.reads)
    readers.update(slots_read([result]))
    found: list[Task] = []
    chain: list[ServerTask] = []
    there: set[int] = set()
    for task in tasks:
        if isinstance(task, ServerTask):
            last = chain[-1].target if chain else None
            if last is not None and last in task.reads and readers[last] == 1 and task.reads <= there | {last}:
                chain.append(task)
                continue
            found += _as_one(chain)
            chain, there = [task], {0, *constants, *task.reads}
        else:
            found += _as_one(chain)
            chain = []
            found.append(task)
    return found + _as_one(chain)


def _as_one(chain: Sequence[ServerTask]) -> list[Task]:
    return list(chain) if len(chain) < 2 else [_Join(chain).task()]


class _Join:
    """The program of a chain, step by step."""

    def __init__(self, chain: Sequence[ServerTask]) -> None:
        self._chain = chain
        self._slots = 0
        self._inputs: dict[Expression, Slot] = {}
        self._made: dict[int, Expression] = {}

    def task(self) -> ServerTask:
        steps: list[ProgramStep] = []
        constants: list[tuple[int, object]] = []
        for task in self._chain:
            program = task.program
            own = {slot: self._read(expression) for slot, expression in zip(program.inputs, task.inputs)}
            first = self._slots
            self._slots += program.slots

            def moved(slot: int, own: Mapping[int, Expression] = own, first: int = first) -> Expression:
                return own.get(slot) or Slot(first + slot)

            for step in program.steps:
                argument = None if step.argument is None else replaced(step.argument, moved)
                steps.append(ProgramStep(step.operation, argument, first + step.target))
            constants += [(first + slot, payload) for slot, payload in program.constants]
            self._made[task.target] = replaced(program.results[0], moved)
        last = self._chain[-1].target
        inputs = tuple(slot.index for slot in self._inputs.values())
        program = Program(inputs, tuple(constants), tuple(steps), (self._made[last],), self._slots)
        return ServerTask(program, tuple(self._inputs), last, slots_read(list(self._inputs)))

    def _read(self, expression: Expression) -> Expression:
        """Returns the expression in the program for one of the schedule."""
        if isinstance(expression, Join):
            return Join(tuple(map(self._read, expression.parts)))
        if not self._made.keys().isdisjoint(slots_read([expression])):
            return replaced(expression, self._made.get)
        if expression not in self._inputs:
            self._inputs[expression] = Slot(self._slots)
            self._slots += 1
        return self._inputs[expression]
