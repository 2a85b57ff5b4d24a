"""Steps of one runtime that read each other's results are one step, and the results are the same."""

from collections.abc import Sequence

import federated_language as fl
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedstack.computations.plan.fusing import fused
from fedstack.computations.plan.interpreter import run_columns, run_once
from fedstack.computations.plan.program import Join, Pick, Program, ProgramStep, Slot
from fedstack.computations.types.type_structure import flatten, struct_of, unflatten
from fedstack.computations.values.columns import ScalarColumn
from fedstack.leaves import FusedStep, FusedTensor, Fuser, Leaf

INT = fl.TensorType(np.int64)
# A leaf takes and returns a struct with a struct inside.
PAIR = struct_of([("a", INT), ("rest", struct_of([("b", INT), ("c", INT)]))])


class Mixing(Leaf):
    """Returns other numbers for other arguments."""

    def __init__(self, number: int, fuser: Fuser | None) -> None:
        super().__init__(f"mixing_{number}", PAIR, PAIR)
        self.number = number
        self.fuser = fuser

    def evaluate(self, argument):
        a, (b, c) = argument
        return (a + self.number * b) % 97, ((b * c + self.number) % 89, (a + b + c) % 83)


class Together(Fuser):
    def __init__(self) -> None:
        self.numbers: list[list[int]] = []

    def fuse(self, inputs: Sequence, steps: Sequence[FusedStep], results: Sequence[FusedTensor]) -> Leaf:
        self.numbers.append([step.operation.number for step in steps])

        class Fused(Leaf):
            def evaluate(self, argument):
                found: list[list] = []
                for step in steps:
                    given = [
                        argument[t.position] if t.step is None else found[t.step][t.position] for t in step.argument
                    ]
                    found.append(flatten(step.operation.call(unflatten(iter(given), PAIR)), PAIR))
                return [found[one.step][one.position] for one in results]

        return Fused("fused", struct_of([(None, t) for t in inputs]), struct_of([(None, INT) for _ in results]))


@st.composite
def programs(draw) -> Program:
    """Draws a program of steps with one fuser, another one and none, which read anything that is there."""
    fusers = [None, Together(), Together()]
    tensors: list = [Slot(0), Slot(1)]
    rests: list = [Join((Slot(0), Slot(1)))]
    steps = []
    count = draw(st.integers(1, 8))
    for target in range(2, 2 + count):
        pick = lambda choices: draw(st.sampled_from(choices))  # noqa: E731
        argument = Join((pick(tensors), pick(rests)))
        if steps and draw(st.booleans()):
            argument = Slot(pick(steps).target)
        steps.append(ProgramStep(Mixing(target, pick(fusers)), argument, target))
        rest = Pick(Slot(target), 1)
        rests.append(rest)
        tensors += [Pick(Slot(target), 0), Pick(rest, 0), Pick(rest, 1)]
    results = [draw(st.sampled_from([*tensors, *rests, Slot(1 + count)])) for _ in range(draw(st.integers(1, 3)))]
    return Program((0, 1), (), tuple(steps), tuple(results), 2 + count)


@given(programs(), st.integers(0, 50), st.integers(0, 50))
def test_a_program_returns_the_same_fused_and_step_by_step(program: Program, x: int, y: int) -> None:
    one = fused(program)
    assert len(one.steps) <= len(program.steps)
    assert run_once(one, (np.int64(x), np.int64(y))) == run_once(program, (np.int64(x), np.int64(y)))
    inputs = [ScalarColumn(np.arange(x, x + 5)), ScalarColumn(np.arange(y, y + 5))]
    found, expected = [[list(c.items()) for c in run_columns(each, inputs, 3, 5)] for each in (one, program)]
    assert found == expected


def chain(*fusers: Fuser | None) -> Program:
    steps = [ProgramStep(Mixing(i, fuser), Slot(i), i + 1) for i, fuser in enumerate(fusers)]
    return Program((0,), (), tuple(steps), (Slot(len(fusers)),), len(fusers) + 1)


def test_steps_that_follow_each_other_are_one_step() -> None:
    together = Together()
    assert [step.operation.name for step in fused(chain(*[together] * 3)).steps] == ["fused"]
    assert together.numbers == [[0, 1, 2]]


def test_a_step_of_another_runtime_parts_those_before_and_after_it_if_it_reads_them() -> None:
    together = Together()
    names = [step.operation.name for step in fused(chain(together, together, None, together)).steps]
    assert names == ["fused", "mixing_2", "mixing_3"]


def test_a_step_of_another_runtime_that_reads_none_of_them_runs_before() -> None:
    together = Together()
    steps = [
        ProgramStep(Mixing(0, together), Slot(0), 1),
        ProgramStep(Mixing(1, None), Slot(0), 2),
        ProgramStep(Mixing(2, together), Join((Pick(Slot(2), 0), Pick(Slot(1), 1))), 3),
    ]
    found = fused(Program((0,), (), tuple(steps), (Slot(3),), 4))
    assert [step.operation.name for step in found.steps] == ["mixing_1", "fused"]


def test_a_program_without_neighbours_stays_as_it_is() -> None:
    for program in (chain(None, None), chain(Together()), chain(Together(), Together())):
        assert fused(program) is program
