"""Values of any Python container become payloads of exactly the declared type, or an error that has the place."""

import collections
import dataclasses

import attrs
import federated_language as fl
import ml_dtypes
import numpy as np
import pytest
from federated_language.common_libs.structure import Struct

import fedstack
from fedstack.computations.values.column_sequence import SequenceColumn
from fedstack.computations.values.columns import Column, ListColumn, ScalarColumn, StructColumn
from fedstack.computations.values.federated_values import checked_cardinalities, count_clients, normalize_argument
from fedstack.computations.values.records import record_class
from fedstack.computations.values.values import normalize, quick_reader
from fedstack.errors import CardinalityError, FedstackError, InvalidValueError, TypeMismatchError

INT, FLOAT, TEXT = fl.TensorType(np.int32), fl.TensorType(np.float32), fl.TensorType(np.str_)
BFLOAT16 = ml_dtypes.bfloat16
PAIR = fl.StructType([("b", INT), ("a", FLOAT)])
SEQUENCE = fl.SequenceType(INT)


def vector(dtype, *shape):
    return fl.TensorType(dtype, shape)


def clients(member):
    return fl.FederatedType(member, fl.CLIENTS)


def refused(value, type_spec, message, error=TypeMismatchError):
    with pytest.raises(error) as caught:
        payload = normalize_argument(value, type_spec)
        list(payload)  # a stream is looked at when it is read
    assert message in str(caught.value)


# Tensors.


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3, np.int32, np.int32(3)),
        (255, np.uint8, np.uint8(255)),
        (2**64 - 1, np.uint64, np.uint64(2**64 - 1)),
        (3.5, np.float32, np.float32(3.5)),
        (0.1, np.float32, np.float32(0.1)),
        (float("inf"), np.float16, np.float16("inf")),
        (1.5, BFLOAT16, BFLOAT16(1.5)),
        (True, np.bool_, np.bool_(True)),
        (1 + 2j, np.complex64, np.complex64(1 + 2j)),
        (np.int8(3), np.int32, np.int32(3)),
        (np.uint8(3), np.int32, np.int32(3)),
        (np.float16(0.5), np.float32, np.float32(0.5)),
        (np.float32(0.5), np.float64, np.float64(0.5)),
        (BFLOAT16(0.5), np.float32, np.float32(0.5)),
        (np.array(3, np.int32), np.int32, np.int32(3)),
        ("text", np.str_, b"text"),
        ("ä", np.str_, b"\xc3\xa4"),
        (b"\x00\xff\x00", np.str_, b"\x00\xff\x00"),
        (np.str_("text"), np.str_, b"text"),
        (np.bytes_(b"text"), np.str_, b"text"),
        ("", np.str_, b""),
    ],
)
def test_a_scalar_becomes_one_of_exactly_the_declared_dtype(value, dtype, expected):
    payload = normalize(value, fl.TensorType(dtype))
    assert type(payload) is type(expected)
    assert payload == expected


def test_nan_stays_nan():
    assert np.isnan(normalize(float("nan"), FLOAT))
    assert np.isnan(normalize(np.float32("nan"), fl.TensorType(np.float64)))


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (1, np.float32, "Expected float32, found int 1; at arg; write 1.0 for a floating-point number"),
        (1.0, np.int32, "Expected int32, found float 1.0; at arg"),
        (True, np.int32, "Expected int32, found bool True; at arg"),
        (1, np.bool_, "Expected bool, found int 1; at arg"),
        (1.0, np.complex64, "Expected complex64, found float 1.0; at arg"),
        (300, np.uint8, "Expected uint8, from 0 to 255, found int 300; at arg"),
        (-1, np.uint64, "Expected uint64, from 0 to 18446744073709551615, found int -1; at arg"),
        (1e300, np.float32, "Expected a value in the range of float32, found 1e+300; at arg"),
        (1e6, np.float16, "Expected a value in the range of float16, found 1000000.0; at arg"),
        (
            np.float64(1),
            np.float32,
            "Expected float32, found float64 1.0; at arg; convert it with .astype(np.float32)",
        ),
        (np.int64(1), np.int32, "Expected int32, found int64 1; at arg"),
        (np.int32(1), np.uint32, "Expected uint32, found int32 1; at arg"),
        (np.int8(1), np.float32, "Expected float32, found int8 1; at arg"),
        (np.float32(1), BFLOAT16, "Expected bfloat16, found float32 1.0; at arg"),
        (np.float16(1), BFLOAT16, "Expected bfloat16, found float16 1.0; at arg"),
        ("1", np.int32, "Expected int32, found str '1'; at arg; convert the text to a number first"),
        (None, np.int32, "Expected int32, found None; at arg"),
        (1, np.str_, "Expected a string, found int 1; at arg"),
        (
            "\ud800",
            np.str_,
            "Expected text that UTF-8 can encode, found str '\\ud800' (surrogates not allowed); at arg",
        ),
        (object, np.int32, "Expected int32, found type <class 'object'>; at arg"),
        ({"a": 1}, np.int32, "Expected int32, found dict {'a': 1}; at arg"),
        ([1], np.int32, "Expected shape [] of int32, found shape [1]; at arg"),
        (1.0, np.complex64, "found float 1.0; at arg; write complex(1.0) for a complex number"),
        (1, np.complex128, "found int 1; at arg; write complex(1) for a complex number"),
        (np.array(["a"], object), np.int32, "Expected int32, found an array of Python objects [1]; at arg"),
    ],
)
def test_a_scalar_that_cannot_be_cast_safely_is_refused(value, dtype, message):
    refused(value, fl.TensorType(dtype), message)


