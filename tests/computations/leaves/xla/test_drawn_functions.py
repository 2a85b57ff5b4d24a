"""Drawn JAX functions: a client has the same bits in a group, alone and beside others, and the result that JAX has."""

import random
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.leaf_runtimes import load_leaf
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.columns import ConstantColumn, ListColumn, StructColumn

FLOAT = np.float32
CONSTANT = np.random.default_rng(7).normal(size=(6, 6)).astype(FLOAT)


def drawn(draw: random.Random) -> Callable:
    """Returns a function of a vector and a matrix, which returns a vector and a number."""
    unary = [jnp.tanh, jnp.exp, jnp.sin, jax.nn.relu, jnp.cumsum, jnp.sort, lambda x: x / 3, lambda x: -x, jnp.flip]
    unary += [lambda x: x - x.mean(), lambda x: jnp.where(x > 0, x, x / 7), lambda x: jnp.roll(x, 1) * 0.5]
    unary += [lambda x: x.at[jnp.array([1, 3])].add(0.3), lambda x: jax.nn.softmax(x), lambda x: x @ CONSTANT]
    unary += [lambda x: jax.lax.scan(lambda c, r: (c * 0.9 + r, c), 0.0, x)[1], lambda x: jnp.clip(x, -1, 1)]
    binary = [jnp.add, jnp.multiply, jnp.subtract, lambda x, m: x @ m, lambda x, m: (m * x).sum(0)]
    binary += [lambda x, m: jnp.linalg.norm(m, axis=1) + x, lambda x, m: m[jnp.argmax(x)] * 0.1]
    steps = [(draw.choice(unary), draw.choice(binary)) for _ in range(draw.randint(1, 4))]
    reduce = draw.choice([jnp.sum, jnp.max, jnp.mean, lambda x: (x**2).sum(), lambda x: x[0], jnp.linalg.norm])
    differentiates = draw.random() < 0.3

    def forward(x, matrix):
        for one, two in steps:
            found = two(one(x), matrix)
            x = found if found.ndim == 1 else found.mean(0)
        return x

    def function(x, matrix):
        if differentiates:
            value, gradient = jax.value_and_grad(lambda x: reduce(forward(x, matrix)))(x)
            return {"vector": gradient, "number": value}
        found = forward(x, matrix)
        return {"vector": found, "number": reduce(found)}

    return function


def bits(column) -> list[bytes]:
    return [b"".join(np.asarray(leaf).tobytes() for leaf in item) for item in column.items()]


def check(seed: int, size: int, clients: int) -> BoundOperation:
    function = drawn(random.Random(seed))
    types = (FLOAT, [6]), (FLOAT, [6, 6])
    if size > 1:  # so costly that it is not vectorized
        types = (FLOAT, [size, 6]), (FLOAT, [6, 6])
        one = function
        function = lambda x, matrix: jax.lax.map(lambda row: one(row, matrix), x)  # noqa: E731
    computation = fedstack.jax_computation(*types)(function)
    leaf = load_leaf(computation.to_proto())
    values = np.random.default_rng(seed)
    vectors = [values.normal(size=types[0][1]).astype(FLOAT) for _ in range(clients)]
    matrix = values.normal(size=(6, 6)).astype(FLOAT)
    for shared in (True, False):
        matrices = ConstantColumn(matrix, clients) if shared else ListColumn([matrix] * clients)
        argument = StructColumn((ListColumn(vectors), matrices), clients)
        together = bits(leaf.call_column(argument, 5, clients))
        alone = [bits(leaf.call_column(argument.slice(i, i + 1), 5 + i, 1))[0] for i in range(clients)]
        assert together == alone, seed
        called = [leaf.call((vectors[i], matrix), 5 + i) for i in range(clients)]
        assert [b"".join(np.asarray(leaf).tobytes() for leaf in one) for one in called] == alone, seed
    names = [name for name, _ in fields_of(computation.type_signature.result)]  # JAX sorts the keys of dictionaries
    compiled = jax.jit(function)
    for vector, result in zip(vectors, called):
        expected = compiled(vector, matrix)
        for name, found in zip(names, result):
            assert np.allclose(found, expected[name], rtol=1e-3, atol=1e-4, equal_nan=True), (seed, name)
    return leaf


@pytest.mark.parametrize("seed", range(10))
def test_a_drawn_function_has_the_same_bits_in_a_group_and_alone(seed: int) -> None:
    assert check(seed, 1, 7).lanes > 1
    assert check(seed, 3000, 3).lanes == 1


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(10, 70), *(pytest.param(n, marks=pytest.mark.soak) for n in range(70, 200))])
def test_many_drawn_functions_have_the_same_bits_in_a_group_and_alone(seed: int) -> None:
    check(seed, 1 if seed % 2 else 3000, 5)
