"""The decorator of leaf computations keeps the contract of the language's own example: what goes in, what comes out."""

import collections
import functools
import gc
import inspect
import math
import pydoc
import re
import warnings
import weakref

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.python_computation import PythonComputation
from fedstack.computations.leaves.python_functions import registry
from fedstack.computations.values.records import Record
from fedstack.errors import (
    CarrierError,
    InvalidComputationError,
    InvalidValueError,
    LeafError,
    ResourceLimitError,
    TypeMismatchError,
)

INT, FLOAT = fl.TensorType(np.int32), fl.TensorType(np.float32)
PAIR = fl.StructType([("b", INT), ("a", INT)])
Named = collections.namedtuple("Named", ["b", "a"])

pytestmark = pytest.mark.usefixtures("fedstack_context")


def leaf(parameter_types=None, result_type=None):
    return fedstack.python_computation(parameter_types, result_type)


# Parameter types.


def test_a_sequence_has_one_type_per_parameter():
    add = leaf([np.int32, np.int32], np.int32)(lambda x, y: x + y)
    assert str(add.type_signature) == "(<int32,int32> -> int32)"
    assert add(1, 2) == 3


@pytest.mark.parametrize("types", [[np.float32], (np.float32,), np.float32, FLOAT, {"x": np.float32}])
def test_a_single_parameter_is_not_wrapped_in_a_struct(types):
    halve = leaf(types, np.float32)(lambda x: x / 2)
    assert halve.type_signature == fl.FunctionType(FLOAT, FLOAT)
    assert halve(3.0) == 1.5


def test_a_mapping_has_the_types_by_the_names_of_the_parameters():
    scale = leaf({"factor": np.float32, "x": np.int32}, np.float32)(lambda x, factor: np.float32(x * factor))
    assert str(scale.type_signature) == "(<x=int32,factor=float32> -> float32)"
    assert scale(2, 1.5) == scale(factor=1.5, x=2) == 3.0


def test_pairs_of_names_and_types_are_given_by_name():
    scale = leaf([("factor", np.float32), ("x", np.int32)], np.float32)(lambda x, factor: np.float32(x - factor))
    assert str(scale.type_signature) == "(<factor=float32,x=int32> -> float32)"
    assert scale(1.5, 2) == 0.5


@pytest.mark.parametrize("types", [None, [], (), {}])
def test_a_function_without_parameters_has_none_in_its_type(types):
    seven = leaf(types, np.int32)(lambda: np.int32(7))
    assert seven.type_signature == fl.FunctionType(None, INT)
    assert seven() == 7


def test_an_entry_is_anything_that_the_language_converts_to_a_type():
    types = [(np.int32, [2]), [("a", np.int32)], fl.SequenceType(np.int32), Named(np.int32, np.int32)]
    spread = leaf(types, np.int32)(lambda v, s, q, n: v[0] + s.a + sum(q) + n.b)
    assert str(spread.type_signature) == "(<int32[2],<a=int32>,int32*,<b=int32,a=int32>> -> int32)"
    assert spread([1, 0], {"a": 2}, [3, 4], Named(5, 0)) == 15


def test_a_function_of_several_parameters_always_gets_the_members_even_where_they_have_defaults():
    for function in (lambda x, y=5: x - y, lambda x=7, y=5: x - y, lambda x, *rest: x - rest[0]):
        assert leaf([np.int32, np.int32], np.int32)(function)(10, 1) == 9


def test_a_function_of_one_parameter_gets_the_struct_as_it_is():
    for function in (lambda pair: pair.b - pair.a, lambda *pairs: pairs[0].b - pairs[0].a):
        assert leaf([PAIR], np.int32)(function)((3, 1)) == 2


def positional_only(b, a, /):
    return b - a


def keyword_only(*, b, a):
    return b - a


@pytest.mark.parametrize("function", [positional_only, keyword_only])
def test_parameters_of_every_kind_are_given_as_they_ask(function):
    assert leaf({"a": np.int32, "b": np.int32}, np.int32)(function)(a=1, b=3) == 2


def keyword_only(x, *, y):
    return x - y


