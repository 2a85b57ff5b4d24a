"""Tracing runs a computation on symbols; what is left are calls of leaves and intrinsics, or an error that says why."""

import functools
import gc
import weakref

import federated_language as fl
import federated_language.framework as ir
import numpy as np
import pytest
from federated_language.compiler import intrinsic_defs
from federated_language.proto import computation_pb2
from google.protobuf.message import DecodeError

import fedstack
from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.computations.plan.graph import (
    Callee,
    Constant,
    DataNode,
    IntrinsicCall,
    LeafCall,
    Pack,
    Selection,
    members_of,
    type_of,
)
from fedstack.computations.plan.intrinsics import GENERIC_ZERO, INTRINSICS, checked_type, find_intrinsic
from fedstack.computations.plan.trace import trace
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.errors import (
    CarrierError,
    InvalidComputationError,
    ResourceLimitError,
    TypeMismatchError,
    UnsupportedIntrinsicError,
)
from fedstack.proto import carriers_pb2
from fedstack.testing.computation_builder import (
    Expression,
    as_expression,
    at_clients,
    at_server,
    block,
    computation,
    data,
    function,
    generic_zero,
    intrinsic,
    intrinsic_function,
    literal,
    reference,
    struct,
)

INT = fl.TensorType(np.int32)
FUNCTION = fl.FunctionType(INT, INT)
CLIENTS = at_clients(INT)


@python_computation([np.int32], np.int32)
def increment(x):
    return x + np.int32(1)


@python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


FLOAT = literal(np.float32(1), np.float32)


def number(value):
    return literal(np.int32(value), np.int32)


def traced(body, *types):
    return trace(computation(body, *types).to_proto())


def kinds(traced_function):
    return [type(node) for node in traced_function.nodes]


def called(traced_function):
    """Lists the leaves that a function calls, by the names in their handles."""
    leaves = [node for node in traced_function.nodes if isinstance(node, LeafCall)]
    # Parsed, not searched: the random identity of the process is hexadecimal, and some of those have an "add".
    handles = [carriers_pb2.PythonHandle.FromString(leaf.computation.data.content.value) for leaf in leaves]
    return [handle.name.rpartition(".")[2] for handle in handles]


# What is left of functions.


def test_a_lambda_that_is_called_leaves_only_what_its_body_calls():
    inner = function(lambda y: as_expression(increment)(y), INT)
    found = traced(lambda x: inner(inner(x)), INT)
    assert kinds(found) == [LeafCall, LeafCall]
    assert found.nodes[0].argument is found.parameter
    assert found.nodes[1].argument is found.nodes[0]
    assert found.result is found.nodes[1]


def test_a_graph_that_nobody_needs_is_freed_without_the_garbage_collector():
    """What is in it, the code of functions say, may be any number of bytes."""
    leaf = python_computation([np.int32], np.int32)(lambda x: x)
    clients = fl.FederatedType(np.int32, fl.CLIENTS)
    computation = fl.federated_computation(lambda xs: fl.federated_sum(fl.federated_map(leaf, xs)), clients)
    gc.disable()
    try:
        function = trace(computation.to_proto())
        nodes = [weakref.ref(node) for node in function.nodes]
        nodes += [weakref.ref(node) for call in function.nodes for inner in call.functions for node in inner.nodes]
        assert any(isinstance(node(), LeafCall) for node in nodes)
        del function
        assert [node() for node in nodes] == [None] * len(nodes)
    finally:
        gc.enable()


def test_a_curried_function_meets_its_arguments():
    curried = function(lambda x: function(lambda y: as_expression(add)(x, y), INT), INT)
    found = traced(lambda a, b: curried(b)(a), INT, INT)
    assert called(found) == ["add"]
    argument = next(node for node in found.nodes if isinstance(node, LeafCall)).argument
    assert [node.position for node in argument.members] == [1, 0]


def test_a_functional_parameter_meets_its_function():
    twice = function(lambda f, x: f(f(x)), FUNCTION, INT)
    found = traced(lambda x: twice(increment, x), INT)
    assert called(found) == ["increment", "increment"]


def test_a_function_that_a_function_returns_keeps_what_it_has_captured():
    maker = function(lambda x: function(lambda y: as_expression(add)(x, y), INT, name="x"), INT, name="y")
    found = traced(lambda x: maker(as_expression(increment)(x))(x), INT)
    assert called(found) == ["increment", "add"]
    leaf = found.nodes[-1]
    assert leaf.argument.members == (found.nodes[0], found.parameter)


