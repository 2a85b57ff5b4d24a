"""A fold may write into what a leaf function returned only if nobody can ever notice."""

import functools
import gc
import weakref

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.plan.program import Join, Pick, Program, ProgramStep, Slot, read_by_one
from fedstack.computations.values.ownership import take_buffer
from fedstack.executors.concurrency import measurements
from fedstack.executors.folds import leaf_fold

SIZE = 20_000  # 80 kB: large enough to be taken over, and to go into folds client by client
CLIENTS = 13
VECTOR = fl.TensorType(np.float32, [SIZE])
kept: list[np.ndarray] = []


@pytest.fixture(autouse=True, params=[1, None], ids=["1 thread", "threads"])
def _context(request):
    kept.clear()
    context = fedstack.create_sync_local_execution_context(max_concurrent_clients=request.param)
    with fedstack.use_context(context):
        yield
    context.close()
    kept.clear()


@pytest.fixture(params=["by client", "by block"])
def way(request, monkeypatch):
    """Large results go into folds one by one; the same must hold for whole blocks."""
    if request.param == "by block":
        monkeypatch.setattr(measurements, "_LARGE_BYTES", 1 << 40)
    return request.param


@pytest.fixture
def taken(monkeypatch):
    """Counts how many buffers were taken over."""
    counts = {"taken": 0, "left": 0}

    def counting(payloads, index):
        buffer = take_buffer(payloads, index)
        counts["left" if buffer is None else "taken"] += 1
        return buffer

    monkeypatch.setattr(leaf_fold, "take_buffer", counting)
    return counts


def fresh(x):
    return np.full(SIZE, x, np.float32)


def keeps(x):
    array = fresh(x)
    kept.append(array)
    return array


def keeps_a_view(x):
    array = fresh(x)
    kept.append(array[::2])
    return array


def keeps_a_memoryview(x):
    array = fresh(x)
    kept.append(np.asarray(memoryview(array)))
    return array


def keeps_a_weak_reference(x):
    array = fresh(x)
    kept.append(weakref.ref(array))  # type: ignore[arg-type]
    return array


def returns_a_view(x):
    array = np.zeros(2 * SIZE, np.float32)
    array[:] = x
    kept.append(array)
    return array[:SIZE]


def returns_a_read_only_view(x):
    array = fresh(x)
    kept.append(array)
    view = array.view()
    view.flags.writeable = False
    return view


@functools.cache
def cached(x):
    return np.full(SIZE, 2, np.float32)


def returns_what_is_cached(x):
    array = cached(0)
    if not kept:
        kept.append(array)
    return array


class Holder:
    array = None


def returns_the_array_of_another_client(x):
    """Odd clients return the array of the client before, and let go of it."""
    if x % 2 == 0:
        Holder.array = fresh(x)
        return Holder.array
    array, Holder.array = Holder.array, None
    return array


LEAVES = [
    keeps,
    keeps_a_view,
    keeps_a_memoryview,
    keeps_a_weak_reference,
    returns_a_view,
    returns_a_read_only_view,
    returns_what_is_cached,
]


def summed(function):
    leaf = fedstack.python_computation(np.float32, VECTOR)(function)

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(fl.federated_map(leaf, values))

    return total


VALUES = [float(k + 1) for k in range(CLIENTS)]


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_results_that_nobody_else_has_become_buffers(way, taken, runs):
    total = summed(fresh)
    for _ in range(runs):
        assert np.array_equal(total(VALUES), np.full(SIZE, sum(VALUES), np.float32))
    assert taken == {"taken": runs * CLIENTS, "left": 0}


@pytest.mark.parametrize("function", LEAVES, ids=lambda function: function.__name__)
def test_an_array_that_a_leaf_keeps_never_changes(way, taken, function):
    total = summed(function)
    for _ in range(2):  # the second run knows that results are large
        kept.clear()
        result = total(VALUES)
        arrays = [item() if isinstance(item, weakref.ref) else item for item in kept]
        arrays = [array for array in arrays if array is not None]
        if function is returns_what_is_cached:
            assert np.array_equal(result, np.full(SIZE, 2 * CLIENTS, np.float32))
            assert all((array == 2).all() for array in arrays)
        else:
            assert np.array_equal(result, np.full(SIZE, sum(VALUES), np.float32))
            assert all((array == array[0]).all() for array in arrays)
            clients = sorted(float(array[0]) for array in arrays)  # threads append in any order
            assert clients == sorted(set(clients))
            assert set(clients) <= set(VALUES)
        assert not any(np.shares_memory(result, array) for array in arrays)
        result += 1  # the result is the caller's own
        assert all((array == array[0]).all() for array in arrays)
    if function is keeps_a_weak_reference:  # of others there are copies to take
        assert taken["taken"] == 0


