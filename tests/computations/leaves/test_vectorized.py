"""Functions that process many clients in one call: the same results as for one client at a time, whoever runs them."""

import attrs
import federated_language as fl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstack
from fedstack.computations.leaves.vectorized_leaf import lanes_of, python_leaf
from fedstack.computations.values.columns import empty_column
from fedstack.errors import InvalidComputationError, InvalidValueError, LeafError, TypeMismatchError

FLOAT = np.float32
SHORT, LONG = fl.TensorType(FLOAT, [20]), fl.TensorType(FLOAT, [300])
MATRIX = np.random.default_rng(0).normal(size=(20, 300)).astype(FLOAT)
AT_CLIENTS = fl.FederatedType(SHORT, fl.CLIENTS)


@fedstack.python_computation([SHORT], vectorized=True)
def product(rows):
    return rows @ MATRIX  # which rounds in another way for another number of rows


@fl.federated_computation(AT_CLIENTS)
def products(rows):
    found = fl.federated_map(product, rows)
    return found, fl.federated_sum(found), fl.federated_mean(found)


def rows_of(clients: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(clients, 20)).astype(FLOAT))


def locally(computation, *arguments, **options):
    with fedstack.use_context(fedstack.create_sync_local_execution_context(**options)):
        return computation(*arguments)


def same_bits(left, right) -> bool:
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same_bits, left, right))
    return np.asarray(left).tobytes() == np.asarray(right).tobytes()


def test_the_types_are_those_of_one_client() -> None:
    assert str(product.type_signature) == "(float32[20] -> float32[300])"

    @fedstack.python_computation({"x": FLOAT, "y": (FLOAT, [3])}, vectorized=True)
    def both(x, y):
        return {"scaled": x[:, None] * y, "sum": y.sum(axis=1)}

    assert str(both.type_signature) == "(<x=float32,y=float32[3]> -> <scaled=float32[3],sum=float32>)"
    found = locally(both, 2.0, np.arange(3, dtype=FLOAT))
    assert found["scaled"].tolist() == [0.0, 2.0, 4.0]
    assert found["sum"] == 3.0

    @fedstack.python_computation([np.int32], vectorized=True)
    def declared(x) -> np.int32:
        return x + np.int32(1)

    assert str(declared.type_signature) == "(int32 -> int32)"
    assert locally(declared, 4) == 5


def test_structs_are_containers_of_stacked_arrays() -> None:
    @attrs.frozen
    class Point:
        x: object
        y: object

    kind = fl.StructWithPythonType([("x", FLOAT), ("y", fl.TensorType(FLOAT, [2]))], Point)

    @fedstack.python_computation([kind], vectorized=True)
    def swapped(point):
        assert type(point) is Point
        assert not point.y.flags.writeable
        return {"y": point.x, "x": point.y[:, ::-1]}

    @fl.federated_computation(fl.FederatedType(kind, fl.CLIENTS))
    def computation(points):
        return fl.federated_map(swapped, points)

    points = [Point(float(number), np.array([number, -number], FLOAT)) for number in range(5)]
    found = locally(computation, points)
    assert [(one["y"], one["x"].tolist()) for one in found] == [(n, [-n, n]) for n in range(5)]


@pytest.mark.parametrize("clients", [0, 1, 2, 7, 8, 31, 200, 777])
def test_the_results_are_those_of_single_calls(clients: int) -> None:
    rows = rows_of(clients)
    found, total, mean = locally(products, rows)
    expected = [row @ MATRIX for row in rows]
    np.testing.assert_allclose(np.reshape(found, (clients, 300)), np.reshape(expected, (clients, 300)), atol=1e-4)
    np.testing.assert_allclose(total, np.sum(expected, axis=0) if clients else np.zeros(300), atol=1e-2)
    assert np.isnan(mean).all() if not clients else np.isfinite(mean).all()