@pytest.mark.parametrize(
    ("value", "type_spec", "shape"),
    [
        ([1, 2], vector(np.int32, 2), (2,)),
        ((1, 2), vector(np.int32, 2), (2,)),
        ([[1, 2], [3, 4]], vector(np.int32, 2, 2), (2, 2)),
        ([[1.5], [2.5]], vector(np.float32, None, 1), (2, 1)),
        ([], vector(np.int32, 0), (0,)),
        ([[], []], vector(np.int32, 2, 0), (2, 0)),
        ([[1]], fl.TensorType(np.int32, None), (1, 1)),
        (3, fl.TensorType(np.int32, None), ()),
        ([np.int32(1), np.int8(2)], vector(np.int32, 2), (2,)),
        ([np.array([1, 2], np.int32)], vector(np.int32, 1, 2), (1, 2)),
        ([True, False], vector(np.bool_, 2), (2,)),
        (np.zeros((2, 3), np.int16), vector(np.int32, 2, 3), (2, 3)),
        ([2**64 - 1], vector(np.uint64, 1), (1,)),
        (np.asfortranarray(np.ones((2, 3), np.int32)), vector(np.int32, None, None), (2, 3)),
        (np.ones(2, ">i4"), vector(np.int32, 2), (2,)),
    ],
)
def test_an_array_has_exactly_the_declared_dtype_and_cannot_be_written_to(value, type_spec, shape):
    payload = normalize(value, type_spec)
    assert payload.dtype == type_spec.dtype
    assert payload.dtype.isnative
    assert payload.shape == shape
    if shape:
        with pytest.raises(ValueError, match="read-only"):
            payload[...] = 0