@pytest.mark.parametrize(
    ("types", "function", "message"),
    [
        ([np.int32], lambda x, y: x, "Expected one parameter type for each of the 2 parameters of '<lambda>', found 1"),
        (None, lambda x: x, "Expected one parameter type for each of the 1 parameters of '<lambda>', found 0"),
        (
            (np.float32, [3]),
            lambda x: x,
            "found 2; a pair of a dtype and a shape is read as two types: write fl.TensorType",
        ),
        (
            {"x": np.int32, "z": np.int32},
            lambda x, y: x,
            r"for the parameters \['x', 'y'\] .* types for \['x', 'z'\]",
        ),
        (
            [("x", np.int32), ("z", np.int32)],
            lambda x, y: x,
            r"for the parameters \['x', 'y'\] .* types for \['x', 'z'\]",
        ),
        (["hello"], lambda x: x, "Expected types for '<lambda>' such as np.float32 .*, found str 'hello'"),
        ([fl.FederatedType(INT, fl.CLIENTS)], lambda x: x, "Expected plain types .* found {int32}@CLIENTS; .*map"),
        ([[("x", fl.FunctionType(INT, INT))]], lambda x: x, r"Expected plain types .* found <x=\(int32 -> int32\)>"),
        (
            [(np.float32, [-1])],
            lambda x: x,
            r"dimensions of 0 or more .*, found float32\[-1\]; write None for an unknown",
        ),
        ([fl.SequenceType((np.float32, [2, -1]))], lambda x: x, r"dimensions of 0 or more .*; write None"),
        ([np.int32, np.int32], keyword_only, "found the keyword-only parameter 'y'; name the types: {'y': ..., ...}"),
        ([np.int32], lambda *, x: x, "found the keyword-only parameter 'x'; remove the *"),
        ({"x": np.int32}, lambda *, x: x, "found the keyword-only parameter 'x'; remove the *"),
        ({"x": np.int32, "more": np.int32}, lambda x, **more: x, r"found \*\*more; declare each parameter by name"),
        ([np.int32, np.int32], lambda x, **more: x, r"found \*\*more; declare each parameter by name"),
        (
            {"x": np.int32, "more": np.int32},
            lambda x, *more: x,
            r"found the parameter \*more; pass a list of types in the order",
        ),
        (
            [("y", INT), ("x", INT)],
            lambda x, y, /: x,
            "found the parameter x; pass a list of types in the order of the parameters",
        ),
        ([np.int32, np.int32], lambda *a: sum(a), r"found 2; \*a accepts only one value, .*: declare each parameter"),
        ([np.int32] * 3, lambda x, *more: x, r"2 parameters .*, found 3; \*more accepts only one value"),
        ([np.int32], lambda x, y=1: x, "2 parameters .* without 'y' and .* default: lambda x: function\\(x\\)"),
        ([(np.int32, [3])], np.max, "without 'axis' and any other parameters with a default: lambda a: max\\(a\\)"),
        ([np.int32, np.int32], min, "Expected a Python function with a known signature, found builtin"),
    ],
)
def test_types_that_do_not_fit_the_function_are_refused_at_decoration(types, function, message):
    with pytest.raises(InvalidComputationError, match=message):
        leaf(types, np.int32)(function)


def test_arguments_may_be_given_by_the_names_of_the_parameters():
    double = leaf([np.int32], np.int32)(lambda x: 2 * x)
    minus = leaf([np.int32, np.int32], np.int32)(lambda x, y: x - y)
    named = leaf({"x": np.int32, "y": np.int32}, np.int32)(keyword_only)
    of_struct = leaf([PAIR], np.int32)(lambda x: x.a - x.b)
    assert double(x=3) == 6
    assert minus(y=1, x=3) == minus(3, y=1) == named(y=1, x=3) == named(3, y=1) == 2
    assert of_struct(x=(1, 3)) == of_struct(a=3, b=1) == 2

    @fl.federated_computation(np.int32)
    def inside(v):
        return minus(y=v, x=double(x=v))

    assert inside(5) == 5