def test_a_client_has_the_same_bits_whatever_other_clients_there_are() -> None:
    rows = rows_of(500)
    everyone = locally(products, rows)[0]
    for clients in (1, 3, 64, 65, 250):
        assert same_bits(locally(products, rows[:clients])[0], everyone[:clients])
    other = rows_of(500, seed=1)
    other[137] = rows[137]
    assert same_bits(locally(products, other)[0][137], everyone[137])


@settings(max_examples=25)
@given(clients=st.integers(1, 400), at_once=st.integers(1, 200), threads=st.integers(1, 4))
def test_results_have_the_same_bits_however_clients_are_divided(clients: int, at_once: int, threads: int) -> None:
    rows = rows_of(clients)
    found = locally(products, rows, clients_per_thread=at_once, max_concurrent_clients=threads)
    assert same_bits(found, locally(products, rows))


def test_no_clients_have_no_results() -> None:
    leaf = python_leaf(lambda x: 1 / 0, "never called", SHORT, LONG, vectorized=True)
    assert len(leaf.call_column(empty_column(SHORT), 0, 0)) == 0


def test_the_layout_of_arrays_makes_no_difference() -> None:
    wide = fl.TensorType(FLOAT, [20_000])
    sums = fedstack.python_computation([wide], vectorized=True)(lambda x: x.sum(axis=1))

    @fl.federated_computation(fl.FederatedType(wide, fl.CLIENTS))
    def computation(rows):
        return fl.federated_map(sums, rows)

    rows = np.random.default_rng(0).normal(size=(8, 20_000)).astype(FLOAT)
    unaligned = np.frombuffer(b"x" + rows.tobytes(), np.uint8)[1:].view(FLOAT).reshape(rows.shape)
    assert not unaligned.flags.aligned
    expected = locally(computation, list(rows))
    for other in (rows, unaligned, list(unaligned), np.asfortranarray(rows), np.repeat(rows, 2, axis=0)[::2]):
        assert same_bits(locally(computation, other), expected)
        assert same_bits(locally(computation, other[:1]), expected[:1])


def test_an_error_that_no_client_has_alone_says_so() -> None:
    def together(x):
        if len(np.unique(x)) > 1:
            raise ValueError("they differ")
        return x

    leaf = fedstack.python_computation([FLOAT], vectorized=True)(together)

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_map(leaf, values)

    with pytest.raises(LeafError, match="they differ; for clients 0 to 2 together, and for none of them alone"):
        locally(computation, [1.0, 2.0, 3.0])


def test_vectorized_is_a_bool() -> None:
    with pytest.raises(InvalidValueError, match="Expected vectorized to be True or False, found str 'no'"):
        fedstack.python_computation([FLOAT], vectorized="no")  # type: ignore[arg-type]


def test_values_that_all_clients_share_are_rows_too() -> None:
    @fedstack.python_computation([SHORT, FLOAT], vectorized=True)
    def scaled(rows, factor):
        assert factor.shape == rows.shape[:1]
        return rows * factor[:, None]

    @fl.federated_computation(AT_CLIENTS, fl.FederatedType(FLOAT, fl.SERVER))
    def computation(rows, factor):
        return fl.federated_map(scaled, (rows, fl.federated_broadcast(factor)))

    rows = rows_of(70)
    assert same_bits(locally(computation, rows, 3.0), [row * FLOAT(3) for row in rows])


def test_server_work_may_be_vectorized() -> None:
    @fl.federated_computation(fl.FederatedType(SHORT, fl.SERVER))
    def at_server(row):
        return fl.federated_map(product, row)

    (row,) = rows_of(1)
    assert same_bits(locally(at_server, row), locally(products, [row])[0][0])


def test_an_error_names_the_first_client_that_has_it_alone() -> None:
    @fedstack.python_computation([FLOAT], vectorized=True)
    def checked(x):
        if (x < 0).any():
            raise ValueError(f"{int((x < 0).sum())} values are negative")
        return x

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_map(checked, values)

    values = [1.0] * 50
    values[31] = values[40] = -1.0
    with pytest.raises(LeafError, match=r"'checked' raised ValueError: .* negative; at client 31") as caught:
        locally(computation, values)
    assert caught.value.client_index == 31