def test_a_function_in_a_struct_can_be_selected_and_called():
    found = traced(lambda x: struct(increment, x)[0](struct(increment, x)[1]), INT)
    assert called(found) == ["increment"]


def test_a_mapped_function_captures_the_nodes_around_it_that_it_uses():
    def body(clients, server):
        k = reference("k", INT)
        mapped = intrinsic("federated_map", function(lambda v: as_expression(add)(v, k), INT), clients)
        return block([("k", as_expression(increment)(server))], mapped)

    found = traced(body, CLIENTS, INT)
    mapped = found.nodes[-1]
    assert isinstance(mapped, IntrinsicCall)
    (inner,) = mapped.functions
    assert called(inner) == ["add"]
    assert inner.captures == [node for node in found.nodes if isinstance(node, LeafCall)]


def test_a_mapped_function_captures_only_the_member_that_it_uses():
    pair = fl.StructType([("a", INT), ("b", INT)])
    mapped = traced(
        lambda clients, both: intrinsic(
            "federated_map", function(lambda v: as_expression(add)(v, both["b"]), INT), clients
        ),
        CLIENTS,
        pair,
    ).nodes[-1]
    (capture,) = mapped.functions[0].captures
    assert isinstance(capture, Selection)
    assert capture.position == 1


def test_the_same_leaf_called_twice_is_two_calls():
    # A Python function may be random: calling it once for both would be another computation.
    found = traced(lambda x: struct(as_expression(increment)(x), as_expression(increment)(x)), INT)
    assert called(found) == ["increment", "increment"]


def test_a_local_that_is_used_twice_is_one_call():
    found = traced(
        lambda x: block([("y", as_expression(increment)(x))], struct(reference("y", INT), reference("y", INT))), INT
    )
    assert called(found) == ["increment"]
    assert found.result.members == (found.nodes[0], found.nodes[0])


# What never runs.


def test_an_unused_local_leaves_no_node():
    found = traced(lambda x: block([("unused", as_expression(increment)(x)), ("y", x)], reference("y", INT)), INT)
    assert found.nodes == []
    assert found.result is found.parameter


def test_a_local_that_only_an_unused_local_needs_leaves_no_node():
    locals_ = [("first", number(1)), ("second", as_expression(increment)(reference("first", INT)))]
    assert traced(lambda x: block(locals_, x), INT).nodes == []


@pytest.mark.parametrize(
    "unused",
    [reference("nobody", INT), data("nowhere", INT), intrinsic_function("no_such", INT, INT)(number(1))],
)
def test_what_is_wrong_with_an_unused_local_never_shows(unused):
    assert traced(lambda x: block([("unused", unused)], x), INT).nodes == []


def test_what_only_an_unselected_member_or_an_ignored_argument_needs_is_not_among_the_nodes():
    ignore = function(lambda x, y: x, INT, INT)
    costly = as_expression(increment)
    assert LeafCall not in kinds(traced(lambda x: struct(costly(x), x)[1], INT))
    assert LeafCall not in kinds(traced(lambda x: ignore(x, costly(x)), INT))


# Names.


def test_a_name_stands_for_its_innermost_binding():
    one, two = number(1), number(2)
    x = reference("x", INT)
    inner = block([("x", two)], x)
    found = traced(lambda _: block([("x", one)], struct(x, inner, x)), INT)
    assert [member.payload for member in found.result.members] == [1, 2, 1]


def test_a_later_local_of_the_same_name_does_not_change_what_a_function_before_it_has_captured():
    x = reference("x", INT)
    locals_ = [
        ("x", number(1)),
        ("f", function(lambda y: struct(x, y), INT)),
        ("x", number(2)),
    ]
    found = traced(lambda _: block(locals_, reference("f", fl.FunctionType(INT, [INT, INT]))(x)), INT)
    assert [member.payload for member in found.result.members] == [1, 2]


def test_a_local_may_use_the_earlier_one_of_its_own_name():
    x = reference("x", INT)
    increments = [("x", as_expression(increment)(x))] * 3
    found = traced(lambda arg: block([("x", arg), *increments], x), INT)
    assert called(found) == ["increment"] * 3
    assert found.result is found.nodes[-1]