@pytest.mark.parametrize(
    ("arguments", "names", "message"),
    [
        (
            (),
            {"z": 1},
            r"parameters \['x', 'y'\] of 'minus', found 0 by position and \['z'\] by name: missing a required",
        ),
        ((1,), {"x": 1}, "found 1 by position and .* by name: multiple values for argument 'x'"),
    ],
)
def test_arguments_by_other_names_are_refused_with_those_of_the_parameters(arguments, names, message):
    @leaf([np.int32, np.int32], np.int32)
    def minus(x, y):
        return x - y

    with pytest.raises(TypeMismatchError, match=message):
        minus(*arguments, **names)


def test_a_coroutine_function_is_refused_at_decoration():
    async def later(x):
        return x

    with pytest.raises(InvalidComputationError, match="found the coroutine function 'later'; define it without async"):
        leaf([np.int32], np.int32)(later)


# Result types.


def test_a_result_type_is_anything_that_the_language_converts_to_a_type():
    both = leaf([np.int32], [("x", np.int32), ("y", (np.float32, [2]))])(
        lambda x: {"y": np.zeros(2, np.float32), "x": x}
    )
    found = both(7)
    assert found["x"] == 7
    assert found["y"].tolist() == [0, 0]


def test_a_result_type_is_taken_from_the_annotation():
    def tensor(x) -> np.float32:
        raise AssertionError("not to be called")

    def struct(x):
        raise AssertionError("not to be called")

    struct.__annotations__["return"] = [("a", np.int32)]
    assert leaf([np.int32])(tensor).type_signature.result == FLOAT
    assert str(leaf([np.int32])(struct).type_signature.result) == "<a=int32>"


@pytest.mark.parametrize("annotation", [np.ndarray, "np.ndarray", list, "nonsense", collections.OrderedDict])
def test_an_annotation_that_is_no_type_of_the_language_is_left_to_readers(annotation):
    def same(x):
        return x

    same.__annotations__["return"] = annotation
    assert leaf([(np.int32, [2])])(same).type_signature.result == fl.TensorType(np.int32, [2])


@pytest.mark.parametrize(
    ("types", "function", "result"),
    [
        ([np.int32, np.int32], lambda x, y: x + y, "int32"),
        ([np.int32, np.float32], lambda x, y: x * y, "float64"),
        ([(np.int32, [3])], lambda x: x.sum(dtype=np.int32), "int32"),
        ([(np.float32, [3])], lambda x: x.reshape(3, 1), "float32[3,1]"),
        ([np.int32], lambda x: {"b": x, "a": [x, x]}, "<b=int32,a=<int32,int32>>"),
        ([np.int32], lambda x: Named(x, x), "<b=int32,a=int32>"),
        ([PAIR], lambda x: x, "<b=int32,a=int32>"),
        ([PAIR], lambda x: {"c": x, "d": (x,)}, "<c=<b=int32,a=int32>,d=<<b=int32,a=int32>>>"),
        ([[np.int32, np.int32]], lambda x: x, "<int32,int32>"),
        ([np.str_], lambda x: x + b"!", "str"),
        ([fl.SequenceType(np.int32)], lambda s: np.int32(sum(s)), "int32"),
        ([], lambda: np.bool_(True), "bool"),
    ],
)
def test_a_result_type_that_is_left_out_is_found_by_one_call_on_zeros(types, function, result):
    assert str(leaf(types)(function).type_signature.result) == result


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 1 / x,
        lambda x: np.log(x) + x / x,
        lambda x: np.exp(np.float64(1000) + x),
        lambda x: np.array([x]) % np.array([x]),
    ],
)
def test_a_call_on_zeros_neither_warns_of_them_nor_fails_where_warnings_are_errors(function):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        computation = leaf([np.float64])(lambda x: function(x))
        with pytest.raises(LeafError, match="RuntimeWarning"):
            computation(0.0)  # when the user calls it, they are as ever


VECTOR, MATRIX = fl.TensorType(np.float64, [None]), fl.TensorType(np.float64, [None, 3])


