"""Sequences and structs in JAX functions: compiled loops over elements, and containers that `jax.grad` accepts."""

import dataclasses
import random
from typing import Any, NamedTuple

import attrs
import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.leaf_runtimes import load_leaf
from fedstack.computations.leaves.xla.argument_memory import argument_memory
from fedstack.computations.values.columns import ConstantColumn, ListColumn, ScalarColumn, StructColumn
from fedstack.errors import InvalidComputationError, InvalidValueError, LeafError
from tests.computations.leaves.xla.test_drawn_functions import bits, drawn

FLOAT = np.float32
MODEL = {"w": (FLOAT, [3]), "b": FLOAT}
BATCH = {"x": (FLOAT, [4, 3]), "y": (FLOAT, [4])}


def locally(computation, *arguments, **options):
    with fedstack.use_context(fedstack.create_sync_local_execution_context(**options)):
        return computation(*arguments)


def loss(model, batch):
    return jnp.mean((batch["x"] @ model["w"] + model["b"] - batch["y"]) ** 2)


@fedstack.jax_computation(MODEL, fl.SequenceType(BATCH))
def trained(model, batches):
    def step(model, batch):
        return jax.tree.map(lambda one, change: one - 0.1 * change, model, jax.grad(loss)(model, batch))

    return {"model": batches.scan(step, model), "batches": batches.length}


def client(rows: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3)).astype(FLOAT)
    return {"x": x, "y": x @ np.array([1, -2, 3], FLOAT) + 1}


def expected(model, batches):
    for batch in batches:
        error = batch["x"] @ model["w"] + model["b"] - batch["y"]
        change = {"w": 2 * batch["x"].T @ error / len(error), "b": 2 * error.mean()}
        model = {name: model[name] - FLOAT(0.1) * change[name] for name in model}
    return model


ZERO = {"w": np.zeros(3, FLOAT), "b": np.float32(0)}


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 20])
def test_a_loop_has_as_many_steps_as_there_are_elements(length: int) -> None:
    data = client(4 * length + 3, length)  # three rows are left over
    batches = fedstack.batches(data, 4, drop_remainder=True)
    found = locally(trained, ZERO, batches)
    assert found["batches"] == length
    wanted = expected(ZERO, list(batches))
    for name in ZERO:
        assert np.allclose(found["model"][name], wanted[name], rtol=1e-4, atol=1e-5)
    again = locally(trained, ZERO, list(batches))
    assert all(np.array_equal(found["model"][name], again["model"][name]) for name in ZERO)


def test_clients_of_all_lengths_take_few_compilations() -> None:
    as_float = fedstack.jax_computation(np.int32)(lambda n: n.astype(FLOAT))

    @fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(fl.SequenceType(BATCH), fl.CLIENTS))
    def average(model, clients):
        found = fl.federated_map(trained, (fl.federated_broadcast(model), clients))
        return fl.federated_mean(found.model, weight=fl.federated_map(as_float, found.batches))

    clients = [fedstack.batches(client(4 * (rows % 20), rows), 4, drop_remainder=True) for rows in range(60)]
    model = ZERO
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        for _ in range(30):
            model = average(model, clients)
    assert np.allclose(model["w"], [1, -2, 3], atol=1e-2)


def test_elements_may_be_read_as_stacked_arrays() -> None:
    @fedstack.jax_computation(fl.SequenceType((FLOAT, [2])))
    def total(rows):
        inside = jnp.arange(rows.elements.shape[0]) < rows.length
        return {"sum": jnp.where(inside[:, None], rows.elements, 0).sum(0), "padded": rows.elements.shape[0] + 0}

    found = locally(total, [np.array([1, 2], FLOAT)] * 5)
    assert found["sum"].tolist() == [5, 10]
    assert found["padded"] == 8
    assert locally(total, [])["sum"].tolist() == [0, 0]


def test_several_sequences_have_lengths_of_their_own() -> None:
    @fedstack.jax_computation({"a": fl.SequenceType(FLOAT), "b": fl.SequenceType({"c": np.int32})}, (FLOAT, [None]))
    def sums(both, rows):
        first = both.a.scan(lambda total, x: total + x, 0.0)
        second = both["b"].scan(lambda total, x: total + x["c"], jnp.int32(0))
        return first, second, rows.sum()

    found = locally(sums, {"a": [1.0, 2.0, 3.0], "b": [{"c": 4}]}, np.ones(6, FLOAT))
    assert found == (np.float32(6), np.int32(4), np.float32(6))


class Pair(NamedTuple):
    first: Any
    second: Any


@attrs.frozen
class Point:
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Line:
    slope: Any
    start: Any


@pytest.mark.parametrize(
    "model",
    [
        {"a": FLOAT, "b": FLOAT},
        Pair(FLOAT, FLOAT),
        Point(FLOAT, FLOAT),
        fl.StructType([("a", FLOAT), ("b", FLOAT)]),
        fl.StructType([FLOAT, FLOAT]),
        [FLOAT, (FLOAT, {"c": FLOAT})],
    ],
    ids=["dict", "named tuple", "attrs", "record", "without names", "nested"],
)
def test_all_containers_are_trees_of_jax(model) -> None:
    @fedstack.jax_computation(model)
    def gradient(model):
        return jax.grad(lambda model: sum(leaf**2 for leaf in jax.tree.leaves(model)))(model)

    leaves = gradient.type_signature.result
    assert leaves.is_equivalent_to(gradient.type_signature.parameter)