def test_a_function_sees_the_names_where_it_was_made_and_not_where_it_is_called():
    x = reference("x", INT)
    maker = block([("x", number(1))], function(lambda y: struct(x, y), INT))
    found = traced(lambda _: block([("f", maker), ("x", number(2))], reference("f", maker.type)(x)), INT)
    assert [member.payload for member in found.result.members] == [1, 2]


# Values.


def test_a_literal_is_a_constant_of_exactly_its_type():
    found = traced(lambda x: literal(np.array([1.5, 2.5], np.float32), np.float32, [2]), INT)
    assert kinds(found) == [Constant]
    payload = found.nodes[0].payload
    assert payload.dtype == np.float32
    assert payload.tolist() == [1.5, 2.5]
    assert not payload.flags.writeable


def test_a_literal_that_is_not_of_its_type_is_refused():
    wrong = literal(np.float32(1.5), np.float32).proto
    wrong.type.CopyFrom(INT.to_proto())
    with pytest.raises(TypeMismatchError, match=r"Expected int32, found float32 1\.5; at the literal"):
        traced(lambda x: Expression(INT, wrong), INT)


def test_data_that_is_no_function_is_a_node():
    assert kinds(traced(lambda x: data("somewhere", INT), INT)) == [DataNode]


def test_generic_zero_is_a_constant_and_a_federated_one_is_placed():
    plain = traced(lambda x: generic_zero([("a", np.int32), ("b", (np.float32, [2]))]), INT)
    assert kinds(plain) == [Constant]
    assert plain.nodes[0].payload[0] == 0
    placed = traced(lambda x: generic_zero(at_server(INT)), INT)
    assert placed.result.uri == "federated_value_at_server"
    assert placed.result.type == at_server(INT)


@pytest.mark.parametrize(
    ("operand", "uris"),
    [
        (CLIENTS, ["federated_zip_at_clients", "federated_map"]),
        (at_clients(INT, True), ["federated_zip_at_clients", "federated_map_all_equal"]),
        (at_server(INT), ["federated_zip_at_server", "federated_apply"]),
    ],
)
def test_a_generic_operator_on_federated_values_is_a_map_over_their_zip(operand, uris):
    found = traced(lambda x, y: intrinsic("generic_plus", x, y), operand, operand)
    calls = [node for node in found.nodes if isinstance(node, IntrinsicCall)]
    assert [node.uri for node in calls] == uris
    (inner,) = calls[1].functions[0].nodes[-1:]
    assert inner.uri == "generic_plus"


def test_a_computation_that_is_no_function_becomes_a_function_without_parameter():
    found = trace(as_expression(increment)(number(1)).proto)
    assert found.parameter is None
    assert kinds(found) == [Constant, LeafCall]
    assert found.type == fl.FunctionType(None, INT)


def test_the_type_of_a_traced_function_has_the_names_of_what_it_returns():
    found = traced(lambda x: struct(a=x, b=struct(x, x)), INT)
    assert isinstance(found.result, Pack)
    assert found.type == fl.FunctionType(INT, [("a", INT), ("b", fl.StructType([INT, INT]))])
    assert type_of(members_of(found.result, 2)[1]) == fl.StructType([INT, INT])


def test_a_selection_is_made_once_for_all_who_use_it():
    pair = fl.StructType([INT, INT])
    found = traced(lambda x: struct(as_expression(increment)(x[0]), as_expression(increment)(x[0])), pair)
    assert kinds(found) == [Selection, LeafCall, LeafCall]


# Long and deep computations.


def chain(length, step):
    """Returns a flat block whose locals each use the one before."""

    def body(x):
        locals_ = [("v0", x)]
        for index in range(length):
            locals_.append((f"v{index + 1}", step(reference(f"v{index}", x.type))))
        return block(locals_, reference(f"v{length}", x.type))

    return body


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "type_spec", "argument", "result"),
    [
        (lambda v: intrinsic("federated_map", increment, v), CLIENTS, [0, 5], [1000, 1005]),
        (lambda v: intrinsic("federated_apply", increment, v), at_server(INT), 5, 1005),
        (lambda v: as_expression(increment)(v), INT, 5, 1005),
        (lambda v: as_expression(add)(v, number(1)), INT, 5, 1005),
    ],
    ids=["maps", "applies", "calls", "calls with two arguments"],
)
def test_a_chain_of_1000_operations_is_traced_and_run(fedstack_context, step, type_spec, argument, result):
    chained = computation(chain(1000, step), type_spec)
    assert len([n for n in trace(chained.to_proto()).nodes if isinstance(n, (LeafCall, IntrinsicCall))]) == 1000
    for _ in range(2):  # the second time it is known to be cheap, and is driven in another way
        assert chained(argument) == result


