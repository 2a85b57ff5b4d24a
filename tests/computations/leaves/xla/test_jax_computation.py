"""JAX functions as leaves: their types, what they return, and what is refused."""

import warnings
from typing import NamedTuple

import attrs
import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.leaf_runtimes import load_leaf
from fedstack.computations.leaves.xla import jax_api
from fedstack.errors import InvalidComputationError, InvalidValueError, LeafError, TypeMismatchError

FLOAT = np.float32


def locally(computation, *arguments, **options):
    with fedstack.use_context(fedstack.create_sync_local_execution_context(**options)):
        return computation(*arguments)


def error_of(*types, function=lambda x: x, **options) -> str:
    with pytest.raises((InvalidComputationError, LeafError, TypeMismatchError)) as caught:
        fedstack.jax_computation(*types, **options)(function)
    return str(caught.value)


@fedstack.jax_computation(FLOAT)
def half(x):
    """Halves a number."""
    return x / 2


class Pair(NamedTuple):
    first: object
    second: object


@attrs.frozen
class Model:
    weights: object
    bias: object


def test_the_result_type_is_inferred() -> None:
    assert str(half.type_signature) == "(float32 -> float32)"

    @fedstack.jax_computation({"w": (FLOAT, [3]), "b": FLOAT}, (FLOAT, [None, 3]))
    def loss(model, x):
        return {"z": jnp.square(x @ model.w + model["b"]).mean(), "a": [1, 2.5, x.sum() > 0]}

    expected = "(<<w=float32[3],b=float32>,float32[?,3]> -> <z=float32,a=<int32,float32,bool>>)"
    assert str(loss.type_signature) == expected
    model = {"w": np.ones(3, FLOAT), "b": np.float32(1)}
    for rows in (1, 2, 5):
        found = locally(loss, model, np.ones((rows, 3), FLOAT))
        assert found == {"z": np.float32(16.0), "a": [np.int32(1), np.float32(2.5), np.True_]}
        assert type(found["z"]) is np.float32


def test_results_come_in_the_declared_containers() -> None:
    @fedstack.jax_computation(Pair(FLOAT, Model(np.int32, FLOAT)), result_type=Model(np.int32, Pair(FLOAT, FLOAT)))
    def turned(pair):
        assert isinstance(pair, Pair)
        assert isinstance(pair.second, Model)
        return Model(pair.second.weights, (pair.second.bias, pair.first))

    found = locally(turned, Pair(np.float32(1), Model(np.int32(2), np.float32(3))))
    assert found == Model(np.int32(2), Pair(np.float32(3), np.float32(1)))

    @fedstack.jax_computation(FLOAT)
    def paired(x):
        return Pair(x, {"twice": 2 * x})

    assert locally(paired, 1.0) == Pair(np.float32(1), {"twice": np.float32(2)})


def test_types_may_be_those_of_jax() -> None:
    found = fedstack.jax_computation({"a": jnp.float32, "b": (jnp.bfloat16, [2])}, result_type=[jnp.float32, jnp.bool_])
    assert str(found(lambda x: [x.a, True]).type_signature) == "(<a=float32,b=bfloat16[2]> -> <float32,bool>)"


def test_a_function_may_have_parameters_by_name_or_none() -> None:
    @fedstack.jax_computation({"y": FLOAT, "x": FLOAT})
    def difference(x, y):
        return x - y

    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert difference(x=3.0, y=1.0) == 2.0
    assert locally(difference, {"x": np.float32(3), "y": np.float32(1)}) == 2.0

    @fedstack.jax_computation()
    def seven():
        return jnp.arange(3) + 7

    assert locally(seven).tolist() == [7, 8, 9]
    assert str(seven.type_signature) == "( -> int32[3])"


def test_it_is_a_jax_function_in_other_jax_functions() -> None:
    assert jax.grad(half)(3.0) == 0.5
    assert jax.vmap(half)(jnp.arange(3.0)).tolist() == [0.0, 0.5, 1.0]
    assert jax.jit(lambda x: half(x) + half(x=x))(np.float32(4)) == 4.0

    @fedstack.jax_computation(FLOAT)
    def quarter(x):
        return half(half(x))

    assert locally(quarter, 8.0) == 2.0
    assert half.__wrapped__(5) == 2.5
    assert half.__doc__ == "Halves a number."


def test_results_are_those_of_jax_for_all_dtypes() -> None:
    for dtype in (
        np.bool_,
        np.int8,
        np.int16,
        np.int32,
        np.uint8,
        np.uint16,
        np.uint32,
        np.float16,
        FLOAT,
        np.complex64,
    ):
        found = locally(fedstack.jax_computation((dtype, [2]))(lambda x: x), np.array([0, 1], dtype))
        assert found.dtype == dtype
        assert found.tolist() == [0, 1]
        assert locally(fedstack.jax_computation(dtype)(lambda x: x), dtype(1)) == dtype(1)