def test_an_array_that_two_clients_return_counts_for_both(way):
    values = [float(k) for k in range(12)]
    total = summed(returns_the_array_of_another_client)
    context = fedstack.create_sync_local_execution_context(max_concurrent_clients=1)  # so that clients come in order
    with fedstack.use_context(context):
        for _ in range(2):
            assert np.array_equal(total(values), np.full(SIZE, 2 * sum(values[::2]), np.float32))
    context.close()


def test_an_argument_that_a_leaf_returns_never_changes(way, taken):
    leaf = fedstack.python_computation([VECTOR, np.float32], VECTOR)(lambda model, x: model)
    sliced = fedstack.python_computation([VECTOR, np.float32], VECTOR)(lambda model, x: model[:])
    own = fedstack.python_computation(VECTOR, VECTOR)(lambda x: x)

    @fl.federated_computation(
        fl.FederatedType(VECTOR, fl.SERVER),
        fl.FederatedType(np.float32, fl.CLIENTS),
        fl.FederatedType(VECTOR, fl.CLIENTS),
    )
    def totals(model, values, vectors):
        at_clients = fl.federated_broadcast(model)
        return (
            fl.federated_sum(fl.federated_map(leaf, (at_clients, values))),
            fl.federated_max(fl.federated_map(sliced, (at_clients, values))),
            fl.federated_max(fl.federated_map(own, vectors)),
        )

    model, vectors = fresh(3), [fresh(x) for x in VALUES]
    for _ in range(2):
        first, second, third = totals(model, VALUES, vectors)
        assert (first[0], second[0], third[0]) == (3 * CLIENTS, 3, CLIENTS)
        assert (model == 3).all()
        assert all((vector == x).all() for vector, x in zip(vectors, VALUES, strict=True))
    assert taken["taken"] == 0


def test_what_two_folds_read_is_written_by_none(way):
    leaf = fedstack.python_computation(np.float32, VECTOR)(fresh)

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def totals(values):
        arrays = fl.federated_map(leaf, values)
        return fl.federated_sum(arrays), fl.federated_max(arrays), fl.federated_min(arrays)

    for _ in range(2):
        assert [float(array[-1]) for array in totals(VALUES)] == [sum(VALUES), CLIENTS, 1]


def test_what_is_a_result_too_is_not_written(way):
    leaf = fedstack.python_computation(np.float32, VECTOR)(fresh)

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def both(values):
        arrays = fl.federated_map(leaf, values)
        return fl.federated_sum(arrays), arrays

    for _ in range(2):
        total, arrays = both(VALUES)
        assert total[0] == sum(VALUES)
        assert [float(array[-1]) for array in arrays] == VALUES


def test_members_of_one_struct_are_folded_apart(way):
    pair = fl.to_type([VECTOR, VECTOR])

    @fedstack.python_computation(np.float32, (pair, np.float32))
    def leaf(x):
        array = fresh(x)
        return (array, array), x  # twice the same array

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def mean(values):
        out = fl.federated_map(leaf, values)
        return fl.federated_mean(out[0], out[1])

    for _ in range(2):
        first, second = mean(VALUES)
        assert np.allclose(first, sum(x * x for x in VALUES) / sum(VALUES))
        assert np.array_equal(first, second)
        assert not np.shares_memory(first, second)