@pytest.mark.slow
def test_a_chain_of_300_rounds_is_traced_and_run():
    def one_round(v):
        shared = intrinsic("federated_broadcast", v, result_type=at_clients(INT, True))
        return intrinsic("federated_max", intrinsic("federated_map", increment, shared))

    chained = computation(chain(300, one_round), at_server(INT))
    context = fedstack.create_sync_local_execution_context(default_num_clients=2)
    with fedstack.use_context(context):
        assert chained(5) == 305
        assert chained(5) == 305
    context.close()


def test_a_chain_in_which_each_value_needs_the_two_before_is_traced_and_run(fedstack_context):
    def body(x):
        locals_ = [("v0", x), ("v1", x)]
        for index in range(500):
            operands = (reference(f"v{index}", INT), reference(f"v{index + 1}", INT))
            locals_.append((f"v{index + 2}", as_expression(difference)(*operands)))
        return block(locals_, reference("v501", INT))

    before, last = 3, 3
    for _ in range(500):
        before, last = last, before - last
    wrapped = (last + 2**31) % 2**32 - 2**31
    long = computation(body, INT)
    for _ in range(2):
        assert long(3) == wrapped


@python_computation([np.int32, np.int32], np.int32)
def difference(x, y):
    return np.subtract(np.int64(x), np.int64(y)).astype(np.int32)


def test_47_nested_calls_are_traced_and_run(fedstack_context):
    def nested(x):
        for _ in range(47):
            x = as_expression(increment)(x)
        return x

    assert computation(nested, INT)(0) == 47


@pytest.mark.long
def test_13_computations_that_call_each_other_are_traced_and_run(fedstack_context):
    def calls_twice(inner):
        return fl.federated_computation(lambda x: inner(inner(x)), INT)

    outermost = increment
    for _ in range(12):
        outermost = calls_twice(outermost)
    assert len(trace(outermost.to_proto()).nodes) == 2**12
    assert outermost(0) == 2**12


@pytest.mark.long
@pytest.mark.parametrize("depth", [50, 1000, 10_000])
def test_functions_that_call_each_other_deeply_run_or_are_refused(fedstack_context, depth):
    deep = computation(functions(depth, calls=1), INT)
    if depth == 50:
        assert deep(0) == 1
    else:
        with pytest.raises(ResourceLimitError, match="nested more deeply than Python's"):
            deep(0)


def functions(count, calls):
    """Returns a flat block of functions, each of which calls the one before so many times."""

    def body(x):
        locals_ = [("f0", as_expression(increment))]
        for index in range(count):
            before = reference(f"f{index}", FUNCTION)

            def repeated(y, before=before):
                for _ in range(calls):
                    y = before(y)
                return y

            locals_.append((f"f{index + 1}", function(repeated, INT)))
        return block(locals_, reference(f"f{count}", FUNCTION)(x))

    return body


def test_functions_that_unfold_into_too_much_are_refused(fedstack_context):
    assert WorkScope().max_steps == 1_000_000
    with WorkScope(max_steps=20_000).entered():
        with pytest.raises(ResourceLimitError, match="at most 20000 steps after its calls are unfolded"):
            computation(functions(40, calls=2), INT)(0)


def test_structs_that_unfold_into_too_much_are_refused():
    # Their types lie, or the message could not be written down.
    pair = struct(reference("x", INT), reference("x", INT))
    pair.proto.type.CopyFrom(INT.to_proto())
    doubled = Expression(INT, pair.proto)
    with pytest.raises(ResourceLimitError, match="structs of at most 50000 members, found a struct of 65536 members"):
        traced(lambda x: block([("x", x), *[("x", doubled)] * 40], reference("x", INT)), INT)


# What is refused.


def test_a_computation_that_returns_a_function_is_refused_with_advice(fedstack_context):
    returns = computation(lambda x: function(lambda y: as_expression(add)(x, y), INT), INT)
    with pytest.raises(InvalidComputationError, match=r"a result of type .*; call the function in"):
        returns(1)
    inside = computation(lambda x: struct(x, increment), INT)
    with pytest.raises(InvalidComputationError, match="Expected a computation whose result contains no function"):
        inside(1)