def test_clients_that_fail_are_left_out_if_that_is_tolerated() -> None:
    @fedstack.python_computation([FLOAT], vectorized=True)
    def checked(x):
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_sum(fl.federated_map(checked, values))

    policy = fedstack.ClientFailures(tolerate=2)
    assert locally(computation, [1.0, -1.0, 2.0, 3.0, -4.0, 5.0], client_failures=policy) == 22.0


@pytest.mark.parametrize(
    ("function", "text"),
    [
        pytest.param(lambda x: x[:-1], r"Expected shape \[1024\] .* found shape \[1023\].*a row for", id="fewer"),
        pytest.param(lambda x: x.sum(), r"Expected shape \[1024\] .* found shape \[\].*a row for", id="no rows"),
        pytest.param(
            lambda x: x.astype(np.float64), r"Expected float32.* found an array float64.*a row for", id="dtype"
        ),
    ],
)
def test_a_result_of_another_type_is_refused(function, text: str) -> None:
    wrong = fedstack.python_computation([FLOAT], FLOAT, vectorized=True)(function)

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_map(wrong, values)

    with pytest.raises(TypeMismatchError, match=text):
        locally(computation, [1.0, 2.0])


@pytest.mark.parametrize(
    ("parameters", "result", "function", "text"),
    [
        (None, FLOAT, lambda: 1.0, "with parameters, found '<lambda>' without any"),
        ([fl.SequenceType(FLOAT)], FLOAT, lambda x: x, "with known shapes as parameters and result"),
        ([np.str_], FLOAT, lambda x: x, "with known shapes as parameters and result"),
        ([(FLOAT, [None])], FLOAT, lambda x: x, "declare the shapes"),
        ([FLOAT], (FLOAT, [None]), lambda x: x, "declare the shapes"),
        ([FLOAT], None, lambda x: x.sum(), "an array with 2 rows for 2 clients, found float32 as result"),
        ([FLOAT], None, lambda x: {"a": x, "b": x[:1]}, "found float32\\[1\\] as result.b"),
    ],
)
def test_functions_that_cannot_be_vectorized_are_refused(parameters, result, function, text: str) -> None:
    with pytest.raises(InvalidComputationError, match=text):
        fedstack.python_computation(parameters, result, vectorized=True)(function)


def test_a_result_with_another_number_of_rows_is_told_the_size_of_a_group() -> None:
    shortened = fedstack.python_computation([FLOAT], FLOAT, vectorized=True)(lambda x: x[:-1])
    with pytest.raises(
        TypeMismatchError, match=r"found shape \[1023\].* a row for each of the 1024 clients of a group"
    ) as e:
        locally(
            fl.federated_computation(lambda x: fl.federated_map(shortened, x), fl.FederatedType(FLOAT, fl.CLIENTS)),
            [1.0, 2.0],
        )
    assert "declare" not in str(e.value)


def test_a_buffer_that_the_function_fills_again_is_copied() -> None:
    buffer = np.zeros((1024, 4), FLOAT)
    kind = fl.TensorType(FLOAT, [4])

    @fedstack.python_computation([FLOAT], kind, vectorized=True)
    def repeated(x):
        found = buffer[: len(x)]
        found[:] = x[:, None]
        return found

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_map(repeated, values)

    clients = 3 * lanes_of(fl.TensorType(FLOAT), kind)
    found = locally(computation, [float(number) for number in range(clients)])
    assert [one.tolist() for one in found] == [[number] * 4 for number in range(clients)]


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_the_number_of_lanes_follows_from_the_types(size: int, other: int) -> None:
    lanes = lanes_of(fl.TensorType(FLOAT, [size]), fl.TensorType(FLOAT, [other]))
    assert lanes & (lanes - 1) == 0
    assert 1 <= lanes <= 1024
    assert lanes * 4 * (size + other) <= 256 << 10 or lanes == 1
