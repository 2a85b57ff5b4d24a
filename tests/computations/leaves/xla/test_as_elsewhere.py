"""What users of federated_language_jax expect of JAX computations: their types, their errors, and where they run."""

from collections import OrderedDict

import federated_language as fl
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.xla import jax_api
from fedstack.errors import ContextError, InvalidComputationError

FLOAT, INT = np.float32, np.int32
jax_computation = fedstack.jax_computation
TEN = fl.TensorType(INT, [10])


@jax_computation(INT, INT)
def added(a, b):
    return a + b


@jax_computation(FLOAT, FLOAT)
def added_floats(a, b):
    return a + b


@jax_computation()
def no_float():
    return np.float32(0)


@jax_computation()
def no_int():
    return np.int32(0)


@pytest.fixture
def local():
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        yield


def test_a_decorated_function_is_a_computation_of_the_language() -> None:
    for found in (added, no_int):
        assert isinstance(found, fl.framework.ConcreteComputation)
        assert found.to_proto().WhichOneof("computation") == "xla"


@pytest.mark.parametrize(
    ("types", "function", "expected"),
    [
        ([], lambda: 1, "( -> int32)"),
        ([], lambda: np.float32(0), "( -> float32)"),
        ([INT], lambda x: jnp.add(x, 1), "(int32 -> int32)"),
        ([INT], lambda x: 10, "(int32 -> int32)"),
        ([INT, INT], lambda x, y: jnp.add(x, y), "(<int32,int32> -> int32)"),
        ([{"x": INT, "y": INT}], lambda x, y: x + y, "(<x=int32,y=int32> -> int32)"),
        ([TEN, INT], lambda y, x: x + jnp.sum(y), "(<int32[10],int32> -> int32)"),
        ([OrderedDict(y=TEN, x=INT)], lambda y, x: x + jnp.sum(y), "(<y=int32[10],x=int32> -> int32)"),
        ([fl.StructType([(None, INT)]), INT], lambda x, y: x[0] + y, "(<<int32>,int32> -> int32)"),
        ([[(INT,)]], lambda x: x[0][0], "(<<int32>> -> int32)"),
    ],
)
def test_types_follow_from_the_parameters_and_from_what_the_function_returns(types, function, expected) -> None:
    assert str(jax_computation(*types)(function).type_signature) == expected


def test_the_members_of_a_result_keep_their_order_and_container() -> None:
    @jax_computation(OrderedDict(foo=INT, bar=INT))
    def both(x):
        return OrderedDict(sum=x["foo"] + x["bar"], difference=x["bar"] - x["foo"])

    members = [("sum", INT), ("difference", INT)]
    assert both.type_signature.result == fl.StructWithPythonType(members, OrderedDict)


SCALARS = [np.bool_, np.int8, np.int16, INT, np.uint8, np.uint16, np.uint32, np.float16, FLOAT, np.complex64]
WIDE = [np.int64, np.uint64, np.float64, np.complex128]


@pytest.mark.parametrize("type_spec", [*SCALARS, ml_dtypes.bfloat16, fl.TensorType(INT, [3])])
def test_the_types_of_values_are_kept(type_spec) -> None:
    expected = type_spec if isinstance(type_spec, fl.TensorType) else fl.TensorType(type_spec)
    assert jax_computation(expected)(lambda x: x).type_signature == fl.FunctionType(expected, expected)


@pytest.mark.parametrize("dtype", WIDE)
def test_64_bits_are_kept_if_jax_computes_with_them_and_else_a_value_error(dtype) -> None:
    with pytest.raises(ValueError, match='call jax.config.update."jax_enable_x64", True. first'):
        jax_computation(dtype)(lambda x: (x, x))
    with jax_api.with_wide_types():
        assert jax_computation(dtype)(lambda x: x).type_signature == fl.FunctionType(dtype, dtype)


def test_strings_and_unknown_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected numbers in the types"):
        jax_computation(np.str_)(lambda x: (x, x))
    with pytest.raises(InvalidComputationError, match="Expected known sizes in the types"):
        jax_computation(fl.TensorType(INT, None))(lambda x: x + 10)


def test_types_are_given_where_the_function_is_decorated() -> None:
    # Elsewhere these are functions of any type, and functions without parameters.
    with pytest.raises(InvalidComputationError, match="one parameter type for each of the 1 parameters"):
        jax_computation()(lambda x: jnp.add(x, 1))
    with pytest.raises(InvalidComputationError, match="write @fedstack.jax_computation"):
        jax_computation(lambda: np.float32(0))


def test_computations_of_other_kinds_are_not_part_of_a_jax_function() -> None:
    federated = fl.federated_computation(lambda: fl.federated_value(1, fl.SERVER))
    with pytest.raises(ContextError, match="Expected an execution context"):
        jax_computation(FLOAT)(lambda x: federated() + x)


async def test_calls_return_results_in_asynchronous_contexts() -> None:
    async with fedstack.create_async_local_execution_context() as context:
        with fedstack.use_context(context):
            assert await added(1, 2) == 3


def test_calls_return_numpy_values(local) -> None:
    found = jax_computation(INT)(lambda x: [x + 1, jnp.arange(3) + x])(jnp.int32(1))
    assert (type(found[0]), found[0], type(found[1]), found[1].tolist()) == (INT, 2, np.ndarray, [1, 2, 3])


def test_jax_computations_are_the_parts_of_an_aggregation(local) -> None:
    identity = jax_computation(FLOAT)(lambda a: a)

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def aggregated(values):
        return fl.federated_aggregate(
            values, zero=no_float(), accumulate=added_floats, merge=added_floats, report=identity
        )

    assert aggregated([FLOAT(1), FLOAT(2), FLOAT(3)]) == 6.0


def test_jax_computations_reduce_sequences_alone_and_on_the_server(local) -> None:
    @fl.federated_computation(fl.SequenceType(INT))
    def reduced(x):
        return fl.sequence_reduce(x, no_int(), added)

    @fl.federated_computation(fl.FederatedType(fl.SequenceType(INT), fl.SERVER))
    def on_the_server(x):
        return fl.federated_map(reduced, x)

    assert reduced(list(range(10))) == 45
    assert on_the_server(list(range(10))) == 45


def test_sums_and_means_need_no_functions(local) -> None:
    # Elsewhere both raise an error.
    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def both(x):
        return fl.federated_sum(x), fl.federated_mean(x)

    assert tuple(both([1.0, 2.0, 3.0])) == (6.0, 2.0)