def test_64_bits_need_the_setting_of_jax() -> None:
    found = error_of(np.float64)
    assert 'found float64: JAX computes with 32 bits in this process; call jax.config.update("jax_enable_x64"' in found
    assert "found int64 at b:" in error_of({"a": FLOAT, "b": np.int64})
    assert "found complex128" in error_of(np.complex128)
    with jax_api.with_wide_types():
        wide = fedstack.jax_computation((np.float64, [2]), np.int64)(lambda x, n: {"x": x / 3, "n": n + 1})
    # Where it runs, the setting does not matter: a worker has none.
    assert not jax_api.has_wide_types()
    found = locally(wide, np.array([1.0, 2.0]), np.int64(2**60))
    assert found["x"].tolist() == [1 / 3, 2 / 3]
    assert found["n"] == 2**60 + 1
    assert not jax_api.has_wide_types()


@fedstack.jax_computation((FLOAT, [20]), (FLOAT, [20, 30]))
def projected(x, matrix):
    return jnp.tanh(x @ matrix)


def test_the_size_of_groups_follows_from_the_cost() -> None:
    def lanes(computation) -> int:
        return load_leaf(computation.to_proto()).lanes

    heavy = fedstack.jax_computation((FLOAT, [100, 100]))(lambda x: x @ x)
    rows = fedstack.jax_computation((FLOAT, [None, 2]))(lambda x: x.sum(0))
    assert [lanes(one) for one in (half, projected, heavy, rows)] == [4096, 64, 1, 1]


@fl.federated_computation(fl.FederatedType((FLOAT, [20]), fl.CLIENTS), fl.FederatedType((FLOAT, [20, 30]), fl.SERVER))
def project(rows, matrix):
    found = fl.federated_map(projected, (rows, fl.federated_broadcast(matrix)))
    return found, fl.federated_mean(found)


def rows_of(clients: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(clients, 20)).astype(FLOAT))


MATRIX = np.random.default_rng(1).normal(size=(20, 30)).astype(FLOAT)


@pytest.mark.parametrize("options", [{"max_concurrent_clients": 1}, {"debug": True}, {"clients_per_thread": 1}])
def test_a_client_has_the_same_bits_however_clients_are_run(options) -> None:
    rows = rows_of(200)
    expected, mean = locally(project, rows, MATRIX)
    found, other_mean = locally(project, rows, MATRIX, **options)
    assert np.array_equal(found, expected)
    assert mean.tobytes() == other_mean.tobytes()
    for clients in (1, 3, 64, 70):
        assert np.array_equal(locally(project, rows[:clients], MATRIX)[0], expected[:clients])
    assert np.allclose(np.tanh(np.stack(rows) @ MATRIX), expected, rtol=1e-5, atol=1e-6)


def test_a_client_does_not_change_the_bits_of_others() -> None:
    rows = rows_of(10)
    expected, _ = locally(project, rows, MATRIX)
    rows[3] = np.full(20, np.nan, FLOAT)
    found, mean = locally(project, rows, MATRIX)
    assert np.isnan(found[3]).all()
    assert np.isnan(mean).all()
    assert all(np.array_equal(found[i], expected[i]) for i in range(10) if i != 3)


def test_survivors_have_the_bits_that_they_would_have_with_the_others() -> None:
    @fedstack.python_computation([(FLOAT, [20])])
    def checked(x):
        if x[0] > 0:
            raise ValueError("positive")
        return x

    @fl.federated_computation(
        fl.FederatedType((FLOAT, [20]), fl.CLIENTS), fl.FederatedType((FLOAT, [20, 30]), fl.SERVER)
    )
    def of_some(rows, matrix):
        return fl.federated_map(projected, (fl.federated_map(checked, rows), fl.federated_broadcast(matrix)))

    rows = rows_of(100)
    expected, _ = locally(project, rows, MATRIX)
    found = locally(of_some, rows, MATRIX, client_failures=fedstack.ClientFailures())
    assert 20 < sum(isinstance(one, fedstack.ClientFailure) for one in found) < 80
    for one, row, result in zip(found, rows, expected):
        assert isinstance(one, fedstack.ClientFailure) if row[0] > 0 else np.array_equal(one, result)


def test_what_jax_cannot_do_is_refused_when_the_function_is_decorated() -> None:
    assert "found strings at b; use fedstack.python_computation" in error_of({"a": FLOAT, "b": np.str_})
    assert "<JaxSequence of float32>" in error_of(fl.SequenceType(FLOAT))
    assert "except of the first axis, found float32[3,?]" in error_of((FLOAT, [3, None]))
    assert "write @fedstack.jax_computation(np.float32)" in error_of(lambda x: x)
    assert "Expected one parameter type for each of the 1 parameters" in error_of(FLOAT, FLOAT)
    found = error_of(FLOAT, result_type=np.int32)
    assert "Expected int32, found float32; at the result of '<lambda>'; convert it with astype" in found
    found = error_of((FLOAT, [3]), result_type=(FLOAT, [2]))
    assert "Expected float32[2], found float32[3]; at the result of '<lambda>'" in found
    assert "returned None; add a return statement" in error_of(FLOAT, function=lambda x: None)
    found = error_of(FLOAT, function=lambda x: x if x > 0 else -x)
    assert "whose values are not known yet, found TracerBoolConversionError: it needs a value" in found
    assert "lambda x: x if x > 0 else -x" in found
    assert "use jnp.where, jax.lax.cond and jax.lax.scan in place of if, while, int and float" in found
    assert "it needs a value" in error_of((FLOAT, [3]), function=lambda x: np.asarray(x))
    assert "jax_functions.py" not in found
    leaked = []
    error_of(FLOAT, function=lambda x: leaked.append(x))
    assert "a value of another function that JAX" in error_of(FLOAT, function=lambda x: x + leaked[0])
    assert "found a JAX array float32[2]" in error_of((FLOAT, [2]), result_type=[FLOAT, FLOAT])
    key = error_of(np.uint32, result_type=np.uint32, function=lambda x: jax.random.key(0))
    assert "Expected uint32, found key<fry>; at the result" in key
    assert "raised ZeroDivisionError: division by zero" in error_of(FLOAT, function=lambda x: x + 1 / 0)
    called = lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), FLOAT), x)  # noqa: E731
    found = error_of(FLOAT, function=called)
    assert "found jax.pure_callback, which calls Python" in found
    assert "use fedstack.python_computation, whose functions may call any Python code" in found


