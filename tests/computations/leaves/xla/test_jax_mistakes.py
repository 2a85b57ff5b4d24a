"""JAX functions inside others, and what users get wrong: narrowed values, callbacks, forks, loops of Python."""

import multiprocessing

import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedstack
from fedstack.errors import FedstackError, InvalidComputationError, LeafError, TypeMismatchError

FLOAT = np.float32


@fedstack.jax_computation((FLOAT, [3]))
def double(x):
    return x * 2


@fedstack.jax_computation()
def zero():
    return jnp.zeros(3)


@fedstack.jax_computation({"a": FLOAT, "b": FLOAT})
def difference(pair):
    return {"found": pair.a - pair["b"]}


@fedstack.jax_computation({"x": FLOAT, "y": FLOAT})
def ratio(x, y):
    return x / y


def locally(computation, *arguments):
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        return computation(*arguments)


def error_of(*types, function, **options) -> str:
    with pytest.raises((InvalidComputationError, FedstackError)) as caught:
        fedstack.jax_computation(*types, **options)(function)
    return str(caught.value)


def test_a_computation_is_part_of_others_whatever_its_arguments() -> None:
    assert locally(fedstack.jax_computation((FLOAT, [3]))(lambda x: x + zero()), np.ones(3, FLOAT)).tolist() == [
        1,
        1,
        1,
    ]
    assert jax.jit(lambda x: x + double(np.ones(3, FLOAT)))(np.ones(3, FLOAT)).tolist() == [3, 3, 3]
    summed = fedstack.jax_computation((FLOAT, [3]))(lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c + x, zero()))
    assert locally(summed, np.ones(3, FLOAT)).tolist() == [3, 3, 3]


def test_arguments_of_a_part_have_the_forms_that_they_have_outside() -> None:
    for call in (
        lambda x: difference({"a": 3 * x, "b": x}),
        lambda x: difference(a=3 * x, b=x),
        lambda x: difference([3 * x, x]),
    ):
        assert locally(fedstack.jax_computation(FLOAT)(call), 1.0) == {"found": 2.0}
    for call in (
        lambda x: ratio(6 * x, 3 * x),
        lambda x: ratio(x=6 * x, y=3 * x),
        lambda x: ratio({"x": 6 * x, "y": 3 * x}),
        lambda x: ratio((6 * x, 3 * x)),
    ):
        assert locally(fedstack.jax_computation(FLOAT)(call), 1.0) == 2.0
    assert jax.grad(lambda x: difference({"a": x, "b": 0.0})["found"])(1.0) == 1.0


def test_types_hold_inside_other_functions() -> None:
    found = error_of((FLOAT, [4]), function=lambda x: double(x))
    assert "Expected float32[3], found float32[4]; at arg; reshape it" in found
    assert "Expected float32[3], found int32[3]; at arg" in error_of((np.int32, [3]), function=lambda x: double(x))
    with pytest.raises(TypeMismatchError, match="found int32"):
        jax.jit(double)(jnp.ones(3, int))
    summed = fedstack.jax_computation(fl.SequenceType(FLOAT))(lambda s: s.scan(lambda a, b: a + b, 0.0))
    with pytest.raises(InvalidComputationError, match="since it has a sequence as a parameter"):
        jax.jit(summed)(jnp.ones(3))


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (np.int32, 2.5),
        (np.bool_, 5),
        (FLOAT, 1e300),
        (FLOAT, np.float64(0.1)),
        (np.int8, 300),
        (np.uint8, -1),
        ((FLOAT, [3]), np.zeros(3)),
    ],
)
def test_results_are_not_narrowed(declared, value) -> None:
    assert "at the result of '<lambda>'" in error_of(FLOAT, result_type=declared, function=lambda x: value)


def test_an_inferred_result_is_not_narrowed_either() -> None:
    found = error_of(FLOAT, function=lambda x: np.zeros(3))
    assert "found float64[3]: JAX computes with 32 bits" in found
    assert "return arrays of jax.numpy, or convert the result with astype" in found


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (lambda x: jax.debug.print("{}", x), "jax.debug."),
        (lambda x: jax.debug.callback(print, x), "jax.debug.callback"),
        (lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), FLOAT), x), "jax.pure_callback"),
        (
            lambda x: jax.lax.fori_loop(
                0, 3, lambda _, v: jax.experimental.io_callback(np.sin, jax.ShapeDtypeStruct((), FLOAT), v), x
            ),
            "jax.experimental.io_callback",
        ),
    ],
    ids=["print", "callback", "pure callback", "in a loop"],
)
def test_callbacks_are_refused_by_their_names_and_lines(call, operation) -> None:
    found = error_of(FLOAT, function=lambda x: (call(x), x)[1])
    assert f"consist of operations that XLA compiles, found {operation}" in found
    assert "remove it, or use fedstack.python_computation" in found
    assert found.count("  File ") == found.count("test_jax_mistakes.py") > 0