def test_what_a_second_leaf_keeps_of_the_first_never_changes(way):
    first = fedstack.python_computation(np.float32, VECTOR)(fresh)

    @fedstack.python_computation(VECTOR, np.float32)
    def second(array):
        kept.append(array)
        return array[0]

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def totals(values):
        arrays = fl.federated_map(first, values)
        return fl.federated_sum(arrays), fl.federated_sum(fl.federated_map(second, arrays))

    for _ in range(2):
        kept.clear()
        total, heads = totals(VALUES)
        assert total[0] == heads == sum(VALUES)
        assert sorted(float(array[-1]) for array in kept) == VALUES


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_the_bits_are_those_of_the_tree_however_results_get_there(monkeypatch, dtype):
    rng = np.random.default_rng(7)
    arrays = [(rng.normal(size=SIZE) * 10.0 ** rng.integers(0, 3)).astype(dtype) for _ in range(37)]
    vector = fl.TensorType(dtype, [SIZE])
    copy = fedstack.python_computation(vector, (vector, np.float32))(lambda x: (x.copy(), np.float32(abs(x[0]) + 1)))

    @fl.federated_computation(fl.FederatedType(vector, fl.CLIENTS))
    def totals(values):
        out = fl.federated_map(copy, values)
        again = fl.federated_map(copy, values)
        return fl.federated_sum(out[0]), fl.federated_max(again[0]), fl.federated_sum(again[1])

    found = []
    for limit in (0, 1 << 40):
        monkeypatch.setattr(measurements, "_LARGE_BYTES", limit)
        for threads in (1, None):
            context = fedstack.create_sync_local_execution_context(max_concurrent_clients=threads)
            with fedstack.use_context(context):
                totals(arrays)
                found.append(totals(arrays))
            context.close()
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_buffer_is_taken_only_from_its_single_owner():
    def payload():
        view = np.zeros(SIZE, np.float32).view()
        view.setflags(write=False)
        return view

    payloads = [payload()]
    buffer = take_buffer(payloads, 0)
    assert buffer is not None
    assert buffer.flags.writeable
    assert buffer.flags.owndata
    assert payloads == [None]
    held = payload()
    assert take_buffer([held], 0) is None
    base = held.base
    payloads = [held]
    del held
    assert take_buffer(payloads, 0) is None
    del base
    assert take_buffer([*payloads], 0) is None
    reference = weakref.ref(payloads[0])
    assert take_buffer(payloads, 0) is None
    del reference
    gc.collect()
    assert take_buffer(payloads, 0) is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(SIZE, np.float32),
        lambda: np.frombuffer(bytearray(4 * SIZE), np.float32),
        lambda: np.zeros((SIZE, 2), np.float32)[:, 0],
        lambda: np.zeros(SIZE, np.float32)[::-1],
        lambda: np.zeros((SIZE // 2, 2), np.float32).reshape(-1),
        lambda: np.zeros(SIZE, np.int32).view(np.float32),
        lambda: np.zeros(SIZE, np.float32).view(np.ma.MaskedArray),
        lambda: np.zeros(5, np.float32).view(),
    ],
    ids=["writeable", "bytes", "column", "reversed", "reshaped", "other dtype", "subclass", "small"],
)
def test_other_arrays_are_never_taken(make):
    payloads = [make()]
    if payloads[0].base is not None:
        payloads[0].flags.writeable = False
    assert take_buffer(payloads, 0) is None


def program(results):
    """Slots 0 and 1 are an input and a literal, the others are made by steps."""
    steps = tuple(ProgramStep(None, Slot(0), target) for target in (2, 3))  # type: ignore[arg-type]
    return Program((0,), ((1, np.float32(1)),), steps, tuple(results), 4)


@pytest.mark.parametrize(
    ("results", "readers", "alone"),
    [
        ([Slot(2), Slot(3)], [[0], [1]], [True, True]),
        ([Slot(2), Slot(2)], [[0], [1]], [False, False]),
        ([Slot(2), Slot(2)], [[0, 1]], [False]),
        ([Slot(0), Slot(1)], [[0], [1]], [False, False]),
        ([Pick(Slot(2), 0), Pick(Slot(2), 1)], [[0], [1]], [True, True]),
        ([Pick(Slot(2), 0), Slot(2)], [[0], [1]], [False, False]),
        ([Pick(Pick(Slot(2), 0), 1), Pick(Slot(2), 0), Slot(3)], [[0], [1], [2]], [False, False, True]),
        ([Join((Slot(2), Slot(3))), Pick(Join((Slot(3), Slot(2))), 0)], [[0], [1]], [False, False]),
        ([Join((Slot(2), Slot(0)))], [[0]], [False]),
        ([Pick(Join((Slot(0), Pick(Slot(2), 1))), 1), Pick(Slot(2), 0)], [[0], [1]], [True, True]),
    ],
)
def test_a_reader_is_alone_if_steps_made_what_nobody_else_reads(results, readers, alone):
    assert read_by_one(program(results), readers) == alone