def test_arguments_of_other_types_are_refused() -> None:
    with pytest.raises(TypeMismatchError, match=r"Expected float32, found str 'a'; at arg"):
        locally(half, "a")
    rows = fedstack.jax_computation((FLOAT, [None, 3]), (FLOAT, [None]))(lambda x, y: x.sum() + y.sum())
    with pytest.raises(InvalidValueError, match=r"same number of rows as arguments of '<lambda>', found \[2, 3\]"):
        locally(rows, np.ones((2, 3), FLOAT), np.ones(3, FLOAT))


def test_a_client_may_have_no_rows_if_the_function_takes_none() -> None:
    total = fedstack.jax_computation((FLOAT, [None, 3]))(lambda x: {"sum": x.sum(0), "rows": x * 2})
    found = locally(total, np.ones((0, 3), FLOAT))
    assert found["sum"].tolist() == [0, 0, 0]
    assert found["rows"].shape == (0, 3)
    largest = fedstack.jax_computation((FLOAT, [None]))(lambda x: x.max())
    assert locally(largest, np.array([1, 3, 2], FLOAT)) == 3.0
    with pytest.raises(InvalidValueError, match="Expected at least one row in the arguments of '<lambda>', found none"):
        locally(largest, np.ones(0, FLOAT))


def test_a_result_of_any_size_may_have_a_fixed_size() -> None:
    fixed = fedstack.jax_computation((FLOAT, [None]), result_type=(FLOAT, [None]))(lambda x: x.sum() * jnp.ones(3))
    for rows in (0, 1, 5):
        assert locally(fixed, np.ones(rows, FLOAT)).tolist() == [rows] * 3


def test_what_is_no_array_is_refused_as_a_result() -> None:
    assert "Expected float32, found None; at the result of '<lambda>'; add a return statement" in error_of(
        FLOAT, result_type=FLOAT, function=lambda x: None
    )
    assert "found str 'x'; at the result of '<lambda>'" in error_of(FLOAT, result_type=FLOAT, function=lambda x: "x")


def test_versions_that_are_wrong_are_refused() -> None:
    for version in ("0.5.3", "0.6.0", "0.7.2", "0.8.1", "0.10.2", "0.10.2.dev20260701"):
        with pytest.raises(ImportError, match=f"JAX {version} returns wrong results on CPUs"):
            jax_api.check_version(version)
    with pytest.raises(ImportError, match="Expected JAX 0.5 or later, found 0.4.38"):
        jax_api.check_version("0.4.38")
    for version in ("0.5.0", "0.5.2", "0.8.2", "0.9.0.1", "0.10.1", "0.11.0", "0.12.0.1+cuda12"):
        jax_api.check_version(version)


def test_the_installed_version_computes_what_others_computed_wrongly() -> None:
    """The examples of jax's issues 39103 and 33479."""
    numbers = jnp.arange(32_769, dtype=FLOAT)
    vectors = jnp.stack((numbers, jnp.zeros_like(numbers), jnp.zeros_like(numbers)), axis=1)

    def squares(x):
        return jax.vmap(lambda row: jnp.sum((jnp.eye(3, dtype=FLOAT) @ row) ** 2))(x)

    assert np.array_equal(jax.jit(squares)(vectors), squares(vectors))
    constant = jax.random.normal(jax.random.PRNGKey(0), (10, 8))
    places = jnp.array([1, 3, 5, 7])

    def moved(column):
        values = jnp.zeros(10).at[:10].set(column)
        return jnp.zeros(10).at[places].set(values[places] + 0.025 * jnp.zeros(10)[places])

    def all_moved(matrix):
        return jax.vmap(moved, in_axes=1, out_axes=1)(matrix)

    assert np.array_equal(jax.jit(all_moved)(constant), jax.jit(lambda: all_moved(constant))())


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fedstack.jax_computation((FLOAT, [2]))(lambda x: jnp.log(x) / 0)
        assert np.isnan(locally(found, np.array([0, 1], FLOAT))).any()
