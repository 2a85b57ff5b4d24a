"""JAX functions over the elements of sequences: many elements in one call, with the bits that they have one by one."""

import random
from collections.abc import Iterator

import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.bound_operation import BoundOperation, FoldSource, FoldStep, FoldTensor
from fedstack.computations.leaves.compilations import compilations
from fedstack.computations.leaves.leaf_runtimes import load_leaf
from fedstack.computations.leaves.xla.xla_program import ArrayProgram
from fedstack.computations.types.language import TensorType
from fedstack.computations.values.columns import ConstantColumn, ListColumn, StructColumn
from fedstack.computations.values.element_columns import element_columns
from fedstack.errors import InvalidValueError
from tests.computations.leaves.xla.test_drawn_functions import FLOAT, drawn

FLOATS = fl.SequenceType(FLOAT)
MATRIX = TensorType(FLOAT, [6, 6])


@pytest.fixture(autouse=True)
def locally() -> Iterator[None]:
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        yield


def drawn_leaf(seed: int, size: int) -> BoundOperation:
    """Returns a function of a vector and a matrix, which returns a vector, and is costly if the size is large."""
    one = drawn(random.Random(seed))

    def step(x, matrix):
        if size == 1:
            return jnp.clip(one(x, matrix)["vector"], -9, 9)
        return jnp.clip(jax.lax.map(lambda row: one(row, matrix)["vector"], x), -9, 9)

    shape = [6] if size == 1 else [size, 6]
    return load_leaf(fedstack.jax_computation((FLOAT, shape), (FLOAT, [6, 6]))(step).to_proto())


def check_map(seed: int, size: int, count: int) -> None:
    leaf = drawn_leaf(seed, size)
    values = np.random.default_rng(seed)
    shape = [6] if size == 1 else [size, 6]
    pairs = [(values.normal(size=shape).astype(FLOAT), values.normal(size=(6, 6)).astype(FLOAT)) for _ in range(count)]
    column = StructColumn(tuple([ListColumn(list(part)) for part in zip(*pairs)]), count)
    expected = [leaf.call(pair, index).tobytes() for index, pair in enumerate(pairs)]
    assert [one.tobytes() for one in leaf.call_elements(column, 0, 3).items()] == expected
    for first in (1, count - 1):
        assert [one.tobytes() for one in leaf.call_elements(column.slice(first, count), first, None).items()] == (
            expected[first:]
        )


def check_fold(seed: int, size: int, count: int) -> None:
    leaf = drawn_leaf(seed, size)
    values = np.random.default_rng(seed)
    shape = [6] if size == 1 else [size, 6]
    state = values.normal(size=shape).astype(FLOAT)
    matrices = list(values.normal(size=(count, 6, 6)).astype(FLOAT))
    argument = FoldTensor(FoldSource.STATE, 0), FoldTensor(FoldSource.ELEMENT, 0)
    fold = leaf.element_fold(FoldStep(TensorType(FLOAT, shape), MATRIX, argument, (FoldTensor(FoldSource.RESULT, 0),)))
    assert fold is not None
    together = np.asarray(fold([state], [], ListColumn(matrices), 0)[0])
    one_by_one = [state]
    for matrix in matrices:
        one_by_one = fold(one_by_one, [], ListColumn([matrix]), 0)
    assert together.tobytes() == np.asarray(one_by_one[0]).tobytes(), seed
    called = state
    for matrix in matrices:
        called = leaf.call((called, matrix), 0)
    if leaf.lanes == 1:
        assert together.tobytes() == called.tobytes(), seed
    else:
        assert np.allclose(together, called, rtol=1e-2, atol=1e-2, equal_nan=True), seed


@pytest.mark.parametrize("seed", [1])
def test_a_drawn_function_has_the_same_bits_for_many_elements_and_for_each(seed: int) -> None:
    for check in (check_map, check_fold):
        check(seed, 1, 7)
        check(seed, 3000, 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *range(2, 22), *(pytest.param(n, marks=pytest.mark.soak) for n in range(22, 60))])