def test_a_value_of_another_trace_is_no_callback() -> None:
    kept: list[object] = []
    fedstack.jax_computation(FLOAT)(lambda x: (kept.append(x), x)[1])
    found = error_of(FLOAT, function=lambda x: x + kept[0])
    assert "found a value of another function that JAX has traced; let that function return the value" in found


def test_a_function_that_yields_returns_nothing_to_compile() -> None:
    def each(x):
        yield x

    assert "found 'each', which yields; write return in place of yield" in error_of(FLOAT, function=each)


def test_a_random_key_is_returned_as_its_data() -> None:
    assert "jax.random.key_data(key)" in error_of(FLOAT, function=lambda x: jax.random.key(0))


def test_types_are_also_accepted_as_a_list_or_by_name_and_counted_otherwise() -> None:
    def less(x, y):
        return x - y

    for types in ([FLOAT, (FLOAT, [2])], {"y": (FLOAT, [2]), "x": FLOAT}):
        assert str(fedstack.jax_computation(types)(less).type_signature.result) == "float32[2]"
    assert "for each of the 2 parameters of 'less', found 1; pass a list with one type per parameter" in error_of(
        FLOAT, function=less
    )
    wrong = error_of({"x": FLOAT, "z": FLOAT}, function=less)
    assert "Expected types for the parameters ['x', 'y'] of 'less', found types for ['x', 'z']" in wrong
    pair = fedstack.jax_computation([FLOAT, FLOAT])(lambda pair: pair[0] + pair[1])
    assert str(pair.type_signature.parameter) == "<float32,float32>"


def test_a_sequence_is_no_list() -> None:
    numbers = fl.SequenceType(FLOAT)
    assert "Expected scan(step, state)" in error_of(numbers, function=lambda s: sum(one for one in s))
    assert "Expected a comparison of length" in error_of(numbers, function=lambda s: 1.0 if s else 0.0)
    assert "or elements, whose arrays have a row for each element and then rows of zeros" in error_of(
        numbers, function=lambda s: s[0]
    )


STATE = {"w": (FLOAT, [2]), "n": np.int32}


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (lambda state, x: {"w": state["w"] + x, "n": state["n"]}, "dict('w': float32[2], 'n': int32[])"),
        (lambda state, x: jax.tree.map(lambda one: one + x, state), "AttributeDict('w': float32[2], 'n': float32[])"),
        (lambda state, x: (state, None), "tuple(AttributeDict('w': float32[2], 'n': int32[]), None)"),
        (lambda state, x: None, "None"),
    ],
    ids=["container", "dtype", "pair", "None"],
)
def test_the_states_of_a_loop_are_alike(step, found) -> None:
    told = error_of(STATE, fl.SequenceType(FLOAT), function=lambda state, numbers: numbers.scan(step, state)["w"])
    assert f"like the first one, AttributeDict('w': float32[2], 'n': int32[]), found {found}; return the same" in told
    assert "test_jax_mistakes.py" in told


def test_errors_in_the_step_of_a_loop_are_told_with_the_lines_of_users_only() -> None:
    def step(state, x):
        return state + x["missing"]

    told = error_of(fl.SequenceType({"a": FLOAT}), function=lambda numbers: numbers.scan(step, 0.0))
    assert "'<lambda>' raised KeyError: 'missing'" in told
    assert told.count("  File ") == told.count("test_jax_mistakes.py") == 2


@pytest.mark.parametrize(
    "function",
    [jnp.sum, len, lambda s: jax.lax.scan(lambda state, x: (state + x, None), 0.0, s)[0]],
    ids=["sum", "len", "scan"],
)
def test_a_sequence_is_no_array(function) -> None:
    told = error_of(fl.SequenceType(FLOAT), function=lambda numbers: function(numbers))
    assert "found a sequence; use its length, scan(step, state), or its elements, whose arrays have a row" in told
    assert "mask those from length on" in told


