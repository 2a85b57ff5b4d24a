"""Conformance rows about values and types: every dtype, structs by name and position, strings, and client values."""

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs
import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.testing.computation_builder import at_clients, at_server, computation, intrinsic, struct
from fedstack.testing.expectations import expect, expect_error, expect_same, expect_same_bits
from fedstack.testing.leaves import Pair, Point, fill_scratch, identity, tell_containers
from fedstack.testing.promises import promise_of_both
from fedstack.testing.subjects import Runner

BFLOAT16 = np.dtype("bfloat16").type
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
FLOATS = (np.float16, BFLOAT16, np.float32, np.float64)
COMPLEX = (np.complex64, np.complex128)


def samples_of_every_dtype() -> Iterator[tuple[type[Any], list[Any]]]:
    """Yields each dtype of the language with sample values, including extremes. Strings are `bytes`."""
    yield np.bool_, [np.bool_(False), np.bool_(True)]
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        yield dtype, [dtype(info.min), dtype(1), dtype(info.max)]
    for dtype in FLOATS:
        yield dtype, [dtype(value) for value in (-0.0, 1.5, float("inf"), float("-inf"), float("nan"), 2.0**-14)]
    for dtype in COMPLEX:
        yield dtype, [dtype(complex(1.5, -2.5)), dtype(complex(float("nan"), float("inf")))]
    yield np.str_, [b"", b"text", b"with\x00nuls\x00\x00", b"\xff\xfenot UTF-8"]


def array_of(dtype: type[Any], values: list[Any]) -> Any:
    """Returns an array of the values. Strings are stored as objects, because NumPy's own dtype drops trailing NULs."""
    return np.array(values, object if dtype is np.str_ else dtype)


@promise_of_both()
async def every_dtype_comes_back_exactly(runner: Runner) -> None:
    """Scalars and arrays of all 16 dtypes keep dtype, shape and value, unplaced and at clients."""
    for dtype, values in samples_of_every_dtype():
        whole = array_of(dtype, values)
        scalar, array, empty = TensorType(dtype), TensorType(dtype, whole.shape), TensorType(dtype, [2, 0])
        kinds: list[tuple[Type, list[Any]]] = [
            (scalar, values),
            (array, [whole, whole[::-1]]),
            (empty, [np.zeros((2, 0), whole.dtype)] * 2),
        ]
        for type_spec, instances in kinds:
            leaf = identity(type_spec)
            expect_same(await runner.run(leaf, instances[-1]), instances[-1])
            mapped = computation(lambda x, leaf=leaf: intrinsic("federated_map", leaf, x), at_clients(type_spec))
            expect_same(await runner.run(mapped, instances), instances)
            passed = computation(lambda x: x, at_clients(type_spec))
            expect_same(await runner.run(passed, instances), instances)


