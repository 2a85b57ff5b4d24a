"""Programs survive being written as functions of the language, sent, and read back."""

import itertools

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_computations import SLOW_IS_FINE, programs

import fedstack
from fedstack.computations.plan.graph import type_of
from fedstack.computations.plan.interpreter import run_once
from fedstack.computations.plan.plan import PlanCache
from fedstack.computations.plan.program import LeafSource, Program, ProgramStep, closed_program
from fedstack.computations.plan.program_ir import program_from_ir, program_to_ir
from fedstack.computations.plan.schedule import schedule
from fedstack.computations.plan.tasks import PhaseTask
from fedstack.computations.plan.trace import trace
from fedstack.computations.types.language import computation_pb2
from fedstack.errors import FedstackError, InvalidComputationError, UnsupportedIntrinsicError
from fedstack.executors import LeafExecutor, SequenceExecutor
from fedstack.testing.computation_builder import (
    as_expression,
    block,
    data,
    function,
    generic_zero,
    intrinsic,
    literal,
    reference,
    struct,
)

INT, FLOAT, TEXT = fl.TensorType(np.int32), fl.TensorType(np.float32), fl.TensorType(np.str_)
SEQUENCE = fl.SequenceType(np.int32)
PAIR = fl.StructType([("b", INT), ("a", FLOAT)])


@fedstack.python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


@fedstack.python_computation([], np.int32)
def five():
    return np.int32(5)


@fedstack.python_computation([PAIR], PAIR)
def flip(pair):
    return {"a": np.float32(pair.b), "b": np.int32(pair.a)}


@fedstack.python_computation([PAIR, INT], PAIR)
def gather(pair, x):
    return {"b": pair.b + x, "a": pair.a}


ADD, FIVE, FLIP, GATHER = map(as_expression, (add, five, flip, gather))


def resent(program: Program, inputs, results) -> Program:
    """Sends a program to another process, as far as that can be told here."""
    ir = computation_pb2.Computation.FromString(program_to_ir(program, inputs, results).SerializeToString())
    return program_from_ir(PlanCache().plan_content(ir), len(inputs))


def run(program: Program, inputs):
    executor = SequenceExecutor(LeafExecutor(max_concurrent_clients=1))
    found = run_once(executor.programs.link(program), inputs)
    executor.close()
    return bare(found)


def bare(payload):
    """Returns a payload in which streams have been read."""
    if isinstance(payload, tuple):
        return tuple(map(bare, payload))
    if isinstance(payload, np.ndarray):
        return payload.dtype, payload.shape, payload.tolist()
    if hasattr(payload, "__iter__") and not isinstance(payload, bytes):
        return [bare(element) for element in payload]
    return payload if isinstance(payload, bytes) else (payload.dtype, payload.item())


def survives(body, *arguments):
    """Sends the program of a function of some arguments, and returns what it gives there."""
    traced = trace(as_expression(body).proto)
    program = closed_program(traced)
    inputs = [traced.parameter.type] if traced.parameter is not None else []
    expected = run(program, arguments)
    once = resent(program, inputs, [type_of(traced.result)])
    assert run(once, arguments) == expected
    assert run(resent(once, inputs, [type_of(traced.result)]), arguments) == expected
    return expected[0]


def int32(x):
    return np.dtype(np.int32), x


def test_calls_of_leaves_survive():
    assert survives(function(lambda x: ADD(x, FIVE()), INT), np.int32(2)) == int32(7)


@pytest.mark.parametrize(
    ("value", "type_spec"),
    [
        (np.float32(0.1), FLOAT),
        (np.bool_(True), fl.TensorType(np.bool_)),
        (np.array([[1, 2]], np.uint8), fl.TensorType(np.uint8, [1, 2])),
        (np.zeros((0, 3), np.float64), fl.TensorType(np.float64, [0, 3])),
        (b"\0\xff", TEXT),
        (np.array([b"a", b""], np.object_), fl.TensorType(np.str_, [2])),
        (np.complex64(1 + 2j), fl.TensorType(np.complex64)),
    ],
)
def test_constants_survive(value, type_spec):
    dtype = np.str_ if type_spec.dtype.type is np.str_ else type_spec.dtype.type
    constant = literal(value, dtype, type_spec.shape)
    found = survives(function(lambda x: struct(x, constant), INT), np.int32(1))
    assert found[1] == bare(value)