def test_many_drawn_functions_have_the_same_bits_for_many_elements_and_for_each(seed: int) -> None:
    for check in (check_map, check_fold):
        check(seed, 1 if seed % 2 else 3000, 5)


def check_rows(seed: int, sizes: list[int]) -> None:
    one = drawn(random.Random(seed))

    def mapped(x, matrix):
        rows = jax.lax.map(lambda row: jnp.clip(one(row, matrix)["vector"], -9, 9), x)
        return {"rows": rows, "sum": rows.sum(0)}

    def added(total, x):
        return jnp.clip(total + mapped(x, jnp.eye(6))["sum"], -9, 9)

    values = np.random.default_rng(seed)
    matrix = values.normal(size=(6, 6)).astype(FLOAT)
    arrays = [values.normal(size=(size, 6)).astype(FLOAT) for size in sizes]
    leaf = load_leaf(fedstack.jax_computation((FLOAT, [None, 6]), (FLOAT, [6, 6]))(mapped).to_proto())

    def found(some: list[np.ndarray]) -> list[tuple[bytes, bytes]]:
        columns = ListColumn(some), ConstantColumn(matrix, len(some))
        results = leaf.call_elements(StructColumn(columns, len(some)), 0, 3).items()
        assert [len(rows) for rows, _ in results] == [len(array) for array in some]
        return [(rows.tobytes(), total.tobytes()) for rows, total in results]

    assert found(arrays) == [alone for array in arrays for alone in found([array])], seed
    assert found(arrays[1:]) == found(arrays)[1:], seed
    leaf = load_leaf(fedstack.jax_computation((FLOAT, [6]), (FLOAT, [None, 6]))(added).to_proto())
    argument = FoldTensor(FoldSource.STATE, 0), FoldTensor(FoldSource.ELEMENT, 0)
    element = TensorType(FLOAT, [None, 6])
    step = FoldStep(TensorType(FLOAT, [6]), element, argument, (FoldTensor(FoldSource.RESULT, 0),))
    fold = leaf.element_fold(step)
    assert fold is not None
    together: object = fold([np.zeros(6, FLOAT)], [], ListColumn(arrays), 0)[0]
    state: object = np.zeros(6, FLOAT)
    for array in arrays:
        state = fold([state], [], ListColumn([array]), 0)[0]
    assert np.asarray(together).tobytes() == np.asarray(state).tobytes(), seed


def test_a_drawn_function_of_any_number_of_rows_has_the_same_bits_for_many_elements_and_for_each() -> None:
    check_rows(1, [5, 5, 5, 5, 2])
    check_rows(2, [3, 4, 4, 0, 4])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 13))
def test_many_functions_of_any_number_of_rows_have_the_same_bits_for_many_elements_and_for_each(seed: int) -> None:
    check_rows(seed, [8] * 20 + [7])


class Counted(ArrayProgram):
    """Counts the calls of another program."""

    def __init__(self, program: ArrayProgram) -> None:
        self.name, self.is_wide, self.can_loop = program.name, program.is_wide, program.can_loop
        self.program = program
        self.clients: list[int] = []

    def run_loop(self, lanes, shared, clients, arguments):
        self.clients.append(clients)
        return self.program.run_loop(lanes, shared, clients, arguments)

    def run(self, arguments):
        return self.program.run(arguments)

    def trace(self, arguments):
        return self.program.trace(arguments)


def test_a_short_batch_is_a_call_of_its_own_and_the_others_are_not() -> None:
    leaf = load_leaf(fedstack.jax_computation((FLOAT, [None]))(lambda rows: rows.sum()).to_proto())
    leaf.program = Counted(leaf.program)
    found: list[float] = []
    for column in element_columns(fedstack.batches(np.ones(99, FLOAT), 2), TensorType(FLOAT, [None]), 0, 16):
        found += leaf.call_elements(column, len(found), None).items()
    assert found == [2.0] * 49 + [1.0]
    assert leaf.program.clients == [16, 16, 16, 1, 1]