@pytest.mark.parametrize(
    ("types", "function", "result"),
    [
        ([VECTOR], lambda x: 2 * x, "float64[?]"),
        ([VECTOR], lambda x: np.stack([x, x]), "float64[2,?]"),
        ([MATRIX], lambda x: x.T, "float64[3,?]"),
        ([MATRIX], lambda x: {"sum": x.sum(axis=0), "rows": x.sum(axis=1)}, "<sum=float64[3],rows=float64[?]>"),
        ([fl.SequenceType(np.float32)], lambda s: np.array(list(s)), "float32[?]"),
        ([fl.SequenceType(VECTOR)], lambda s: np.array([x.sum() for x in s]), "float64[?]"),
        ([np.float64, VECTOR], lambda x, y: x + y, "float64[?]"),
    ],
)
def test_sizes_that_go_by_unknown_ones_are_unknown_in_a_result_type_that_is_left_out(types, function, result):
    assert str(leaf(types)(function).type_signature.result) == result


def test_a_result_type_with_unknown_sizes_keeps_the_containers():
    assert type(leaf([VECTOR])(lambda x: Named(x, x))([1.0, 2.0])) is Named
    assert type(leaf([VECTOR])(lambda x: {"x": x})([1.0, 2.0])) is dict


def test_a_function_is_called_a_second_time_at_decoration_only_where_sizes_may_go_by_unknown_ones():
    calls = []

    def noted(x):
        calls.append(np.shape(x))
        return x

    leaf([(np.float64, [3])])(noted)
    assert calls == [(3,)]
    calls.clear()
    leaf([VECTOR])(lambda x: noted(x).sum())
    assert calls == [(1,)]
    calls.clear()
    leaf([VECTOR])(noted)
    assert calls == [(1,), (2,)]


def test_a_function_whose_result_is_another_for_other_sizes_has_to_state_its_type():
    with pytest.raises(
        InvalidComputationError, match=r"found <float64> for size 1 and <float64,float64> for size 2; declare"
    ):
        leaf([VECTOR])(list)
    assert str(leaf([VECTOR])(lambda x: x.reshape(1)).type_signature.result) == "float64[1]"


@pytest.mark.parametrize(
    ("types", "function", "argument", "message"),
    [
        ([np.float64], lambda x: float(x), 1e300, r"Expected a value in the range of float32, found 1e\+300"),
        ([np.int64], lambda x: int(x), 2**40, r"Expected int32, from .* found int 1099511627776"),
        ([VECTOR], np.unique, [1.0, 2.0], r"Expected shape \[1\] of float64\[1\], found shape \[2\]"),
    ],
)
def test_a_result_that_does_not_fit_the_type_that_was_left_out_says_to_state_it(types, function, argument, message):
    computation = leaf(types)(lambda x: function(x))

    @fl.federated_computation(fl.FederatedType(types[0], fl.CLIENTS))
    def at_clients(x):
        return fl.federated_map(computation, x)

    advice = r"pass another result_type \(the default is inferred from a call with zeros\)"
    with pytest.raises(TypeMismatchError, match=f"{message}; at the result of '<lambda>'; .*{advice}"):
        computation(argument)
    with pytest.raises(TypeMismatchError, match=rf"{message}; at the result of '<lambda>' at client 0; .*{advice}"):
        at_clients([argument])


def test_the_containers_that_a_function_returns_on_zeros_are_those_of_the_results():
    assert leaf([np.int32])(lambda x: Named(x, x))(1) == Named(1, 1)
    assert leaf([np.int32])(lambda x: [x, x])(1) == [1, 1]
    assert type(leaf([np.int32])(lambda x: collections.OrderedDict(b=x, a=x))(1)) is collections.OrderedDict
    assert leaf([PAIR])(lambda x: x)((1, 2)) == collections.OrderedDict(b=1, a=2)


def raises(x):
    raise ValueError("not for zeros")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "from a call with zeros; .*ValueError: not for zeros"),
        (lambda x: None, "returned None; add a return statement"),
        (lambda x: object(), "Cannot infer the result type of .* at result;"),
        (lambda x: iter([x]), "Cannot infer the result type of .* at result;"),
    ],
)
def test_a_result_type_that_cannot_be_found_is_an_error_that_says_how_to_state_it(function, message):
    with pytest.raises(InvalidComputationError, match=message) as caught:
        leaf([np.int32])(function)
    assert "with @python_computation(parameter_types, result_type)" in str(caught.value)