@pytest.mark.parametrize("signature", [FUNCTION, fl.StructType([("x", INT), ("f", FUNCTION)])])
def test_a_computation_that_takes_a_function_is_refused_with_advice(fedstack_context, signature):
    takes = computation(lambda x: number(1), signature)
    with pytest.raises(InvalidComputationError, match=r"parameter contains no function, .*; call the computation in"):
        trace(takes.to_proto())
    with pytest.raises(InvalidComputationError, match=r"function"):
        fedstack_context._driver.run(fedstack_context._invoker.invoke(takes, increment), inline=True)


def selected(source, index):
    """Returns a selection that the builder would refuse to make."""
    selection = computation_pb2.Selection(source=source.proto, index=index)
    return Expression(INT, computation_pb2.Computation(type=INT.to_proto(), selection=selection))


NOTHING = Expression(INT, computation_pb2.Computation(type=INT.to_proto()))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (lambda x: reference("nobody", INT), InvalidComputationError, "found the unbound name 'nobody'"),
        (lambda x: intrinsic_function("guess", INT, INT)(x), UnsupportedIntrinsicError, "found 'guess'; use one of "),
        (
            lambda x: Expression(FUNCTION, x.proto)(x),
            InvalidComputationError,
            "function to call, found a value of type",
        ),
        (lambda x: NOTHING, InvalidComputationError, "found a computation of unknown kind"),
        (lambda x: as_expression(add)(x), TypeMismatchError, "Expected <int32,int32>, found int32; at arg"),
        (lambda x: as_expression(add)(x, FLOAT), TypeMismatchError, r"Expected int32, found float32; at arg\[1\]"),
        (lambda x: as_expression(increment)(), TypeMismatchError, "of type int32, found no argument"),
        (lambda x: selected(x, 0), TypeMismatchError, "to select from, found a value of type int32"),
        (
            lambda x: selected(struct(x), 1),
            TypeMismatchError,
            "Expected an index from 0 to 0 in a selection from .*, found 1",
        ),
        (
            lambda x: selected(struct(x), -1),
            TypeMismatchError,
            "Expected an index from 0 to 0 in a selection from .*, found -1",
        ),
    ],
)
def test_what_cannot_be_executed_is_refused_by_name(fedstack_context, body, error, message):
    with pytest.raises(error, match=message):
        computation(body, INT)(1)


def test_an_early_use_of_a_local_is_refused_as_unbound():
    late = block([("y", reference("x", INT)), ("x", number(1))], reference("y", INT))
    with pytest.raises(InvalidComputationError, match="the unbound name 'x'; bind it in a block or a lambda"):
        traced(lambda _: late, INT)


@pytest.mark.parametrize(
    ("uri", "parameter", "result", "message"),
    [
        (
            "federated_sum",
            CLIENTS,
            at_server(np.float32),
            "Expected federated_sum to be declared as returning int32@SERVER, found",
        ),
        ("federated_sum", CLIENTS, CLIENTS, "Expected federated_sum to be declared as returning int32@SERVER"),
        (
            "federated_sum",
            at_server(INT),
            at_server(INT),
            "Expected a value placed at CLIENTS, found a value of type int32@SERVER",
        ),
        ("federated_sum", at_clients(np.bool_), at_server(np.bool_), "Expected numbers to sum, found bool"),
        ("federated_mean", CLIENTS, at_server(INT), "complex numbers for a mean, found int32"),
        ("federated_min", at_clients(np.str_), at_server(np.str_), "integers or floating-point numbers, found str"),
        (
            "federated_broadcast",
            at_server(INT),
            at_clients(np.int64, True),
            "Expected federated_broadcast to be declared as returning",
        ),
        ("federated_map", [fl.FunctionType(np.float32, INT), CLIENTS], CLIENTS, "Expected a function of int32"),
        ("federated_map", [INT, CLIENTS], CLIENTS, "Expected a function, found int32"),
        ("federated_map", CLIENTS, CLIENTS, "Expected a struct of 2 arguments for federated_map"),
        ("federated_map_all_equal", [FUNCTION, CLIENTS], at_clients(INT, True), "Expected an all-equal value"),
        ("federated_zip_at_clients", [INT, CLIENTS], CLIENTS, "Expected a value placed at CLIENTS, found a value"),
        (
            "federated_zip_at_server",
            fl.StructType([]),
            at_server(fl.StructType([])),
            "Expected at least one value placed at SERVER",
        ),
        (
            "federated_secure_sum",
            [at_clients(np.float32), INT],
            at_server(np.float32),
            "Expected integers to sum securely",
        ),
        (
            "federated_select",
            [CLIENTS, at_server(INT), at_server(INT), FUNCTION],
            CLIENTS,
            r"Expected keys of type int32\[N\]",
        ),
        ("sequence_map", [FUNCTION, INT], INT, "Expected a sequence, found int32"),
        ("generic_plus", [INT, np.int64], INT, "Expected two arguments of type int32, found int64"),
        ("federated_value_at_server", at_server(INT), at_server(INT), "a value without federated parts, found int"),
    ],
)
def test_an_intrinsic_with_a_type_that_it_cannot_have_is_refused(uri, parameter, result, message):
    with pytest.raises(TypeMismatchError, match=message) as caught:
        checked_type(find_intrinsic(uri), fl.FunctionType(parameter, result))
    assert uri in str(caught.value)