@pytest.mark.parametrize(
    ("value", "type_spec", "message"),
    [
        (
            [1, 2, 3],
            vector(np.int32, 2),
            "Expected shape [2] of int32[2], found shape [3]; at arg; declare (int32, [None]) if the number of rows",
        ),
        ([[1], [2]], vector(np.int32, None, 2), "Expected shape [?,2] of int32[?,2], found shape [2,1]; at arg"),
        (
            np.zeros(3, np.int32),
            vector(np.int32, None, None),
            "Expected shape [?,?] of int32[?,?], found shape [3]; at arg",
        ),
        ([object()], vector(np.float32, 2), "found a list of object; at arg"),
        ([1, 2.0], vector(np.float32, 2), "found a list of float, int; at arg; use one kind of number throughout"),
        ([1, "2"], vector(np.int32, 2), "found a list of int, str; at arg"),
        ([1.5, 2.0], vector(np.complex64, 2), "found float 1.5; at arg; write complex(1.5) for a complex"),
        ([1, None], vector(np.int32, 2), "found a list of NoneType, int; at arg"),
        (
            [[1, 2], [3]],
            vector(np.int32, 2, 2),
            "Expected int32[2,2], found a ragged list; at arg; use rows of the same shape",
        ),
        ([1, [2]], vector(np.int32, 2), "Expected int32[2], found a ragged list; at arg; use rows of the same shape"),
        (
            [[1.0, 2.0], [3.0]],
            vector(np.float32, 2, 2),
            "Expected float32[2,2], found a ragged list; at arg; use rows of the same shape",
        ),
        (
            [np.zeros(2, np.int32), np.zeros(3, np.int32)],
            vector(np.int32, 2, None),
            "found a ragged list; at arg; use rows of the same shape",
        ),
        ([1, 300], vector(np.uint8, 2), "Expected uint8[2], from 0 to 255, found int 300; at arg"),
        ([1.0, 1e300], vector(np.float32, 2), "in the range of float32[2], found [1.0, 1e+300]; at arg"),
        (np.zeros(2), vector(np.float32, 2), "Expected float32[2], found an array float64[2]; at arg"),
        ({1, 2}, vector(np.int32, 2), "Expected int32[2], found set {1, 2}; at arg"),
        (range(2), vector(np.int32, 2), "Expected int32[2], found range range(0, 2); at arg"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(value, type_spec, message):
    refused(value, type_spec, message)


def test_the_owner_of_an_array_can_go_on_writing_to_it():
    mine = np.zeros(3, np.int32)
    payload = normalize(mine, vector(np.int32, 3))
    assert not payload.flags.writeable
    mine[0] = 1


@pytest.mark.parametrize("depth", [65, 100_000])
def test_a_nest_that_is_too_deep_for_an_array_is_refused(depth):
    nest = 1
    for _ in range(depth):
        nest = [nest]
    refused(
        nest,
        vector(np.int32, 1),
        "list that cannot become an array; at arg; NumPy arrays have at most 64 dimensions",
    )


@pytest.mark.parametrize("rows", [1, 2])
def test_masked_arrays_in_a_list_are_refused_as_they_are_alone(rows):
    masked = np.ma.array([1.0, 1000.0], mask=[0, 1])
    refused([masked] * rows, vector(np.float64, rows, 2), "found a masked array")
    refused([1.0, np.ma.masked], vector(np.float64, 2), "found a masked array")


@pytest.mark.parametrize(
    "mixed",
    [
        [np.float64(1), np.int64(2**53 + 1)],
        [1.0, np.int64(2)],
        [np.float32(1), 2],
        [np.array(1.0), np.array(True)],
        [np.uint64(2**63), np.int64(1)],
    ],
    ids=repr,
)
def test_each_number_of_a_list_must_fit_by_itself(mixed):
    refused(mixed, vector(np.float64, 2), "Expected float64[2], found")


def test_numbers_of_several_dtypes_that_all_fit_make_an_array():
    payload = normalize([np.float32(0.1), np.float64(0.1), 0.1], vector(np.float64, 3))
    assert payload.tolist() == [float(np.float32(0.1)), 0.1, 0.1]
    assert normalize([np.int8(-1), np.uint8(255), 7], vector(np.int16, 3)).tolist() == [-1, 255, 7]


def test_a_list_that_contains_itself_is_refused():
    nest = []
    nest.append(nest)
    for type_spec in (vector(np.int32, 1), vector(np.str_, 1), INT, SEQUENCE, clients(INT), fl.StructType([INT])):
        with pytest.raises(TypeMismatchError):
            normalize_argument(nest, type_spec)


class Hidden:
    def __repr__(self):
        raise RuntimeError("not to be shown")


class Unconvertible:
    def __array__(self, dtype=None, copy=None):
        raise KeyError("no array today")


class Convertible:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def test_what_cannot_even_be_shown_is_refused():
    refused(Hidden(), INT, "found Hidden whose repr raises RuntimeError; at arg")
    refused(10**5000, INT, "found int whose repr raises ValueError; at arg")
    refused(10**5000, FLOAT, "Expected float32, found int whose repr raises ValueError; at arg")


def test_anything_that_converts_to_an_array_is_taken_by_its_array():
    assert normalize(Convertible(np.array([1, 2], np.int32)), vector(np.int32, 2)).tolist() == [1, 2]
    refused(Convertible(np.zeros(2)), vector(np.int32, 2), "found an array float64[2]; at arg")
    refused(Unconvertible(), INT, "found Unconvertible, whose conversion to an array raised KeyError")


@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [
        (["a", b"b"], [2], [b"a", b"b"]),
        (np.array(["a", "ä"]), [2], [b"a", "ä".encode()]),
        (np.array([b"a\x00b", "c"], object), [None], [b"a\x00b", b"c"]),
        ([["a"], ["b"]], [2, 1], [[b"a"], [b"b"]]),
        ([], [0], []),
        (["a\x00"], None, [b"a\x00"]),
        (Convertible(np.array(["a", "b"], object)), [None], [b"a", b"b"]),
    ],
)
def test_an_array_of_strings_is_one_of_bytes_objects(value, shape, expected):
    payload = normalize(value, fl.TensorType(np.str_, shape))
    assert payload.dtype == np.object_
    assert payload.tolist() == expected
    assert not payload.flags.writeable


@pytest.mark.parametrize(
    ("value", "shape", "message"),
    [
        ("ab", [2], "Expected shape [2] of str[2], found shape []; at arg"),
        (["a", 1], [2], "Expected a string, found int 1; at arg"),
        ([["a"], ["b", "c"]], [2], "Expected a string, found list ['a']; at arg"),
        (np.zeros(2), [2], "Expected str[2], found an array float64[2]; at arg"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], [2], "found a ragged list; at arg; use rows of the same shape"),
        (7, [2], "Expected str[2], found int 7; at arg"),
    ],
)
def test_an_array_of_strings_that_does_not_fit_is_refused(value, shape, message):
    refused(value, fl.TensorType(np.str_, shape), message)


# Structs.


Named = collections.namedtuple("Named", ["a", "b"])


@attrs.define
class Attrs:
    a: float
    b: int


@dataclasses.dataclass
class Data:
    a: float
    b: int


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1.5, "b": 2},
        {"b": 2, "a": 1.5},
        collections.OrderedDict(a=1.5, b=2),
        Named(a=1.5, b=2),
        Attrs(a=1.5, b=2),
        Data(a=1.5, b=2),
        Struct([("a", 1.5), ("b", 2)]),
        Struct([("b", 2), (None, 1.5)]),
        Struct([(None, 2), (None, 1.5)]),
        record_class(("a", "b"))((1.5, 2)),
        record_class(("b", "a"))((2, 1.5)),
        collections.ChainMap({"a": 1.5}, {"b": 2}),
        (2, 1.5),
        [2, 1.5],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_struct_is_matched_by_name_where_it_has_names_and_by_position_where_not(value):
    assert normalize(value, PAIR) == (2, 1.5)
    assert [type(member) for member in normalize(value, PAIR)] == [np.int32, np.float32]
    column = normalize_argument([value, value], clients(PAIR))
    assert column.items() == [(2, 1.5), (2, 1.5)]