@pytest.mark.parametrize("size", [10**15, 10**18])
def test_zeros_for_which_there_is_no_memory_are_an_error_that_says_how_to_state_the_result_type(size):
    message = rf"with @python_computation.*An array of float32\[{size}\] requires 4,0"
    with pytest.raises(InvalidComputationError, match=message):
        leaf([(np.float32, [size])])(lambda x: x)
    assert leaf([(np.float32, [size])], np.float32)(lambda x: x[0]).type_signature.parameter.shape == (size,)


def test_a_function_is_not_called_at_decoration_where_its_result_type_is_stated():
    calls = []
    leaf([np.int32], np.int32)(lambda x: calls.append(x))
    assert calls == []


# What the function sees.


SEEN = [
    (np.float32, 1.5, np.float32),
    (np.int64, np.int8(1), np.int64),
    (np.bool_, True, np.bool_),
    (np.str_, "a", bytes),
    ((np.float16, [2]), [1.0, 2.0], np.ndarray),
    (PAIR, (1, 2), Record),
    (fl.StructWithPythonType([("b", INT), ("a", INT)], Named), {"a": 1, "b": 2}, Named),
]


@pytest.mark.parametrize(("type_spec", "value", "kind"), SEEN)
def test_a_function_sees_values_of_exactly_the_declared_type(type_spec, value, kind):
    seen = []

    @leaf([type_spec], np.int32)
    def look(x):
        seen.append(x)
        return np.int32(0)

    @fl.federated_computation(fl.FederatedType(type_spec, fl.CLIENTS))
    def at_clients(x):
        return fl.federated_map(look, x)

    look(value)
    at_clients([value, value])
    assert [type(x) for x in seen] == [type(seen[0])] * 3
    assert isinstance(seen[0], kind)
    if kind is np.ndarray:
        assert all(x.dtype == np.float16 and not x.flags.writeable for x in seen)


def test_a_struct_is_seen_by_attribute_by_key_and_as_keywords():
    def difference(a, b):
        return a - b

    for look in (lambda x: x.a - x.b, lambda x: x["a"] - x["b"], lambda x: difference(**x), lambda x: x[1] - x[0]):
        assert leaf([PAIR], np.int32)(look)({"a": 5, "b": 3}) == 2
    for container in (dict, collections.OrderedDict, Named):
        type_spec = fl.StructWithPythonType([("b", INT), ("a", INT)], container)
        for look in (lambda x: x.a - x.b, lambda x: x["a"] - x["b"], lambda x: difference(**x)):
            assert leaf([type_spec], np.int32)(look)({"a": 5, "b": 3}) == 2


def test_a_named_tuple_that_is_passed_on_comes_back_as_one_of_the_users_class():
    type_spec = fl.StructWithPythonType([("b", INT), ("a", INT)], Named)
    assert type(leaf([type_spec])(lambda x: x)((1, 2))) is Named
    assert type(leaf([type_spec])(lambda x: {"y": x})((1, 2))["y"]) is Named


def test_a_sequence_is_seen_again_and_again_and_its_elements_like_any_value():
    @leaf([fl.SequenceType(PAIR)], np.int32)
    def twice(pairs):
        assert len(pairs) == 2
        assert pairs[1].a == 4
        return np.int32(sum(pair.a for pair in pairs) + sum(pair["b"] for pair in pairs))

    assert twice([{"a": 2, "b": 1}, (3, 4)]) == 10
    assert twice(fedstack.from_generator(lambda: iter([(1, 2), (3, 4)]))) == 10