def test_elements_without_rows_are_what_the_function_says() -> None:
    most = fedstack.jax_computation((FLOAT, [None]))(lambda rows: jnp.max(rows))
    total = fedstack.jax_computation(FLOAT, (FLOAT, [None]))(lambda total, rows: total + rows.sum())
    some = fl.SequenceType((FLOAT, [None]))
    reduce = at_clients(lambda values: fl.sequence_reduce(values, np.float32(0), total), some)
    largest = at_clients(lambda values: fl.sequence_sum(fl.sequence_map(most, values)), some)
    two, none = np.ones(2, FLOAT), np.ones(0, FLOAT)
    assert reduce([[two, none, two], [none], []]) == [4.0, 0.0, 0.0]
    with pytest.raises(InvalidValueError, match="Expected at least one row in the arguments of .*, found none"):
        largest([[two, none]])


def test_the_arrays_of_an_element_have_as_many_rows_as_each_other() -> None:
    pair = {"x": (FLOAT, [None]), "y": (FLOAT, [None])}
    product = fedstack.jax_computation(pair)(lambda one: one["x"] @ one["y"])
    step = fedstack.jax_computation(FLOAT, pair)(lambda total, one: total + one["x"] @ one["y"])
    mapped = at_clients(lambda values: fl.sequence_sum(fl.sequence_map(product, values)), fl.SequenceType(pair))
    reduced = at_clients(lambda values: fl.sequence_reduce(values, np.float32(0), step), fl.SequenceType(pair))
    good, bad = {"x": np.ones(2, FLOAT), "y": np.ones(2, FLOAT)}, {"x": np.ones(2, FLOAT), "y": np.ones(3, FLOAT)}
    for computation in (mapped, reduced):
        assert computation([[good, good]]) == [4.0]
        with pytest.raises(InvalidValueError, match=r"same number of rows .* found \[2, 3\].* at client 1"):
            computation([[good], [good, bad]])


def at_clients(function, sequence: fl.SequenceType):
    """Returns a computation that runs a function of the language for the sequence of each client."""
    one = fl.federated_computation(function, sequence)
    return fl.federated_computation(
        lambda clients: fl.federated_map(one, clients), fl.FederatedType(sequence, fl.CLIENTS)
    )


half = fedstack.jax_computation(FLOAT)(lambda x: x / 2)
plus = fedstack.jax_computation(FLOAT, FLOAT)(lambda total, x: total + x)


@fl.federated_computation(FLOATS)
def halves(values):
    return fl.sequence_map(half, values)


def test_sequences_of_all_lengths_take_one_compilation_each() -> None:
    @fedstack.jax_computation({"sum": (FLOAT, [2]), "seen": np.int32}, {"x": (FLOAT, [3, 2]), "unused": np.int32})
    def step(state, batch):
        return {"sum": state["sum"] + batch["x"].sum(0), "seen": state["seen"] + 1}

    zero = fedstack.jax_computation()(lambda: {"sum": jnp.zeros(2), "seen": jnp.int32(0)})
    element = step.type_signature.parameter[1]
    reduce = at_clients(lambda batches: fl.sequence_reduce(batches, zero(), step), fl.SequenceType(element))
    lengths = [0, 1, 2, 5, 40, 700]
    data = [{"x": np.ones((3 * n, 2), FLOAT), "unused": np.zeros(3 * n, np.int32)} for n in lengths]
    clients = [[{"x": one["x"][3 * i : 3 * i + 3], "unused": 0} for i in range(n)] for one, n in zip(data, lengths)]
    before = compilations.count
    found = reduce(clients)
    assert compilations.count == before + 2  # the zero, and the loop
    assert [int(one["seen"]) for one in found] == lengths
    assert [one["sum"].tolist() for one in found] == [[3 * n, 3 * n] for n in lengths]
    before = compilations.count
    assert at_clients(lambda values: fl.sequence_sum(halves(values)), FLOATS)([[2.0] * n for n in lengths]) == lengths
    assert compilations.count == before + 1