def test_clients_in_place_of_a_struct_of_one_say_how_it_was_declared():
    of_one = fl.StructType([fl.FederatedType(np.float32, fl.CLIENTS)])
    with pytest.raises(
        TypeMismatchError, match=r"found 2; at arg; a type in a list, \[type\], declares a struct with one"
    ):
        normalize_argument([1.0, 2.0], of_one)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1.5}, "Expected the names 'b', 'a' of <b=int32,a=float32>, found no 'b'; at arg"),
        ({"a": 1.5, "b": 2, "c": 3}, "found the extra 'c'; at arg"),
        ({"a": 1.5, "c": 3}, "found no 'b' and the extra 'c'; at arg"),
        ({"a": 1.5, 7: 3}, "found no 'b' and the extra 7; at arg"),
        ({}, "found no 'b', 'a'; at arg"),
        (collections.namedtuple("Other", "a c")(1.5, 2), "found no 'b' and the extra 'c'; at arg"),
        (Struct([("a", 1.5), (None, 2)]), "Expected the members ['b', 'a'], found ['a', None]; at arg"),
        (Struct([("b", 2)]), "found no 'a'; at arg"),
        ((2, 1.5, 3), "Expected 2 members of <b=int32,a=float32>, found 3; at arg"),
        ([], "Expected 2 members of <b=int32,a=float32>, found 0; at arg"),
        (7, "Expected <b=int32,a=float32>, found int 7; at arg; pass a dictionary, a tuple or a list"),
        ("ab", "Expected <b=int32,a=float32>, found str 'ab'; at arg"),
        (np.zeros(2), "Expected <b=int32,a=float32>, found an array float64[2]; at arg"),
        (Attrs, "Expected <b=int32,a=float32>, found type"),
        (Data, "Expected <b=int32,a=float32>, found type"),
        ({"a": 1, "b": 2}, "Expected float32, found int 1; at arg.a"),
        ((1.5, 2), "Expected int32, found float 1.5; at arg.b"),
    ],
)
def test_a_struct_that_does_not_fit_is_refused(value, message):
    refused(value, PAIR, message)


def test_one_argument_for_several_says_how_many_there_are():
    several = fl.StructType([("a", fl.FederatedType(INT, fl.SERVER)), ("b", fl.FederatedType(INT, fl.CLIENTS))])
    with pytest.raises(TypeMismatchError, match="found int 1; at arg; pass 2 separate arguments, a and b, or all argu"):
        normalize_argument(1, several)


@pytest.mark.parametrize("given", [{"x": 1, "y": 2}, [1, 2, 3]])
def test_one_struct_for_several_arguments_says_so_too(given):
    several = fl.StructType([("a", fl.FederatedType(INT, fl.SERVER)), ("b", fl.FederatedType(INT, fl.CLIENTS))])
    with pytest.raises(TypeMismatchError, match="; at arg; pass 2 separate arguments, a and b, or all arguments in"):
        normalize_argument(given, several)


def test_one_argument_of_a_leaf_with_several_parameters_says_how_many_there_are():
    with pytest.raises(TypeMismatchError, match="found int 1; at arg; pass 2 separate arguments, or all arguments in"):
        normalize_argument(1, fl.StructType([INT, INT]))


def test_values_of_clients_in_place_of_one_clients_value_are_told_how_to_be_mapped():
    with pytest.raises(
        TypeMismatchError, match=r"found 3; at arg; if it has a value for each client, call the function"
    ):
        normalize_argument([{"x": 1, "y": 2}] * 3, fl.StructType([("x", INT), ("y", INT)]))


def test_an_array_in_a_list_of_one_is_told_so():
    advice = "found shape [1,2]; at arg; pass the value without the list around it, or declare"
    refused(np.zeros((1, 2), np.int32), fl.TensorType(np.int32, [2]), advice)


def test_the_value_of_one_client_in_place_of_a_list_is_told_from_values_by_name():
    clients = fl.FederatedType(fl.StructType([("a", INT), ("b", INT)]), fl.CLIENTS)
    with pytest.raises(TypeMismatchError, match=r"; at arg; this is the value of one client: pass it in a list"):
        normalize_argument({"a": 1, "b": 2}, clients)
    with pytest.raises(TypeMismatchError, match=r"; at arg; pass list\(mapping.values\(\)\)"):
        normalize_argument({"first": {"a": 1, "b": 2}}, clients)


def test_columns_where_batches_are_expected_say_how_to_make_them_in_one_line():
    columns = {"a": np.zeros((100, 10), np.int32)}
    with pytest.raises(TypeMismatchError, match="pass a list of such dictionaries, or fedstack.batches") as caught:
        normalize(columns, fl.SequenceType(fl.StructType([("a", fl.TensorType(np.int32, [None, 10]))])))
    assert "\n" not in str(caught.value)