def test_an_intrinsic_with_a_type_that_it_cannot_have_is_refused_in_a_computation(fedstack_context):
    lie = intrinsic_function("federated_sum", CLIENTS, at_server(np.int64))
    with pytest.raises(TypeMismatchError, match="federated_sum to be declared as returning int32@SERVER, found"):
        computation(lambda x: lie(x), CLIENTS)([1, 2])


def test_a_federated_operator_inside_a_mapped_function_is_refused_with_advice(fedstack_context):
    inner = function(lambda v: intrinsic("federated_value_at_server", v), INT)
    applied = function(
        lambda v: block([("ignored", inner(v))], struct(reference("ignored", at_server(INT)), v)[1]), INT
    )
    # As long as nobody needs it, it does no harm.
    assert computation(lambda c: intrinsic("federated_map", applied, c), CLIENTS)([1, 2]) == [1, 2]

    def used(v):
        return intrinsic("federated_sum", intrinsic("federated_value_at_clients", v))

    nested = Expression(fl.FunctionType(INT, INT), function(used, INT).proto)
    with pytest.raises((InvalidComputationError, TypeMismatchError)):
        computation(lambda c: intrinsic("federated_map", nested, c), CLIENTS)([1, 2])


@pytest.mark.parametrize("type_spec", [INT, FUNCTION])
def test_data_of_an_unknown_kind_is_refused_when_it_is_needed(fedstack_context, type_spec):
    named = data("s3://somewhere", type_spec)
    named.proto.data.content.type_url = "type.googleapis.com/somebody.Else"
    body = (lambda x: named(x)) if type_spec is FUNCTION else lambda x: as_expression(add)(x, named)
    with pytest.raises(CarrierError, match=r"somebody\.Else"):
        computation(body, INT)(1)


def test_a_type_that_the_language_does_not_know_is_refused(fedstack_context):
    strange = computation_pb2.Type()
    strange.tensor.dtype = 77
    with pytest.raises(InvalidComputationError, match="The language rejects the type: "):
        type_from_proto(strange)
    with pytest.raises(InvalidComputationError, match="Expected a type of Federated Language"):
        type_from_proto(computation_pb2.Type())


def test_a_leaf_with_federated_parts_is_refused():
    impossible = as_expression(increment).proto
    impossible.type.CopyFrom(fl.FunctionType(CLIENTS, CLIENTS).to_proto())
    with pytest.raises(InvalidComputationError, match="Expected a leaf computation without federated types"):
        traced(lambda x: Expression(fl.FunctionType(CLIENTS, CLIENTS), impossible)(x), CLIENTS)


def test_a_result_of_another_type_than_declared_is_refused():
    lie = function(lambda x: x, INT)
    lie.proto.type.CopyFrom(fl.FunctionType(INT, np.float32).to_proto())
    with pytest.raises(TypeMismatchError, match="Expected float32, found int32; at result"):
        trace(lie.proto)


def test_the_language_itself_refuses_what_nests_too_deeply_for_a_message():
    def calls(inner):
        return fl.federated_computation(lambda x: inner(x), INT)

    with pytest.raises(DecodeError):
        functools.reduce(lambda inner, _: calls(inner), range(100), increment)


def test_every_intrinsic_of_the_language_is_known():
    uris = {value.uri for value in vars(intrinsic_defs).values() if isinstance(value, ir.IntrinsicDef)}
    assert uris == {*INTRINSICS, GENERIC_ZERO}


def test_a_function_that_nobody_calls_is_no_node():
    found = traced(lambda x: struct(x, function(lambda y: y, INT))[0], INT)
    assert found.nodes == []
    assert not isinstance(found.result, Callee)