def test_captures_are_arguments_of_the_loop() -> None:
    @fedstack.jax_computation(FLOAT, FLOAT, FLOAT)
    def toward(total, x, rate):
        return total + rate * (x - total)

    pair = fl.StructType([FLOAT, FLOAT])

    @fl.federated_computation(FLOATS, FLOAT)
    def average(values, rate):
        step = fl.federated_computation(lambda both: toward(both[0], both[1], rate), pair)
        return fl.sequence_reduce(values, np.float32(0), step)

    found = average([1.0, 2.0, 3.0], 0.5)
    assert found == np.float32(2.125)


def test_functions_that_follow_each_other_fold_in_one_loop() -> None:
    pair = fl.StructType([FLOAT, FLOAT])
    step = fl.federated_computation(lambda both: plus(both[0], half(both[1])), pair)
    found = at_clients(lambda values: fl.sequence_reduce(values, np.float32(1), step), FLOATS)([[2.0, 4.0], [], [8.0]])
    assert found == [4.0, 1.0, 5.0]


def test_a_stream_is_read_only_as_far_as_its_reader_reads() -> None:
    read: list[int] = []

    def numbers() -> Iterator[float]:
        for index in range(1000):
            read.append(index)
            yield float(index)

    @fedstack.python_computation(FLOATS, FLOAT)
    def first(values):
        return next(iter(values))

    assert at_clients(lambda values: first(halves(values)), FLOATS)([fedstack.from_generator(numbers)]) == [0.0]
    assert read == [0]


def test_an_error_of_a_stream_is_that_of_its_element() -> None:
    def numbers() -> Iterator[float]:
        yield 1.0
        yield 2.0
        raise OSError("the disk is gone")

    def words() -> Iterator[object]:
        yield 1.0
        yield "two"

    total = at_clients(lambda values: fl.sequence_reduce(halves(values), np.float32(0), plus), FLOATS)
    with pytest.raises(InvalidValueError, match=r"raised OSError: the disk is gone; at arg\[client 1\]"):
        total([[1.0], fedstack.from_generator(numbers)])
    with pytest.raises(fedstack.errors.TypeMismatchError, match=r"at arg\[client 1\]\[1\]"):
        total([[1.0], fedstack.from_generator(words)])


def test_shuffled_and_short_batches_are_folded_in_their_order() -> None:
    @fedstack.jax_computation(FLOAT, (FLOAT, [2]))
    def digits(total, rows):
        return total * 10 + rows.sum()

    rows = np.arange(7, dtype=FLOAT)
    batches = fedstack.batches(rows, 2, drop_remainder=True, shuffle_seed=3)
    whole = fl.SequenceType((FLOAT, [2]))
    expected = 0.0
    for batch in fedstack.batches(rows, 2, drop_remainder=True, shuffle_seed=3):
        expected = expected * 10 + batch.sum()
    reduce = at_clients(lambda values: fl.sequence_reduce(values, np.float32(0), digits), whole)
    assert reduce([batches, list(rows[:4].reshape(2, 2))]) == [expected, 15.0]

    @fedstack.jax_computation(FLOAT, (FLOAT, [None]))
    def open_digits(total, rows):
        return total * 10 + rows.sum()

    some = fl.SequenceType((FLOAT, [None]))
    reduce = at_clients(lambda values: fl.sequence_reduce(values, np.float32(0), open_digits), some)
    assert reduce([fedstack.batches(np.ones(5, FLOAT), 2)]) == [221.0]


def test_numbers_of_64_bits_that_a_step_passes_on_keep_them() -> None:
    big = np.int64(1) << 40
    state = fl.StructType([FLOAT, np.int64])
    step = fl.federated_computation(lambda both: [plus(both[0][0], both[1]), both[0][1]], fl.StructType([state, FLOAT]))

    @fl.federated_computation(FLOATS, state)
    def reduce(values, zero):
        return fl.sequence_reduce(values, zero, step)

    found = reduce([1.0, 2.0], [0.0, big])
    assert list(found) == [3.0, big]
