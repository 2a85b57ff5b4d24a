"""JAX functions that follow each other run as one compiled function, and have the bits that they have one by one."""

import random

import attrs
import federated_language as fl
import jax
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.bound_operation import BoundOperation, stopped_by
from fedstack.computations.leaves.compilations import compilations
from fedstack.computations.leaves.leaf_runtimes import load_leaf
from fedstack.computations.leaves.xla import program_chain
from fedstack.computations.leaves.xla.program_chain import ProgramChain
from fedstack.computations.plan.fusing import fused
from fedstack.computations.plan.interpreter import run_columns, run_once
from fedstack.computations.plan.program import Join, Pick, Program, ProgramStep, Slot
from fedstack.computations.values.columns import ConstantColumn, ListColumn
from fedstack.errors import LeafError
from tests.computations.leaves.xla.test_drawn_functions import FLOAT, drawn


def loaded(function, types) -> BoundOperation:
    return load_leaf(fedstack.jax_computation(*types)(function).to_proto())


def for_each_row(function):
    return lambda x, matrix: jax.lax.map(lambda row: function(row, matrix), x)


def drawn_program(seed: int, size: int) -> Program:
    """Returns a program of a vector and a matrix, whose steps read what earlier steps returned."""
    draw = random.Random(seed)
    types = ((FLOAT, [6]) if size == 1 else (FLOAT, [size, 6])), (FLOAT, [6, 6])
    vectors: list = [Slot(0)]
    numbers: list = []
    steps = []
    for target in range(2, 2 + draw.randint(2, 5)):
        one = drawn(draw)
        operation = loaded(one if size == 1 else for_each_row(one), types)
        steps.append(ProgramStep(operation, Join((draw.choice(vectors), Slot(1))), target))
        number, vector = (0, 1) if operation.result[0].shape in ((), (size,)) else (1, 0)
        vectors.append(Pick(Slot(target), vector))
        numbers.append(Pick(Slot(target), number))
    results = (Slot(steps[-1].target), draw.choice(numbers), Join((draw.choice(vectors), draw.choice(numbers))))
    return Program((0, 1), (), tuple(steps), results, 2 + len(steps))


def bits(payload) -> bytes:
    if isinstance(payload, tuple):
        return b"".join(map(bits, payload))
    return np.asarray(payload).tobytes()


def check(program: Program, seed: int, size: int, clients: int) -> None:
    one = fused(program)
    assert len(one.steps) == 1
    values = np.random.default_rng(seed)
    shape = [6] if size == 1 else [size, 6]
    vectors = [values.normal(size=shape).astype(FLOAT) for _ in range(clients)]
    matrix = values.normal(size=(6, 6)).astype(FLOAT)
    for matrices in (ConstantColumn(matrix, clients), ListColumn([matrix] * clients)):
        inputs = [ListColumn(vectors), matrices]
        expected, found = [run_columns(each, inputs, 5, clients) for each in (program, one)]
        for before, after in zip(expected, found):
            assert [bits(item) for item in before.items()] == [bits(item) for item in after.items()], seed
    expected, found = [run_once(each, (vectors[0], matrix)) for each in (program, one)]
    assert bits(expected) == bits(found), seed


@pytest.mark.parametrize("seed", range(4))
def test_drawn_functions_have_the_same_bits_fused_and_one_by_one(seed: int) -> None:
    check(drawn_program(seed, 1), seed, 1, 7)
    check(drawn_program(seed, 3000), seed, 3000, 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(4, 32), *(pytest.param(n, marks=pytest.mark.soak) for n in range(32, 100))])
def test_many_drawn_functions_have_the_same_bits_fused_and_one_by_one(seed: int) -> None:
    size = 1 if seed % 2 else 3000
    check(drawn_program(seed, size), seed, size, 5)


def check_joined(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks a chain that is compiled as one, as are long chains of short functions of which all results are used."""
    monkeypatch.setattr(program_chain, "_LEAST_JOINED", 2)
    program = drawn_program(seed, 1)
    for step in program.steps:
        step.operation.program.is_short = step.operation.group.is_short = True
    joined: list[ProgramChain] = []
    in_branches = ProgramChain._in_branches

    def noting(self, *arguments):
        joined.append(self)
        return in_branches(self, *arguments)

    monkeypatch.setattr(ProgramChain, "_in_branches", noting)
    check(attrs.evolve(program, results=tuple(Slot(step.target) for step in program.steps)), seed, 1, 7)
    assert joined  # for one client, and for a group if all have the same lanes


@pytest.mark.parametrize("seed", range(4))
def test_drawn_functions_have_the_same_bits_compiled_as_one_and_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_joined(seed, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(4, 32), *(pytest.param(n, marks=pytest.mark.soak) for n in range(32, 200))])
def test_many_drawn_functions_have_the_same_bits_compiled_as_one_and_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_joined(seed, monkeypatch)


def gradients(x):
    """Returns what takes long to compile."""
    return jax.lax.scan(lambda x, _: (x - jax.grad(lambda x: jax.numpy.sin(x) ** 3)(x), None), x, None, length=3)[0]


@pytest.mark.parametrize(
    ("length", "inner", "expected"), [(100, jax.numpy.sin, 1), (3, jax.numpy.sin, 3), (20, gradients, 20)]
)
def test_a_long_chain_of_short_functions_is_compiled_once(length: int, inner, expected: int) -> None:
    def step_of(number: int):
        return fedstack.jax_computation(FLOAT)(lambda x: inner(x) * number + 1)

    steps = [step_of(number) for number in range(length)]

    @fl.federated_computation(FLOAT)
    def chain(x):
        for step in steps:
            x = step(x)
        return x

    with fedstack.create_sync_local_execution_context():
        before = compilations.count
        x = 0.5
        found = chain(x)
        assert compilations.count - before == expected
        assert chain(x).tobytes() == found.tobytes()
        assert compilations.count - before == expected
        for step in steps:
            x = step(x)
    assert x.tobytes() == found.tobytes()


def test_a_chain_whose_caller_is_cancelled_runs_no_further_function() -> None:
    program = fused(drawn_program(0, 1))
    stops = [True]
    (step,) = program.steps
    with stopped_by(stops), pytest.raises(LeafError, match="CancelledError"):
        step.operation.call((np.zeros(6, FLOAT), np.zeros((6, 6), FLOAT)))
    step.operation.call((np.zeros(6, FLOAT), np.zeros((6, 6), FLOAT)))