def test_zeros_of_structs_survive():
    assert survives(function(lambda: generic_zero(PAIR))) == (int32(0), (np.dtype(np.float32), 0.0))


def test_a_program_without_inputs_survives():
    assert survives(function(lambda: ADD(FIVE(), FIVE()))) == int32(10)


def test_a_program_of_nothing_but_its_input_survives():
    assert survives(function(lambda x: x, PAIR), (np.int32(1), np.float32(2)))[0] == int32(1)


def test_members_are_found_however_deep_they_are():
    nested = fl.StructType([("x", fl.StructType([INT, fl.StructType([("y", INT), ("z", SEQUENCE)])]))])
    argument = ((np.int32(1), (np.int32(2), [np.int32(3)])),)
    body = function(lambda x: struct(x["x"][1]["z"], deep=struct(x["x"][1], x["x"][0])), nested)
    assert survives(body, argument) == ([int32(3)], ((int32(2), [int32(3)]), int32(1)))


SUMS = {
    "map": lambda s, x: intrinsic("sequence_map", function(lambda e: ADD(e, e), INT), s),
    "map that captures": lambda s, x: intrinsic("sequence_map", function(lambda e: ADD(e, x), INT), s),
    "map of structs": lambda s, x: intrinsic("sequence_map", function(lambda e: struct(a=e, b=x), INT), s),
    "reduce": lambda s, x: intrinsic("sequence_reduce", s, x, function(lambda total, e: ADD(total, e), INT, INT)),
    "reduce that captures": lambda s, x: intrinsic(
        "sequence_reduce", s, x, function(lambda total, e: ADD(ADD(total, e), x), INT, INT)
    ),
    "reduce of a map": lambda s, x: intrinsic(
        "sequence_reduce",
        intrinsic("sequence_map", function(lambda e: ADD(e, x), INT), s),
        x,
        function(lambda total, e: ADD(total, ADD(e, x)), INT, INT),
    ),
    "reduce inside of a map": lambda s, x: intrinsic(
        "sequence_map",
        function(lambda e: intrinsic("sequence_reduce", s, e, function(lambda a, b: ADD(ADD(a, b), x), INT, INT)), INT),
        s,
    ),
    "sum": lambda s, x: intrinsic("sequence_sum", s),
    "constant": lambda s, x: intrinsic("sequence_map", function(lambda e: literal(np.int32(9), np.int32), INT), s),
}


@pytest.mark.parametrize("name", SUMS)
def test_sequences_with_their_functions_survive(name):
    body = function(lambda s, x: SUMS[name](s, x), SEQUENCE, INT)
    survives(body, ([np.int32(1), np.int32(2), np.int32(3)], np.int32(10)))
    survives(body, ([], np.int32(10)))


def test_a_reduction_to_a_named_struct_survives():
    step = function(lambda total, e: struct(b=ADD(total["b"], e), a=total["a"]), PAIR, INT)
    body = function(lambda s, zero: intrinsic("sequence_reduce", s, zero, step), SEQUENCE, PAIR)
    argument = ([np.int32(1), np.int32(2)], (np.int32(10), np.float32(0.5)))
    assert survives(body, argument) == (int32(13), (np.dtype(np.float32), 0.5))
    leaf = function(lambda s, zero: intrinsic("sequence_reduce", s, zero, GATHER), SEQUENCE, PAIR)
    assert survives(leaf, argument) == (int32(13), (np.dtype(np.float32), 0.5))