@promise_of_both(needs=["same process"])
async def leaves_get_exactly_the_declared_dtype(runner: Runner) -> None:
    """A leaf receives NumPy scalars and arrays of the declared dtype, and `bytes`, for all kinds of arguments."""
    seen: list[Any] = []
    types = [np.float32, np.int8, np.uint64, np.complex64, np.bool_, np.str_, (np.float64, [2]), (np.str_, [2])]

    @python_computation(types, np.bool_)
    def look(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
        seen.append([a, b, c, d, e, f, g, h])
        return np.bool_(True)

    await runner.run(look, 1.5, 3, 2**63, 1j, True, "é", [1.0, 2.0], ["a", b"b"])
    expected = [np.float32(1.5), np.int8(3), np.uint64(2**63), np.complex64(1j), np.bool_(True), "é".encode()]
    expected += [np.array([1.0, 2.0]), np.array([b"a", b"b"], object)]
    expect_same(seen[-1], expected, "the arguments of the leaf")


@promise_of_both()
async def leaves_see_structs_in_the_containers_of_their_types(runner: Runner) -> None:
    """A leaf receives a struct in the container of its declared type, on every stack and at every placement."""
    value: dict[str, object] = {
        "dict": {"a": 1, "b": 2},
        "ordered": OrderedDict([("d", 1), ("c", 2)]),
        "pair": Pair(1, [2]),
        "point": Point(1, (2, 3)),
        "record": {"e": 1, "f": 2},
        "elements": [{"g": 1, "h": 2}, {"h": 3, "g": 4}],
    }
    type_spec = tell_containers.type_signature.parameter
    mapped = computation(lambda x: intrinsic("federated_map", tell_containers, x), at_clients(type_spec))
    expected = b"dictorderedpairpointrecordelements; ba; dc; True; list; True; tuple; [2, 1]; hg; hg"
    expect_same(await runner.run(tell_containers, value), expected)
    expect_same(await runner.run(mapped, [value, value]), [expected, expected])


@promise_of_both(tag="errors")
async def lossy_conversions_are_refused(runner: Runner) -> None:
    """A value of a wrong kind, or outside the range of its dtype, raises an error with both types."""
    for value, dtype, found in [
        (np.float64(1), np.float32, "float64"),
        (np.int64(1), np.int32, "int64"),
        (300, np.int8, "300"),
        (-1, np.uint16, "-1"),
        (1, np.float32, "int"),
        (1.5, np.int32, "1.5"),
        (1e39, np.float32, "1e+39"),
        (True, np.int32, "bool"),
        (1j, np.float64, "1j"),
        ("1", np.int32, "str"),
        (None, np.int32, "None"),
        (np.zeros(2, np.int32), np.int32, "[2]"),
    ]:
        await expect_error(
            runner.run(identity(dtype), value), TypeError, TensorType(dtype).compact_representation(), found
        )
    await expect_error(runner.run(identity(np.str_), 3), TypeError, "string", "3")


@promise_of_both()
async def python_numbers_are_rounded_to_their_dtype(runner: Runner) -> None:
    """A Python float is rounded to the nearest value of its dtype; a tiny float becomes a subnormal number or zero."""
    for value, dtype, bits in [(0.1, np.float32, 0x3DCCCCCD), (1e-45, np.float32, 1), (-1e-60, np.float32, 1 << 31)]:
        expect_same_bits(await runner.run(identity(dtype), value), np.uint32(bits).view(dtype))
    for value, expected in [(65519.0, 65504.0), (6e-8, 2.0**-24), (1e-10, 0.0)]:
        expect_same_bits(await runner.run(identity(np.float16), value), np.float16(expected))
    expect_same_bits(await runner.run(identity(np.complex64), complex(0.1, 1e-60)), np.complex64(np.float32(0.1)))
    await expect_error(runner.run(identity(np.float16), 65520.0), TypeError, "float16", "65520.0")


@promise_of_both(intrinsics=["federated_map"])
async def results_of_leaves_fit_as_arguments_do(runner: Runner) -> None:
    """A leaf may return Python numbers that fit its result type. NumPy arrays and scalars are never narrowed."""
    narrow = StructType([("f", np.float32), ("h", np.float16), ("b", BFLOAT16), ("c", np.complex64)])
    ratios = StructType([("mean", narrow), ("list", SequenceType(np.float32))])

    @python_computation([np.float64, np.int32], ratios)
    def ratio(x: Any, n: Any) -> Any:
        quotient = float(x / n)
        mean = {"f": quotient, "h": quotient, "b": quotient, "c": complex(quotient)}
        return {"mean": mean, "list": [quotient, np.float32(x) / 3]}

    third = 1 / 3
    mean = {"f": np.float32(third), "h": np.float16(third), "b": BFLOAT16(third), "c": np.complex64(third)}
    expected = {"mean": mean, "list": [np.float32(third)] * 2}
    expect_same(await runner.run(ratio, 1.0, 3), expected)
    pair = StructType([np.float64, np.int32])
    mapped = computation(lambda x: intrinsic("federated_map", ratio, x), at_clients(pair))
    expect_same(await runner.run(mapped, [(1.0, 3)] * 3), [expected] * 3)

    def returning(value: object, declared: Any) -> Any:
        return python_computation([], declared)(lambda: value)

    for declared, value, expected, found in [
        (TensorType(np.float32, [2]), np.full(2, 1.0), "float32[2]", "float64[2]"),
        (np.float32, np.float64(0.5), "float32", "float64 0.5"),
        (np.complex64, np.complex128(0.5), "complex64", "complex128"),
        (SequenceType(np.float32), [np.float64(0.5)], "float32", "float64 0.5"),
        (np.int32, np.float64(1.0), "int32", "float64 1.0"),
        (np.float32, 1e300, "float32", "1e+300"),
    ]:
        await expect_error(runner.run(returning(value, declared)), TypeError, expected, found)


@promise_of_both(intrinsics=["federated_map", "federated_sum"])
async def a_leaf_may_return_one_array_again_and_again(runner: Runner) -> None:
    """A leaf may return the same array from every call and overwrite it in between. Earlier results do not change."""
    mapped = computation(lambda x: intrinsic("federated_map", fill_scratch, x), at_clients(np.float32))
    total = computation(
        lambda x: intrinsic("federated_sum", intrinsic("federated_map", fill_scratch, x)), at_clients(np.float32)
    )
    values = [np.float32(number) for number in (1, 2, 4)]
    expected = [[np.full(4, value, np.float32), np.full(2, value, np.float32)] for value in values]
    expect_same(await runner.run(mapped, values), expected)
    expect_same(await runner.run(total, values), [np.full(4, 7, np.float32), np.full(2, 7, np.float32)])


@promise_of_both()
async def a_view_comes_back_as_it_is_seen(runner: Runner) -> None:
    """A leaf may return a reversed, transposed, broadcast or sliced array. The result has the same elements."""
    square, vector = TensorType(np.float32, [3, 3]), TensorType(np.float32, [3])
    whole = np.arange(9, dtype=np.float32).reshape(3, 3)
    types = [vector, square, square, vector]

    @python_computation([np.float32], types)
    def views(x: Any) -> Any:
        fresh = whole + x
        return fresh[0].copy()[::-1], fresh.copy().T, np.broadcast_to(fresh[1], (3, 3)), fresh[:, 1]

    expected = (whole[0][::-1], whole.T, np.broadcast_to(whole[1], (3, 3)), whole[:, 1])
    expect_same(await runner.run(views, 0.0), expected)
    expect_same(await runner.run(identity(square), whole.T), whole.T, "a transposed argument")
    mapped = computation(lambda x: intrinsic("federated_map", views, x), at_clients(np.float32))
    expect_same(await runner.run(mapped, [0.0, 0.0]), [expected] * 2)


class _Point(NamedTuple):
    x: Any
    y: Any


@attrs.define
class _Pair:
    x: Any
    y: Any


@promise_of_both()
async def structs_are_matched_by_name_or_by_position(runner: Runner) -> None:
    """Dictionaries, named tuples and attrs objects are matched by name, in any order; lists and tuples by position."""
    type_spec = StructType([("x", np.int32), ("y", StructType([("b", np.int32), ("a", np.float32)]))])
    expected = {"x": np.int32(1), "y": {"b": np.int32(2), "a": np.float32(3)}}
    values: list[Any] = [
        {"y": {"a": 3.0, "b": 2}, "x": 1},
        OrderedDict[str, Any](y=OrderedDict[str, Any](a=3.0, b=2), x=1),
        _Point(x=1, y=(2, 3.0)),
        _Pair(x=1, y={"a": 3.0, "b": 2}),
        (1, (2, 3.0)),
        [1, [2, 3.0]],
    ]
    for value in values:
        # With two parameters, a container is one argument. With one, its members could be taken for the arguments.
        both = computation(lambda s, unused: s, type_spec, np.int32)
        expect_same(await runner.run(both, value, 0), expected)
    passed = computation(lambda c: c, at_clients(type_spec))
    expect_same(await runner.run(passed, values), [expected] * len(values))


@promise_of_both(tag="errors")
async def missing_and_extra_names_are_errors(runner: Runner) -> None:
    """A missing or unexpected name, or a wrong number of members, raises an error with the name or number."""
    type_spec = StructType([("x", np.int32), ("y", StructType([("b", np.int32), ("a", np.float32)]))])
    both = computation(lambda s, unused: s, type_spec, np.int32)
    wrong: list[tuple[Any, tuple[str, ...]]] = [
        ({"x": 1}, ("'y'",)),
        ({"x": 1, "y": {"b": 2, "a": 3.0}, "z": 4}, ("'z'",)),
        ({"x": 1, "y": {"b": 2, "c": 3.0}}, ("'a'", "'c'", ".y")),
        ((1, (2,)), (".y", "2")),
        ((1, (2, 3.0, 4)), (".y", "3")),
        (3, ("int",)),
    ]
    for value, fragments in wrong:
        await expect_error(runner.run(both, value, 0), TypeError, *fragments)
        clients = computation(lambda c: c, at_clients(type_spec))
        await expect_error(runner.run(clients, [(1, (2, 3.0)), value]), TypeError, *fragments, "client 1")
    unnamed = computation(lambda s, unused: s, StructType([np.int32, np.int32]), np.int32)
    await expect_error(runner.run(unnamed, {"a": 1, "b": 2}, 0), TypeError, "names")


@promise_of_both()
async def structs_of_all_shapes_come_back(runner: Runner) -> None:
    """Empty, nested, named and unnamed structs keep the order of their type, with and without a placement."""
    empty = StructType([])
    for type_spec, value in [
        (empty, ()),
        (StructType([empty, empty]), ((), ())),
        (StructType([np.int32]), (np.int32(1),)),
        (StructType([("z", np.int32), ("a", np.int32)]), {"z": np.int32(1), "a": np.int32(2)}),
        (StructType([("a", StructType([np.int32, (np.str_, [1])]))]), {"a": (np.int32(1), np.array([b"s"], object))}),
    ]:
        passed = computation(lambda s, unused: struct(s, s), type_spec, np.int32)
        expect_same(await runner.run(passed, value, 0), (value, value))
        clients = computation(lambda c: c, at_clients(type_spec))
        expect_same(await runner.run(clients, [value, value]), [value, value])
        leaf = identity(StructType([type_spec, np.int32]))
        mapped = computation(
            lambda c, leaf=leaf: intrinsic("federated_map", leaf, c), at_clients(StructType([type_spec, np.int32]))
        )
        expect_same(await runner.run(mapped, [(value, np.int32(1))]), [(value, np.int32(1))])


@promise_of_both()
async def placed_values_come_back_as_lists_or_bare(runner: Runner) -> None:
    """Client values are returned as a list in client order; all-equal values and server values as single values."""
    values = computation(
        lambda c, e, s: struct(c, e, s), at_clients(np.int32), at_clients(np.int32, all_equal=True), at_server(np.int32)
    )
    for clients in (1, 3):
        numbers = [np.int32(10 * k) for k in range(clients)]
        expect_same(await runner.run(values, numbers, 5, 6), (numbers, np.int32(5), np.int32(6)))
        expect_same(await runner.run(values, tuple(numbers), 5, 6), (numbers, np.int32(5), np.int32(6)))


@promise_of_both()
async def client_values_may_be_the_rows_of_an_array(runner: Runner) -> None:
    """An array as client values has a row for each client, of the dtype and the shape of its value."""
    for member, rows in [
        (np.float32, np.arange(3, dtype=np.float32)),
        (np.bool_, np.array([True, False])),
        (TensorType(np.int32, [2]), np.arange(6, dtype=np.int32).reshape(3, 2)),
        (TensorType(np.int32, [None, 1]), np.arange(6, dtype=np.int32).reshape(2, 3, 1)),
        (np.float32, np.zeros(0, np.float32)),
    ]:
        numbers = [np.int32(k) for k in range(len(rows))]
        passed = computation(lambda c, k: struct(c, k), at_clients(member), at_clients(np.int32))
        expect_same(await runner.run(passed, rows, numbers), (list(rows), numbers))
    vectors = computation(lambda c, k: struct(c, k), at_clients(TensorType(np.int32, [2])), at_clients(np.int32))
    for wrong in (np.zeros((2, 3), np.int32), np.zeros(2, np.int32), np.zeros((2, 2), np.float64), np.int32(1)):
        await expect_error(runner.run(vectors, wrong, [1, 2]), TypeError, "int32")


@promise_of_both(tag="errors")
async def client_values_are_a_list_or_a_tuple(runner: Runner) -> None:
    """Client values passed as a string, bytes or a mapping raise an error with a hint; they are not split."""
    for member, value, fragments in [
        (np.str_, "abc", ("'abc'", "list")),
        (np.str_, b"abc", ("list",)),
        (np.uint8, b"abc", ("list",)),
        (np.int32, {0: 1, 1: 2}, ("list(mapping.values())",)),
        (np.int32, 3, ("list",)),
        (np.int32, iter([1, 2]), ("list",)),
    ]:
        passed = computation(lambda c: c, at_clients(member))
        await expect_error(runner.run(passed, value), TypeError, *fragments)


@promise_of_both()
async def strings_keep_every_byte(runner: Runner) -> None:
    """Strings are `bytes`, and keep NULs and bytes that are not valid UTF-8. Text arguments are encoded as UTF-8."""
    odd = [b"a\x00", b"\x00", b"\xff\x00", b""]
    vector = TensorType(np.str_, [None])
    mapped = computation(lambda c: intrinsic("federated_map", identity(vector), c), at_clients(vector))
    arrays = [np.array(odd[:k], object) for k in range(5)]
    found = await runner.run(mapped, [list(array) for array in arrays])
    expect_same(found, arrays)
    expect_same(await runner.run(identity(np.str_), "grün\x00"), "grün\x00".encode())


@promise_of_both()
async def open_dimensions_take_any_size(runner: Runner) -> None:
    """The size of a dimension that the type leaves open may differ between values, also between clients."""
    open_type = TensorType(np.int32, [None, 2])
    mapped = computation(lambda c: intrinsic("federated_map", identity(open_type), c), at_clients(open_type))
    arrays = [np.arange(2 * k, dtype=np.int32).reshape(k, 2) for k in (0, 1, 3)]
    expect_same(await runner.run(mapped, arrays), arrays)
    await expect_error(runner.run(mapped, [np.zeros((2, 3), np.int32)]), TypeError, "[?,2]", "[2,3]", "client 0")


@promise_of_both()
async def running_gives_no_warnings(runner: Runner) -> None:
    """Overflow, NaN and division by zero in folds and operators follow NumPy's arithmetic, without warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        total = computation(lambda x: intrinsic("federated_sum", x), at_clients(np.int8))
        expect_same(await runner.run(total, [100, 100, 100]), np.int8(44))
        mean = computation(lambda x: intrinsic("federated_mean", x), at_clients(np.float32))
        expect_same(await runner.run(mean, [3e38, 3e38]), np.float32("inf"))
        vectors = [np.array([np.nan, k], np.float32) for k in range(5)]
        folded = computation(
            lambda x: struct(
                intrinsic("federated_min", x), intrinsic("federated_max", x), intrinsic("federated_sum", x)
            ),
            at_clients((np.float32, [2])),
        )
        expect_same(await runner.run(folded, vectors), tuple(np.array([np.nan, k], np.float32) for k in (0, 4, 10)))
        ratio = computation(lambda x, y: intrinsic("generic_divide", x, y), np.float32, np.float32)
        expect_same(await runner.run(ratio, 0.0, 0.0), np.float32("nan"))
    expect(not caught, "no warnings", [str(warning.message) for warning in caught])