def test_a_loop_over_a_sequence_is_not_differentiated() -> None:
    def slope(x, numbers):
        return jax.grad(lambda x: numbers.scan(lambda state, number: state + x * number, 0.0))(x)

    told = error_of(FLOAT, fl.SequenceType(FLOAT), function=slope)
    assert "found a loop over a sequence" in told
    assert "differentiate inside of the step" in told


def test_a_function_that_is_traced_calls_no_other_computations() -> None:
    @fl.federated_computation(fl.FederatedType((FLOAT, [3]), fl.CLIENTS))
    def total(rows):
        return fl.federated_sum(fl.federated_map(double, rows))

    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        told = error_of((FLOAT, [3]), function=lambda x: x + total([np.ones(3, FLOAT)]))
    # JAX 0.5 traces the call as well, and has no array for its result.
    refusal = (
        "'double' raised TracerArrayConversionError" if jax.__version__.startswith("0.5.") else "found one that calls"
    )
    assert refusal in told


def test_functions_of_numpy_are_not_called_in_those_of_jax() -> None:
    plain = fedstack.python_computation(FLOAT, FLOAT)(lambda x: x)
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        told = error_of(FLOAT, function=lambda x: plain(x))
    assert "Tracer; at arg; call jax.jit" in told
    assert "or decorate it with fedstack.jax_computation" in told


@pytest.mark.slow
def test_an_error_of_a_traced_function_says_nothing_of_frames_of_jax() -> None:
    with pytest.raises(LeafError, match="'first' raised IndexError") as caught:

        @fedstack.jax_computation(FLOAT)
        def first(x):
            return x[0]

    assert "internal frames" not in str(caught.value)
    assert not getattr(caught.value, "__notes__", [])


def test_many_sizes_take_bounded_memory() -> None:
    total = fedstack.jax_computation((FLOAT, [None]))(lambda x: jnp.sort(x).sum())
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert [int(total(np.ones(rows, FLOAT))) for rows in range(1, 70)] == list(range(1, 70))
        assert total(np.ones(1, FLOAT)) == 1


def _in_child(connection) -> None:
    try:
        connection.send(str(locally(double, np.ones(3, FLOAT))))
    except FedstackError as error:
        connection.send(str(error))


def test_a_forked_child_gets_an_error_in_place_of_a_hang() -> None:
    assert locally(double, np.ones(3, FLOAT)).tolist() == [2, 2, 2]
    context = multiprocessing.get_context("fork")
    mine, others = context.Pipe()
    child = context.Process(target=_in_child, args=(others,))
    child.start()
    try:
        assert mine.poll(30), "the child hangs"
        assert "JAX does not work in a process that was forked after JAX was imported" in mine.recv()
    finally:
        child.kill()
        child.join()
        mine.close()
        others.close()


ROWS = (FLOAT, [None, 4])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(len(x), 2, 2).sum(),
        lambda x: sum(x[i].sum() for i in range(x.shape[0])),
        lambda x: x.sum() if x.shape[0] > 3 else x.mean(),
        lambda x: x.sum() / np.sqrt(x.shape[0]),
    ],
    ids=["len", "range", "comparison", "NumPy"],
)
def test_a_size_that_is_not_known_is_no_number(function) -> None:
    found = error_of(ROWS, function=function)
    assert "Expected '<lambda>' to compute with arrays whose numbers of rows are not known yet, found " in found
    assert "test_jax_mistakes.py" in found
    assert "use x.shape[0] in computations and -1 in shapes in place of len(x)" in found


def test_what_jax_says_about_arrays_is_a_type() -> None:
    def model():
        return {"b": [jnp.zeros(2), jnp.ones((), jnp.int32)], "a": jnp.zeros((3, 2))}

    expected = fl.to_type({"b": [(FLOAT, [2]), np.int32], "a": (FLOAT, [3, 2])})
    described = jax.eval_shape(model)
    assert set(described) == {"a", "b"}
    found = fedstack.jax_computation({"b": described["b"], "a": described["a"]})(lambda model: model["b"][1])
    assert str(found.type_signature.parameter) == str(expected)
    one = jax.ShapeDtypeStruct((3,), jnp.float32)
    pair = fedstack.jax_computation(one, one, result_type=one)(lambda x, y: x + y)
    assert str(pair.type_signature) == "(<float32[3],float32[3]> -> float32[3])"
    for strange in (jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((3,), jnp.int4)):
        with pytest.raises(InvalidComputationError, match="pass a random key as jax.random.key_data"):
            fedstack.jax_computation(strange)(lambda key: 1.0)