def test_elements_come_in_order_and_those_of_a_generator_only_when_they_are_asked_for():
    pairs = [(k, k + 1) for k in range(50)]
    made = []

    def generate():
        for pair in pairs:
            made.append(pair)
            yield pair

    @leaf([fl.SequenceType(PAIR)], np.int32)
    def in_order(sequence):
        assert [tuple(pair) for pair in sequence] == pairs
        return np.int32(0)

    @leaf([fl.SequenceType(PAIR)], np.int32)
    def first(sequence):
        return next(iter(sequence)).a

    for source in (pairs, tuple(pairs), fedstack.from_generator(generate)):
        assert in_order(source) == 0
    made.clear()
    assert first(fedstack.from_generator(generate)) == 1
    assert made == pairs[:1]


@pytest.mark.parametrize(
    "work",
    [
        lambda name: name + "!",
        lambda name: "my " + name,
        lambda name: name.split(","),
        lambda name: name.startswith("a"),
        lambda name: re.sub("a", "b", name),
        lambda name: name.format(1),
    ],
)
def test_text_that_is_mixed_with_the_bytes_of_a_string_says_how_to_decode_them(work):
    with pytest.raises(LeafError, match=r"; strings are passed as bytes: use name.decode\(\) to get the text\n"):
        leaf([np.str_], np.str_)(work)("a,b")


def test_an_argument_is_not_to_be_changed_and_the_error_says_copy():
    @leaf([(np.float32, [2])], (np.float32, [2]))
    def in_place(x):
        x += 1
        return x

    mine = np.zeros(2, np.float32)
    with pytest.raises(
        LeafError, match=r"read-only; arguments are read-only because they are shared: .*x = x\.copy\(\)"
    ):
        in_place(mine)
    assert mine.tolist() == [0, 0]


def test_an_argument_can_be_returned_and_the_caller_still_owns_what_it_gets():
    same = leaf([(np.float32, [2])], (np.float32, [2]))(lambda x: x)
    mine = np.zeros(2, np.float32)
    found = same(mine)
    found[0] = 1
    assert mine.tolist() == [0, 0]


# What the function returns.


@pytest.mark.parametrize(
    ("result_type", "value", "expected"),
    [
        (np.float32, 1.5, np.float32(1.5)),
        (np.int32, 3, np.int32(3)),
        (np.int64, np.int32(3), np.int64(3)),
        (np.str_, "ä", "ä".encode()),
        (np.bool_, True, np.bool_(True)),
    ],
)
def test_what_a_function_returns_becomes_exactly_the_declared_type(result_type, value, expected):
    found = leaf([], result_type)(lambda: value)()
    assert type(found) is type(expected)
    assert found == expected


@pytest.mark.parametrize(
    ("result_type", "value", "message"),
    [
        (np.int32, None, "Expected int32, found None; at the result of 'give'; a function without a return statement"),
        (np.int32, "text", "Expected int32, found str 'text'; at the result of 'give'"),
        (
            np.int32,
            np.float64(1),
            "Expected int32, found float64 1.0; at the result of 'give'; convert it with",
        ),
        ((np.int32, [2]), [1, 2, 3], r"found shape \[3\]; at the result of 'give'"),
        (PAIR, {"a": 1}, "found no 'b'; at the result of 'give'"),
        (PAIR, {"a": 1, "b": 1.5}, r"Expected int32, found float 1\.5; at result\.b of 'give'"),
        (fl.SequenceType(INT), iter([1]), "found a one-shot iterator `list_iterator`; at the result of 'give'"),
        (fl.SequenceType(INT), [1, "x"], r"Expected int32, found str 'x'; at result\[1\] of 'give'"),
    ],
)
def test_a_function_that_returns_something_else_than_declared_is_named(result_type, value, message):
    def give():
        return value

    with pytest.raises(TypeMismatchError, match=message):
        leaf([], result_type)(give)()


def in_structs(inner, levels):
    for _ in range(levels):
        inner = collections.OrderedDict(inside=inner)
    return inner


def test_types_of_28_structs_inside_each_other_are_taken():
    passed_on = leaf([in_structs(np.int32, 28)])(lambda x: x)
    assert passed_on(in_structs(1, 28)) == in_structs(1, 28)


