"""Finds which readers of a program's results are the only ones to read what they read.

A fold may write into an array that a leaf function returned if the fold is the only one that will ever look at it. In
the program, no other result may read what the fold reads, and a step must have made it (`read_by_one`). In the process,
nothing else may refer to the array (`take_buffer` in `values/ownership.py`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from fedstack.computations.plan.program import Expression, Join, Pick, Program, Slot

Path = tuple[int, ...]


def read_by_one(program: Program, readers: Sequence[Sequence[int]]) -> list[bool]:
    """Tells for each reader whether it alone reads what it reads, and whether steps of the program have made that.

    Args:
      program: The program.
      readers: For each reader the positions of the results that it reads.
    """
    made = {step.target for step in program.steps}
    paths = [[path for i in positions for path in _paths(program.results[i])] for positions in readers]
    reads = Counter(path for reader in paths for path in reader)
    # A path that ends above another one reads that one, too.
    beneath = {path[:length] for path in reads for length in range(1, len(path))}

    def alone(path: Path) -> bool:
        shorter = (path[:length] for length in range(1, len(path)))
        return path[0] in made and reads[path] == 1 and path not in beneath and not any(p in reads for p in shorter)

    return [all(map(alone, reader)) for reader in paths]


def _paths(expression: Expression) -> Iterator[Path]:
    """Yields the slots that an expression reads, each followed by the positions of the member that it picks."""
    picks: list[int] = []
    while not isinstance(expression, Join) or picks:
        if isinstance(expression, Slot):
            yield (expression.index, *reversed(picks))
            return
        if isinstance(expression, Pick):
            picks.append(expression.position)
            expression = expression.source
        else:
            expression = expression.parts[picks.pop()]
    for part in expression.parts:
        yield from _paths(part)