def test_a_data_set_that_has_elements_by_index_only_says_how_to_give_them():
    class DataSet:
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return [np.int32(5), np.int32(7)][index]

    given, ints = DataSet(), fl.SequenceType(INT)
    with pytest.raises(TypeMismatchError, match=r"list\(value\), or fedstack.from_generator\(lambda: iter\(value\)\)"):
        normalize(given, ints)
    for advised in (list(given), fedstack.from_generator(lambda: iter(given))):
        assert list(normalize(advised, ints)) == [5, 7]


def test_names_are_refused_where_the_type_has_none():
    unnamed = fl.StructType([INT, INT])
    refused({"a": 1, "b": 2}, unnamed, "found a mapping with the names ['a', 'b']; at arg; pass a tuple")
    assert normalize(Named(1, 2), unnamed) == (1, 2)


def test_an_empty_struct_is_an_empty_container():
    for value in ((), [], {}, Struct([])):
        assert normalize(value, fl.StructType([])) == ()


# Sequences.


class Again:
    """Can be iterated over again and again."""

    def __init__(self, *elements):
        self.elements = elements

    def __iter__(self):
        return iter(self.elements)


@pytest.mark.parametrize("value", [[1, 2], (1, 2), range(1, 3), Again(1, 2), np.array([1, 2], np.int32)])
def test_a_sequence_is_anything_that_can_be_iterated_again(value):
    payload = normalize(value, SEQUENCE)
    for _ in range(2):
        assert list(payload) == [1, 2]
        assert all(type(element) is np.int32 for element in payload)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (iter([1]), "Expected a re-iterable of int32, found a one-shot iterator `list_iterator`; at arg; pass a list"),
        ((x for x in [1]), "found a one-shot iterator `generator`; at arg; pass a list, or fedstack.from_generator"),
        (map(int, [1]), "found a one-shot iterator `map`; at arg"),
        ("12", "Expected a re-iterable of int32, found str '12'; at arg; pass a list of elements"),
        ({"a": 1}, "found dict {'a': 1}; at arg; pass a list of elements"),
        (b"12", "found bytes b'12'; at arg"),
        ({1: 2}, "found dict {1: 2}; at arg"),
        ({1, 2}, "found set {1, 2}; at arg"),
        (7, "found int 7; at arg"),
        (np.array(7, np.int32), "found an array int32[]; at arg"),
        ([1, 2.5], "Expected int32, found float 2.5; at arg[1]"),
        (Again(1, 2.5), "Expected int32, found float 2.5; at arg[1]"),
        (np.array([1, 2]), "Expected int32, found int64 1; at arg[0]"),
    ],
)
def test_a_sequence_that_does_not_fit_is_refused(value, message):
    refused(value, SEQUENCE, message)


def test_elements_of_a_sequence_are_matched_by_name():
    payload = normalize([{"a": 1.5, "b": 2}, (3, 4.5)], fl.SequenceType(PAIR))
    assert list(payload) == [(2, 1.5), (3, 4.5)]


def test_a_stream_is_read_when_somebody_reads_it_and_each_time_anew():
    reads = []

    def make():
        reads.append(1)
        return iter([1, 2])

    payload = normalize(fedstack.from_generator(make), SEQUENCE)
    assert reads == []
    assert list(payload) == list(payload) == [1, 2]
    assert len(reads) == 2


@pytest.mark.parametrize("when", [0, 1])
def test_a_stream_that_raises_is_named_with_its_place_and_its_cause(when):
    class Broken:
        def __iter__(self):
            if when == 0:
                raise OSError("disk on fire")
            yield 1
            raise OSError("disk on fire")

    payload = normalize_argument([[1], Broken()], clients(SEQUENCE)).items()[1]
    with pytest.raises(InvalidValueError, match=r"raised OSError: disk on fire; at arg\[client 1\]") as caught:
        list(payload)
    assert isinstance(caught.value.__cause__, OSError)


def read_from_disk():
    yield 1
    raise OSError("disk on fire")


def test_a_generator_that_raises_is_named_with_its_function_its_place_and_its_line():
    payload = normalize_argument([[1], fedstack.from_generator(read_from_disk)], clients(SEQUENCE)).items()[1]
    message = (
        r"FromGenerator\(read_from_disk\) raised OSError: disk on fire; at arg\[client 1\]\n"
        r'  File .*\n    raise OSError\("disk on fire"\)'
    )
    with pytest.raises(InvalidValueError, match=message):
        list(payload)


@pytest.mark.parametrize("made", [None, 3, "text", {"x": 1}])
def test_a_function_that_makes_no_iterable_is_named_with_the_place_of_the_sequence(made):
    def makes_none():
        return made

    kind = type(made).__name__
    payload = normalize_argument([[1], fedstack.from_generator(makes_none)], clients(SEQUENCE)).items()[1]
    with pytest.raises(TypeMismatchError, match=rf"found `{kind}`; at arg\[client 1\], FromGenerator\(.*makes_none\)"):
        list(payload)
    with pytest.raises(
        TypeMismatchError, match=rf"found `{kind}`; at FromGenerator\(.*makes_none\); write it as a gen"
    ):
        list(fedstack.from_generator(makes_none))