@pytest.mark.parametrize("uri", ["generic_plus", "generic_multiply", "generic_divide"])
def test_operators_on_named_structs_survive(uri):
    nested = fl.StructType([("b", PAIR), ("a", [("c", INT)])])
    packed = function(lambda x: struct(b=struct(b=x["a"]["c"], a=x["b"]["a"]), a=struct(c=FIVE())), nested)
    body = function(lambda x: intrinsic(uri, x, packed(x)), nested)
    found = survives(body, ((np.int32(4), np.float32(0.5)), (np.int32(2),)))
    twice = function(
        lambda x: intrinsic("generic_plus", intrinsic("generic_multiply", packed(x), x), packed(x)), nested
    )
    assert survives(twice, ((np.int32(4), np.float32(0.5)), (np.int32(2),)))[1] == (int32(15),)
    assert len(found) == 2


def test_names_of_arguments_reach_the_leaf_that_asks_for_them():
    body = function(lambda x, y: FLIP(struct(b=x, a=y)), INT, FLOAT)
    assert survives(body, (np.int32(1), np.float32(2.0))) == (int32(2), (np.dtype(np.float32), 1.0))
    unnamed = function(lambda x: FLIP(x), PAIR)
    assert survives(unnamed, (np.int32(1), np.float32(2.0))) == (int32(2), (np.dtype(np.float32), 1.0))


def test_results_get_the_names_of_their_types():
    traced = trace(function(lambda x, y: struct(x, y), INT, FLOAT).proto)
    inputs = [traced.parameter.type]
    ir = program_to_ir(closed_program(traced), inputs, [PAIR])
    assert str(fl.Type.from_proto(ir.type)) == "(<<x=int32,y=float32>> -> <<b=int32,a=float32>>)"


def test_names_around_a_function_do_not_clash_with_those_inside():
    inner = function(lambda e: ADD(e, reference("inputs", INT)), INT, name="v1")
    body = function(lambda s: block([("inputs", FIVE())], intrinsic("sequence_map", inner, s)), SEQUENCE, name="arg1")
    assert survives(body, [np.int32(1)]) == [int32(6)]


def test_data_blocks_survive():
    traced = trace(function(lambda: struct(data("mnist", SEQUENCE), data("size", INT))).proto)
    found = resent(closed_program(traced), [], [type_of(traced.result)])
    assert [step.operation.computation.data.uri for step in found.steps] == ["mnist", "size"]


def test_what_nobody_needs_is_not_sent():
    body = function(lambda x: block([("unused", ADD(x, FIVE()))], x), INT)
    traced = trace(body.proto)
    assert "unused" not in str(program_to_ir(closed_program(traced), [INT], [INT]))
    assert resent(closed_program(traced), [INT], [INT]).steps == ()


def of_phases(computation):
    """Yields the programs of a computation with the types of their inputs and results."""
    for fuse in (True, False):
        for task in schedule(trace(computation), fuse=fuse).tasks:
            if isinstance(task, PhaseTask):
                phase = task.phase
                yield phase.program, phase.input_types, phase.result_types
                for fold in phase.folds:
                    for program, signature in zip(fold.functions, fold.signatures, strict=True):
                        yield program, signature.inputs, (signature.result,)


def drawn(type_spec):
    """Returns a strategy for small payloads of a type."""
    if isinstance(type_spec, fl.StructType):
        return st.tuples(*map(drawn, type_spec.children()))
    if isinstance(type_spec, fl.SequenceType):
        return st.lists(drawn(type_spec.element), max_size=3)
    if type_spec.shape:
        size = int(np.prod(type_spec.shape))
        flat = st.lists(st.integers(0, 2), min_size=size, max_size=size)
        return flat.map(lambda values: np.array(values, type_spec.dtype).reshape(type_spec.shape))
    return st.integers(0, 99).map(type_spec.dtype.type)


def outcome(program, inputs):
    try:
        return run(program, inputs)
    except FedstackError as error:
        return type(error)