@pytest.mark.parametrize("levels", [40, 500])
def test_types_nested_beyond_the_limit_of_protobuf_are_refused_with_the_name_of_the_function(levels):
    message = "for 'too_deep' with at most about 30 nested structs, .* protobuf allows 100 levels; move"

    def too_deep(x):
        return in_structs(x, levels)

    with pytest.raises(ResourceLimitError, match=message):
        leaf([in_structs(np.int32, levels)], np.int32)(too_deep)
    with pytest.raises(ResourceLimitError, match=message):
        leaf([np.int32], in_structs(np.int32, levels))(too_deep)
    with pytest.raises(ResourceLimitError, match=message):
        leaf([np.int32])(too_deep)


# What it raises.


def test_a_function_that_ends_like_an_iterator_does_not_end_the_clients_before_it():
    @leaf([np.int32], np.int32)
    def exhausted(x):
        return next(iter([])) if x == 2 else x

    @fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
    def at_clients(x):
        return fl.federated_sum(fl.federated_map(exhausted, x))

    with pytest.raises(LeafError, match="'exhausted' raised StopIteration; at client 1") as caught:
        at_clients([1, 2, 3])
    assert caught.value.client_index == 1
    assert "return next(iter([])) if x == 2 else x" in str(caught.value)
    with pytest.raises(LeafError, match="StopIteration"):
        exhausted(2)


def test_a_very_long_text_of_an_exception_is_cut_and_says_by_how_much():
    @leaf([np.int32], np.int32)
    def fails(x):
        raise ValueError("begin" + "x" * 3_000_000 + "end")

    with pytest.raises(LeafError, match=r"ValueError: beginx+ \[… 299\d{4} bytes …\] x+end\n") as caught:
        fails(1)
    assert len(str(caught.value)) < 6000
    assert "raise ValueError(" in str(caught.value)

    def broken():
        yield 1
        raise ValueError("x" * 3_000_000)

    @fl.federated_computation(fl.FederatedType(fl.SequenceType(INT), fl.CLIENTS))
    def counted(x):
        return fl.federated_sum(fl.federated_map(leaf([fl.SequenceType(INT)], np.int32)(lambda s: sum(s)), x))

    with pytest.raises(InvalidValueError, match="bytes …") as refused:
        counted([fedstack.from_generator(broken)])
    assert len(str(refused.value)) < 6000


def test_a_terminal_obeys_nothing_in_the_text_of_an_exception():
    @leaf([np.int32], np.int32)
    def fails(x):
        raise ValueError("red \x1b[31m\0\r\x9b\u202e\ud800 and\n\tünïcödé")

    with pytest.raises(LeafError) as caught:
        fails(1)
    assert r"red \x1b[31m\x00\r\x9b\u202e\ud800 and" + "\n\tünïcödé" in str(caught.value)


def test_an_error_of_a_computation_inside_a_function_passes_through_as_it_is():
    inner = leaf([np.int32], np.int32)(raises)
    outer = leaf([np.int32], np.int32)(lambda x: inner(x))
    with pytest.raises(LeafError) as caught:
        outer(1)
    assert caught.value.computation_name == "raises"
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("streams", [False, True], ids=["in blocks", "one by one"])
def test_an_error_of_a_computation_inside_a_function_at_a_client_names_that_client_too(streams):
    inner = leaf([np.int32], np.int32)(raises)

    @fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
    def of_others(x):
        return fl.federated_sum(fl.federated_map(inner, x))

    size = 100_000 if streams else 1

    @leaf([np.int32], (np.int32, [size]))
    def outer(x):
        return np.full(size, of_others([x]) if x == 3 else x, np.int32)

    @fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
    def at_clients(x):
        return fl.federated_sum(fl.federated_map(outer, x))

    for _ in range(2):  # each time as if nothing had been said of it before
        with pytest.raises(LeafError, match="; at client 0; in the computation 'outer' at client 2\n") as caught:
            at_clients([1, 2, 3])
        assert str(caught.value).count("'outer'") == 1
    assert caught.value.client_index == 2
    assert caught.value.computation_name == "raises"
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_inside_a_function_at_a_client_that_is_not_of_a_function_keeps_its_class_and_names_the_client():
    inner = leaf([np.int32], np.int32)(lambda x: x)
    outer = leaf([np.int32], np.int32)(lambda x: inner("text") if x == 2 else x)

    @fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
    def at_clients(x):
        return fl.federated_map(outer, x)

    with pytest.raises(
        TypeMismatchError, match="found str 'text'; at arg; .*in the computation '<lambda>' at client 1$"
    ):
        at_clients([1, 2])