def test_a_stream_that_asks_for_another_attempt_gets_it():
    class Flaky:
        def __iter__(self):
            raise fl.framework.RetryableError("later")

    with pytest.raises(fl.framework.RetryableError, match="later"):
        list(normalize(Flaky(), SEQUENCE))


# Federated values.


@pytest.mark.parametrize(
    ("values", "member", "kind"),
    [
        ([1, 2], INT, ScalarColumn),
        ((1.5, 2.5), FLOAT, ScalarColumn),
        ([np.float32(1), 2.0], FLOAT, ScalarColumn),
        ([True, False], fl.TensorType(np.bool_), ScalarColumn),
        ([1, np.uint8(2)], fl.TensorType(np.int64), ScalarColumn),
        ([[1, 2], np.array([3, 4], np.int32)], vector(np.int32, 2), ListColumn),
        ([[1], [1, 2]], vector(np.int32, None), ListColumn),
        (["a", b"b"], TEXT, ListColumn),
        ([[1], [], (1, 2), Again(1)], SEQUENCE, ListColumn),
        ([{"a": 1.5, "b": 1}, (1, 1.5)], PAIR, StructColumn),
        ([(), ()], fl.StructType([]), StructColumn),
        ([], INT, ScalarColumn),
        ([], PAIR, StructColumn),
        ([], SEQUENCE, SequenceColumn),
    ],
)
def test_client_values_become_one_column_with_one_payload_per_client(values, member, kind):
    column = normalize_argument(values, clients(member))
    assert isinstance(column, kind)
    assert len(column) == len(values)
    assert len(column.items()) == len(values)
    for found, value in zip(column.items(), values, strict=True):
        expected = normalize(value, member)
        if isinstance(member, fl.SequenceType):
            found, expected = list(found), list(expected)
        assert type(found) is type(expected)
        assert np.array_equal(found, expected)


WEIGHTS = fl.StructType([("bias", INT), ("weights", [FLOAT, FLOAT, (np.float32, [2])])])


@pytest.mark.parametrize(
    ("value", "member", "path"),
    [
        ([1, 2.5], INT, "arg[client 1]"),
        ([1.5, 2], FLOAT, "arg[client 1]"),
        ([1, 2**31], INT, "arg[client 1]"),
        ([1.5, 1e300], FLOAT, "arg[client 1]"),
        ([True, 1], fl.TensorType(np.bool_), "arg[client 1]"),
        ([[1, 2], [1, 2, 3]], vector(np.int32, 2), "arg[client 1]"),
        (["a", 1], TEXT, "arg[client 1]"),
        ([[1], [2, 3.5]], SEQUENCE, "arg[client 1][1]"),
        ([[1], 7], SEQUENCE, "arg[client 1]"),
        ([[], [1], iter([1])], SEQUENCE, "arg[client 2]"),
        ([(1, 1.5), (1, "x")], PAIR, "arg[client 1].a"),
        ([{"a": 1.5, "b": 1}, {"a": 1.5}], PAIR, "arg[client 1]"),
        ([(1, (0.0, 0.0, [0.0, 0.0]))] * 3 + [(1, (0.0, 0.0, [0.0]))], WEIGHTS, "arg[client 3].weights[2]"),
        ([[(1, 1.5)], [(1, 1.5), {"a": 1.5, "b": 1.5}]], fl.SequenceType(PAIR), "arg[client 1][1].b"),
    ],
)
def test_a_misfit_among_client_values_is_reported_with_client_and_path(value, member, path):
    refused(value, clients(member), f"; at {path}")


def test_a_misfit_deep_inside_an_argument_is_reported_with_its_whole_path():
    type_spec = fl.StructType([("model", WEIGHTS), ("data", clients(PAIR))])
    good = {"bias": 1, "weights": (0.0, 0.0, [1.0, 2.0])}
    refused({"model": good, "data": [(1, 1.5), (1, None)]}, type_spec, "found None; at arg.data[client 1].a")
    refused({"model": {"bias": 1, "weights": (0.0, 0, [1.0, 2.0])}, "data": []}, type_spec, "; at arg.model.weights[1]")