def check_phases(program, more):
    computation = program[0]
    note(computation.to_building_block().formatted_representation())
    for found, inputs, results in itertools.islice(of_phases(computation.to_proto()), 8):
        sent = resent(found, inputs, results)
        payloads = more.draw(st.tuples(*map(drawn, inputs)))
        assert outcome(sent, payloads) == outcome(found, payloads)


@pytest.mark.long
@settings(max_examples=examples(40), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(programs(), st.data())
def test_what_clients_do_in_a_random_computation_means_the_same_elsewhere(program, more):
    check_phases(program, more)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=examples(2000), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(programs() | programs(fuel=8), st.data())
def test_what_clients_do_in_many_random_computations_means_the_same_elsewhere(program, more):
    check_phases(program, more)


def test_a_program_whose_sources_are_bound_is_not_written():
    executor = SequenceExecutor(LeafExecutor(max_concurrent_clients=1))
    program = executor.programs.link(closed_program(trace(ADD.proto)))
    with pytest.raises(InvalidComputationError, match="found the bound operation"):
        program_to_ir(program, [fl.StructType([INT, INT])], [INT])
    executor.close()


def test_a_constant_that_the_language_has_no_literal_for_is_not_written():
    program = closed_program(trace(function(lambda: generic_zero(SEQUENCE)).proto))
    with pytest.raises(InvalidComputationError, match="Expected a constant that can be written as a literal, found"):
        program_to_ir(program, [], [SEQUENCE])


@pytest.mark.parametrize(
    ("body", "inputs", "message"),
    [
        (function(lambda x: struct(x), INT), 1, "Expected the parameter to be a struct of inputs, found int32"),
        (function(lambda x: x[0], fl.StructType([INT])), 1, "the result to be a struct of results, found int32"),
        (function(lambda x: x, fl.StructType([INT])), 2, "Expected a function of 2 inputs, found a function of 1"),
        (function(lambda: struct(FIVE())), 1, "Expected a function of 1 inputs, found a function of 0"),
        (FIVE(), 0, "Expected the result to be a struct of results, found int32"),
        (
            function(
                lambda x: struct(intrinsic("federated_value_at_clients", x[0])),
                fl.StructType([INT]),
            ),
            1,
            "Expected only local work in a mapped function, found federated_value_at_clients",
        ),
    ],
)
def test_what_is_no_program_is_refused(body, inputs, message):
    with pytest.raises(InvalidComputationError) as caught:
        program_from_ir(trace(body.proto), inputs)
    assert message in str(caught.value)


def test_a_federated_value_that_is_only_passed_on_is_refused():
    body = function(lambda x: x, fl.StructType([fl.FederatedType(np.int32, fl.CLIENTS)]))
    with pytest.raises(
        InvalidComputationError, match="Expected a function of local values, found a function of federated values: <"
    ):
        program_from_ir(trace(body.proto), 1)


def test_a_program_is_read_once_and_kept_with_its_plan():
    traced = trace(function(lambda x: x, fl.StructType([INT])).proto)
    assert program_from_ir(traced, 1) is program_from_ir(traced, 1)


def test_an_intrinsic_that_the_reader_does_not_know_is_refused_by_name():
    program = closed_program(trace(function(lambda s: intrinsic("sequence_sum", s), SEQUENCE).proto))
    ir = program_to_ir(program, [SEQUENCE], [INT])
    written = ir.SerializeToString().replace(b"sequence_sum", b"sequence_sun")
    with pytest.raises(UnsupportedIntrinsicError, match="sequence_sun"):
        program_from_ir(trace(computation_pb2.Computation.FromString(written)), 1)


def test_leaves_are_sent_as_they_are():
    program = closed_program(trace(ADD.proto))
    ir = program_to_ir(program, [fl.StructType([INT, INT])], [INT])
    (step,) = program_from_ir(trace(ir), 1).steps
    assert isinstance(step, ProgramStep)
    assert isinstance(step.operation, LeafSource)
    assert step.operation.computation == ADD.proto