def test_an_error_that_asks_for_another_attempt_gets_it(fedstack_context):
    attempts = []

    @leaf([np.int32], np.int32)
    def flaky(x):
        attempts.append(x)
        if len(attempts) < 3:
            raise fl.framework.RetryableError("later")
        return x

    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.001)
    context = fedstack.create_sync_local_execution_context(retry_policy=policy)
    with fedstack.use_context(context):
        assert flaky(7) == 7
    context.close()
    assert len(attempts) == 3


# The computation as an object.


def test_the_computation_looks_like_the_function():
    @leaf([np.int32], np.int32)
    def documented(x):
        """Says what it does."""
        return x

    assert documented.__name__ == "documented"
    assert documented.__qualname__.endswith("documented")
    assert documented.__doc__ == "Says what it does."
    assert documented.__module__ == __name__
    assert documented.__wrapped__(3) == 3
    assert repr(documented) == "<python_computation documented (int32 -> int32)>"
    assert isinstance(documented, PythonComputation)
    assert isinstance(documented, fl.framework.ConcreteComputation)


def test_help_and_signature_show_the_function():
    @leaf([np.int32], np.int32)
    def documented(x: np.int32) -> np.int32:
        """Says what it does."""
        return x

    page = pydoc.plain(pydoc.render_doc(documented))
    assert "documented(x: numpy.int32) -> numpy.int32\n    Says what it does." in page
    assert inspect.signature(documented) == inspect.signature(documented.__wrapped__)


def test_a_computation_that_is_a_member_of_a_class_is_no_method(fedstack_context):
    class Model:
        same = leaf([np.int32], np.int32)(lambda x: x)

    assert Model().same is Model.same
    assert Model().same(3) == 3


@pytest.mark.parametrize(
    "function", [math.sqrt, functools.partial(math.pow, 2.0), type("Root", (), {"__call__": lambda self, x: x / 2})()]
)
def test_anything_that_can_be_called_with_known_parameters_is_a_function(function):
    computation = leaf([np.float32], np.float64)(function)
    assert computation(4.0) == np.float64(function(4.0))


def test_two_computations_of_one_function_have_their_own_types():
    def same(x):
        return x

    assert leaf([np.int32], np.int32)(same)(1) == 1
    assert leaf([np.str_], np.str_)(same)("a") == b"a"


# How long a function lives.


def make_leaf():
    class Token:
        pass

    token = Token()

    @leaf([np.int32], np.int32)
    def holds(x):
        return x if token else None

    return holds, weakref.ref(token)


def test_a_function_lives_as_long_as_its_computation():
    computation, token = make_leaf()
    gc.collect()
    assert token() is not None
    assert computation(1) == 1


def test_the_registry_lets_go_of_a_function_that_nobody_can_call_any_more():
    gc.collect()
    known = len(registry)
    for _ in range(20):
        make_leaf()
    gc.collect()
    assert len(registry) == known
    computation, token = make_leaf()
    del computation
    gc.collect()
    assert token() is None


def test_a_function_that_another_computation_has_a_copy_of_stays():
    computation, token = make_leaf()

    def mapped(inner):
        return fl.federated_computation(lambda x: fl.federated_map(inner, x), fl.FederatedType(INT, fl.CLIENTS))

    proto = mapped(computation).to_proto()
    del computation
    gc.collect()
    assert token() is not None
    assert fl.framework.ConcreteComputation.from_proto(proto)([1, 2]) == [1, 2]


def test_a_handle_whose_function_is_gone_is_an_error_that_names_it():
    computation, _ = make_leaf()
    proto = computation.to_proto()
    del computation
    gc.collect()
    with pytest.raises(CarrierError, match="found 'holds', which has been garbage-collected"):
        fl.framework.ConcreteComputation.from_proto(proto)(1)