@pytest.mark.parametrize(
    "value",
    [
        "abc",
        b"ab",
        bytearray(b"ab"),
        np.array(1),
        {"a": 1},
        {1, 2},
        iter([1]),
        range(2),
        7,
        None,
        Named(1, 2),
        Attrs(1, 2),
        Again(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_client_values_are_a_list_or_a_tuple_and_nothing_else(value):
    refused(value, clients(INT), "Expected a list or tuple with one value per client, for {int32}@CLIENTS, found ")


def test_the_rows_of_an_array_are_values_of_clients():
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    column = normalize_argument(rows, clients(vector(np.float32, 2)))
    assert np.shares_memory(column.items()[0], rows)
    assert not column.items()[0].flags.writeable
    assert rows.flags.writeable
    assert normalize_argument(np.array([1, 2], np.int32), clients(INT)).items() == [1, 2]
    refused(np.array([1, 2]), clients(FLOAT), "Expected float32, found int64 1; at arg[client 0]")
    assert normalize_argument(np.array(["a", "b"]), clients(TEXT)).items() == [b"a", b"b"]
    refused(np.array([1.0, 2.5]), clients(INT), "Expected int32, found float64 1.0; at arg[client 0]")
    refused(rows, clients(FLOAT), "Expected shape [] of float32, found shape [2]; at arg[client 0]")
    one = "first axis is that of the clients, for clients' float32[2], found an array float32[2]; at arg; this is the "
    refused(rows[0], clients(vector(np.float32, 2)), one)
    any_shape = fl.TensorType(np.str_, None)  # rows of clients, too
    assert len(normalize_argument(np.array(["a", "b"]), clients(any_shape))) == 2
    refused(rows, clients(PAIR), "pass a list; only numbers and arrays of clients can be the rows of an array")
    refused(np.zeros((0, 7), np.float64), clients(vector(np.float32, 3)), "found no rows, of float64[7]; at arg")
    assert normalize_argument(np.zeros((0, 3), np.float32), clients(vector(np.float32, 3))).items() == []
    assert normalize_argument(np.asfortranarray(rows), clients(vector(np.float32, 2))).values.flags.c_contiguous


def test_a_record_is_no_list_of_clients():
    refused(record_class(("a", "b"))((1, 2)), clients(INT), "Expected a list or tuple with one value per client")


@pytest.mark.parametrize("placement", [fl.SERVER, fl.CLIENTS])
def test_a_value_that_is_the_same_for_all_is_given_once(placement):
    shared = fl.FederatedType(PAIR, placement, True)
    assert normalize_argument({"a": 1.5, "b": 1}, shared) == (1, 1.5)
    refused([1, 2, 3], shared, "Expected 2 members")


def test_functions_are_no_values():
    refused(print, fl.FunctionType(INT, INT), "pass a plain value, not a function or a placement")


# The number of clients.


def test_clients_are_counted_on_the_values_matched_by_name():
    type_spec = fl.StructType([("a", clients(INT)), ("b", SEQUENCE)])
    assert count_clients(normalize_argument({"b": [1, 2, 3], "a": [5]}, type_spec), type_spec) == 1


def test_nothing_is_counted_where_nothing_differs_by_client():
    type_spec = fl.StructType([fl.FederatedType(INT, fl.CLIENTS, True), fl.FederatedType(INT, fl.SERVER), SEQUENCE])
    assert count_clients(normalize_argument((1, 2, [3]), type_spec), type_spec) is None


def test_arguments_that_disagree_about_the_number_of_clients_are_refused_by_name():
    type_spec = fl.StructType([("a", clients(INT)), ("b", [clients(INT), clients(INT)])])
    assert count_clients(normalize_argument(([1], ([2], [3])), type_spec), type_spec) == 1
    payload = normalize_argument(([1], ([2], [3, 4])), type_spec)
    with pytest.raises(CardinalityError, match=r"found 1 at arg\.b\[0\] and 2 at arg\.b\[1\]; pass one value"):
        count_clients(payload, type_spec)


def test_no_clients_are_a_number_of_clients():
    assert count_clients(normalize_argument([], clients(INT)), clients(INT)) == 0


def test_a_column_is_cut_without_changing_its_values():
    values = [{"a": float(i), "b": i} for i in range(7)]
    column = normalize_argument(values, clients(PAIR))
    assert isinstance(column, Column)
    assert column.slice(2, 5).items() == [(2, 2.0), (3, 3.0), (4, 4.0)]
    assert list(column.field(0)) == list(range(7))


def test_every_refusal_is_also_a_type_error():
    with pytest.raises(TypeError) as caught:
        normalize(1, FLOAT)
    assert isinstance(caught.value, FedstackError)


# The quick way.


@pytest.mark.parametrize(
    ("value", "type_spec"),
    [
        (np.float32(2), FLOAT),
        (2.0, FLOAT),
        (np.float64(2), FLOAT),
        (np.array(2, np.float32), FLOAT),
        (np.zeros((2, 3), np.float32), vector(np.float32, 2, 3)),
        (np.zeros((2, 3), np.float32), vector(np.float32, None, 3)),
        (np.zeros((2, 3), np.float32), fl.TensorType(np.float32, None)),
        (np.array(1, np.float32), fl.TensorType(np.float32, None)),
        (np.zeros((2, 4), np.float32), vector(np.float32, 2, 3)),
        (np.zeros((2, 3), np.float64), vector(np.float32, 2, 3)),
        (np.zeros(3, ">f4"), vector(np.float32, 3)),
        (np.ma.masked_array(np.zeros(3, np.float32)), vector(np.float32, 3)),
        ([1.0, 2.0], vector(np.float32, 2)),
        ("text", TEXT),
        (None, FLOAT),
        ({"a": np.float32(1), "b": np.int32(2)}, PAIR),
        ({"a": np.float32(1), "b": 2}, PAIR),
        ({"a": np.float32(1), "c": np.int32(2)}, PAIR),
        ({"a": np.float32(1), "b": np.int32(2), "c": 1}, PAIR),
        ({"a": np.float32(1)}, PAIR),
        (collections.OrderedDict(a=np.float32(1), b=np.int32(2)), PAIR),
        ((np.int32(2), np.float32(1)), PAIR),
        ([np.int32(2), np.float32(1)], PAIR),
        ((np.int32(2), np.float32(1), 1), PAIR),
        (((np.int32(2), np.zeros(2, np.float32)), ()), fl.to_type([(np.int32, (np.float32, [2])), ()])),
        ((), fl.StructType([])),
        ([np.int32(1)], SEQUENCE),
    ],
)
def test_the_quick_reader_gives_the_same_payload_or_none(value, type_spec):
    quick = quick_reader(type_spec)
    for _ in range(2):
        found = quick(value)
        if found is not None:
            expected = normalize(value, type_spec)
            assert type(found) is type(expected)
            assert repr(found) == repr(expected)
            if isinstance(found, np.ndarray):
                assert not found.flags.writeable


@pytest.mark.parametrize("value", [fedstack.batches(np.zeros((4, 3), np.float32), 1), [np.zeros((1, 3), np.float32)]])
def test_the_advice_for_batches_in_place_of_rows_is_to_declare_batches(value):
    with pytest.raises(TypeMismatchError) as caught:
        normalize_argument([value], clients(fl.SequenceType(vector(np.float32, 3))))
    assert str(caught.value) == (
        "Expected shape [3] of float32[3], found shape [1,3]; at arg[client 0][0]; declare (float32, [None, 3]) for "
        "batches"
    )


BATCH = fl.StructType([("y", vector(np.int32, None)), ("x", vector(np.float32, None, 2))])


@pytest.mark.parametrize("options", [{}, {"shuffle_seed": 3}, {"drop_remainder": True}])
@pytest.mark.parametrize("container", [dict, collections.OrderedDict])
def test_batches_are_the_same_by_the_quick_way(container, options):
    arrays = container(x=np.arange(14, dtype=np.float32).reshape(7, 2), y=np.arange(7, dtype=np.int32))
    source = fedstack.batches(arrays, 3, **options)
    expected = [(batch["y"], batch["x"]) for batch in source]
    payload = normalize(source, fl.SequenceType(BATCH))
    for _ in range(2):
        found = list(payload)
        assert [[member.tolist() for member in batch] for batch in found] == [
            [member.tolist() for member in batch] for batch in expected
        ]
        assert not any(member.flags.writeable for batch in found for member in batch)


@pytest.mark.parametrize("rows", [*range(1, 4), 15, 16, 17, 31, 32, 33, 100])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_all_batches_come_in_order_however_many_there_are(rows, drop_remainder):
    arrays = {"x": np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2), "y": np.arange(rows, dtype=np.int32)}
    for size in (1, 2):
        source = fedstack.batches(arrays, size, drop_remainder=drop_remainder)
        found = list(normalize(source, fl.SequenceType(BATCH)))
        starts = range(0, rows - size + 1 if drop_remainder else rows, size)
        assert [y.tolist() for y, _ in found] == [arrays["y"][start : start + size].tolist() for start in starts]
        assert [x.tolist() for _, x in found] == [arrays["x"][start : start + size].tolist() for start in starts]


@pytest.mark.parametrize(
    ("arrays", "element", "message"),
    [
        ({"x": np.zeros((4, 2)), "y": np.zeros(4, np.int32)}, BATCH, "at value[0].x"),
        ({"x": np.zeros((4, 3), np.float32), "y": np.zeros(4, np.int32)}, BATCH, "at value[0].x"),
        ({"x": np.zeros((4, 2), np.float32), "z": np.zeros(4, np.int32)}, BATCH, "no 'y'"),
        ({"x": np.zeros((4, 2), np.float32)}, BATCH, "no 'y'"),
        ({"x": np.zeros(4, np.float32)}, fl.to_type({"x": (np.float32, [3])}), "at value[1].x"),
    ],
)
def test_batches_that_do_not_fit_are_refused_with_their_place(arrays, element, message):
    with pytest.raises(TypeMismatchError) as caught:
        normalize(fedstack.batches(arrays, 3), fl.SequenceType(element), "value")
    assert message in str(caught.value)


def test_cardinalities_become_a_dict_of_their_own() -> None:
    given = {fl.CLIENTS: np.int32(3)}
    found = checked_cardinalities(given)
    assert (found, type(found[fl.CLIENTS]), found is given) == ({fl.CLIENTS: 3}, int, False)


@pytest.mark.parametrize(
    ("cardinalities", "message"),
    [
        (None, "Expected numbers of participants by placement, found None; pass"),
        (3, "Expected numbers of participants by placement, found int 3; pass"),
        ({"clients": 2}, "Expected placements as keys, found the key str 'clients'; pass"),
        ({fl.CLIENTS: -1}, "Expected a number of clients from 0 to 9, found -1"),
        ({fl.CLIENTS: 10}, "Expected a number of clients from 0 to 9, found 10"),
        ({fl.CLIENTS: 1.5}, "Expected a number of clients to be a whole number from 0 to 9, found float 1.5"),
    ],
)
def test_cardinalities_that_are_none_are_refused(cardinalities: object, message: str) -> None:
    with pytest.raises(CardinalityError, match=f"^{message}"):
        checked_cardinalities(cardinalities, 9)
