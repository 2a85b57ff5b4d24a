"""Finds out who else can see a value: in a program, and in the process.

A fold may write into an array that a leaf function returned if the fold is the only one that will ever look at it.
That takes two things. In the program, no other result reads what the fold reads, and a step has made it
(`read_by_one`). In the process, nobody refers to the array: not the function's module, no view, no weak reference
(`take_buffer`). CPython counts references exactly as long as it has its global lock; elsewhere nothing is ever taken.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from fedstack.computations.plan.program import Expression, Join, Pick, Program, Slot

# Below this a fresh buffer is cheaper than to find out whether there is one to take.
_WORTH_TAKING = 16 * 1024
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


def _references_of_one_owner() -> tuple[int, int]:
    """Counts the references to a payload that only a list has, and to the array under it, which only that has."""
    if not hasattr(sys, "getrefcount") or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return (0, 0)
    payloads = [np.empty(1).view()]
    base = cast(np.ndarray, payloads[0].base)
    return sys.getrefcount(payloads[0]), sys.getrefcount(base)


_PAYLOAD_OF_ONE, _BASE_OF_ONE = _references_of_one_owner()


def take_buffer(payloads: list[object], index: int) -> np.ndarray | None:
    """Takes the array that a leaf function returned out of a list of payloads, if nobody else can refer to it.

    Args:
      payloads: A list that nobody else reads any more. Where the array is taken, `None` stays behind.
      index: Which of them.

    Returns:
      The array, to be written into and kept; `None` if anybody might notice.
    """
    payload = payloads[index]
    if type(payload) is not np.ndarray or payload.nbytes < _WORTH_TAKING or payload.flags.writeable:
        return None
    base: object = payload.base
    if type(base) is not np.ndarray or base.shape != payload.shape or base.strides != payload.strides:
        return None
    # Memory of another object (a file, bytes, a tensor) may be seen through that one.
    if base.base is not None or base.dtype is not payload.dtype:
        return None
    flags = base.flags
    if not flags.owndata or not flags.writeable:
        return None
    if weakref.getweakrefcount(base) or weakref.getweakrefcount(payload):
        return None
    del payload, flags  # which refer to them, too
    if sys.getrefcount(payloads[index]) != _PAYLOAD_OF_ONE or sys.getrefcount(base) != _BASE_OF_ONE:
        return None
    payloads[index] = None
    return base