def test_a_data_class_is_a_tree_of_jax() -> None:
    @fedstack.jax_computation({"line": fl.StructWithPythonType([("slope", FLOAT), ("start", FLOAT)], Line)})
    def gradient(models):
        assert isinstance(models["line"], Line)
        changed = jax.grad(lambda line: line.slope**2 + 3 * line.start)(models["line"])
        return changed.slope, changed.start

    assert locally(gradient, {"line": {"slope": np.float32(2), "start": np.float32(0)}}) == (4.0, 3.0)


def test_what_cannot_be_compiled_is_refused() -> None:
    def refused(*types, function=lambda x: 0.0, **options) -> str:
        with pytest.raises((InvalidComputationError, LeafError)) as caught:
            fedstack.jax_computation(*types, **options)(function)
        return str(caught.value)

    found = refused(fl.SequenceType({"x": (FLOAT, [None, 3])}))
    assert (
        "found float32[?,3] at [0].x; declare the size of a batch, and pass fedstack.batches(data, size, drop" in found
    )
    assert "return an array with a leading axis" in refused(FLOAT, result_type=fl.SequenceType(FLOAT))
    assert "found strings at [0]" in refused(fl.SequenceType(np.str_))
    found = refused(fl.SequenceType(FLOAT), function=lambda x: x.scan(lambda state, one: (state, one), 0.0))
    assert "raised TypeError" in found


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
def test_a_client_has_the_same_bits_alone_and_beside_clients_of_other_lengths(seed: int) -> None:
    step = drawn(random.Random(seed))

    @fedstack.jax_computation((FLOAT, [6]), fl.SequenceType((FLOAT, [6, 6])), fl.SequenceType(np.int32), FLOAT)
    def scanned(vector, matrices, numbers, rate):
        total = numbers.scan(lambda total, number: total + number, jnp.int32(0))
        found = matrices.scan(lambda x, matrix: jnp.clip(rate * step(x, matrix)["vector"], -9, 9), vector)
        return {"vector": found, "total": total, "padded": matrices.elements.sum()}

    leaf = load_leaf(scanned.to_proto())
    values = np.random.default_rng(seed)
    vector = values.normal(size=6).astype(FLOAT)
    lengths = [3, 1, 4, 3, 0, *([1] * 20)]
    clients = [list(values.normal(size=(length, 6, 6)).astype(FLOAT)) for length in lengths]
    numbers = [[np.int32(1)] * (length % 3) for length in lengths]
    rates = ScalarColumn(values.normal(size=len(lengths)).astype(FLOAT))
    size = len(lengths)
    found = []
    for vectors in (ConstantColumn(vector, size), ListColumn([vector] * size)):
        argument = StructColumn((vectors, ListColumn(clients), ListColumn(numbers), rates), size)
        found.append(bits(leaf.call_column(argument, 5, size)))
    alone = [bits(leaf.call_column(argument.slice(i, i + 1), 5 + i, 1))[0] for i in range(6)]
    called = [leaf.call((vector, clients[i], numbers[i], rates.values[i]), 5 + i) for i in range(6)]
    assert found[0] == found[1]
    assert found[0][:6] == alone == [b"".join(np.asarray(one).tobytes() for one in each) for each in called]
    at_server = leaf.call((vector, clients[3], numbers[3], rates.values[3]))
    for one, other in zip(called[3], at_server):
        assert np.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
    assert leaf.call_column(argument.slice(0, 0), 5, 0).items() == []


def test_a_stream_that_fails_names_its_client() -> None:
    @fedstack.jax_computation(fl.SequenceType(FLOAT))
    def total(values):
        return values.scan(lambda total, x: total + x, 0.0)

    def fail():
        yield 1.0
        raise OSError("the disk is gone")

    @fl.federated_computation(fl.FederatedType(fl.SequenceType(FLOAT), fl.CLIENTS))
    def totals(clients):
        return fl.federated_map(total, clients)

    assert locally(totals, [[1.0] * n for n in range(5)]) == list(range(5))
    with pytest.raises(InvalidValueError, match=r"raised OSError: the disk is gone; at arg\[client 2\]"):
        locally(totals, [[1.0], [2.0], fedstack.from_generator(fail), [3.0]])


def test_the_memory_for_arguments_of_one_large_client_is_given_back() -> None:
    total = fedstack.jax_computation(fl.SequenceType((FLOAT, [1 << 20])))(lambda rows: jnp.sum(rows.elements))
    (found,) = load_leaf(total.to_proto()).call_column(ListColumn([[np.ones(1 << 20, FLOAT)] * 16]), 0, 1).items()
    assert found == 1 << 24
    small, large = (argument_memory.arrays([((size,), np.dtype(np.int8))])[0] for size in (100, 1 << 26))
    large[:] = 1
    assert np.shares_memory(small, argument_memory.arrays([((100,), np.dtype(np.int8))])[0])
    assert len(argument_memory._memory) <= 32 << 20
