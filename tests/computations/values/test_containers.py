"""Results come in the containers of their annotated type, and their arrays belong to whoever called."""

import collections
import dataclasses
import gc
import operator
import pickle

import attrs
import federated_language as fl
import numpy as np
import pytest
from federated_language.common_libs.structure import Struct

from fedstack.computations.values.columns import ConstantColumn, ListColumn, ScalarColumn, StructColumn
from fedstack.computations.values.containers import argument_maker, result_maker, to_result, to_structure
from fedstack.computations.values.records import AttributeDict, OrderedAttributeDict, Record
from fedstack.computations.values.values import normalize
from fedstack.errors import InvalidComputationError

INT = fl.TensorType(np.int32)
VECTOR = fl.TensorType(np.float32, [3])
FIELDS = [("b", INT), ("a", INT)]
Named = collections.namedtuple("Named", ["b", "a"])


@attrs.define
class Attrs:
    a: int
    b: int


@dataclasses.dataclass
class Data:
    a: int
    b: int


def clients(member, all_equal=False):
    return fl.FederatedType(member, fl.CLIENTS, all_equal)


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (None, collections.OrderedDict([("b", 1), ("a", 2)])),
        (dict, {"b": 1, "a": 2}),
        (collections.OrderedDict, collections.OrderedDict([("b", 1), ("a", 2)])),
        (Named, Named(b=1, a=2)),
        (Attrs, Attrs(b=1, a=2)),
        (Data, Data(b=1, a=2)),
    ],
)
def test_a_struct_with_names_comes_in_the_container_of_its_type(container, expected):
    type_spec = fl.StructType(FIELDS) if container is None else fl.StructWithPythonType(FIELDS, container)
    found = to_result((np.int32(1), np.int32(2)), type_spec)
    assert type(found) is type(expected)
    assert found == expected


def test_members_stay_in_the_order_of_the_type():
    for container in (dict, collections.OrderedDict):
        found = to_result((1, 2), fl.StructWithPythonType(FIELDS, container))
        assert list(found) == ["b", "a"]


@pytest.mark.parametrize(("container", "expected"), [(None, (1, 2)), (list, [1, 2]), (tuple, (1, 2))])
def test_a_struct_without_names_comes_as_a_tuple_or_as_what_its_type_says(container, expected):
    members = [INT, INT]
    type_spec = fl.StructType(members) if container is None else fl.StructWithPythonType(members, container)
    found = to_result((np.int32(1), np.int32(2)), type_spec)
    assert type(found) is type(expected)
    assert found == expected


def test_containers_nest():
    inner = fl.StructWithPythonType(FIELDS, Named)
    outer = fl.StructWithPythonType([("x", inner), ("y", clients(inner)), ("z", fl.SequenceType(inner))], dict)
    column = StructColumn((ScalarColumn(np.array([1, 2])), ScalarColumn(np.array([3, 4]))), 2)
    found = to_result(((5, 6), column, [(7, 8)]), outer)
    assert found == {"x": Named(5, 6), "y": [Named(1, 3), Named(2, 4)], "z": [Named(7, 8)]}


def test_an_empty_struct_is_an_empty_tuple():
    assert to_result((), fl.StructType([])) == ()


def test_a_struct_with_some_names_has_no_container():
    mixed = fl.StructType([("a", INT), INT])
    with pytest.raises(
        InvalidComputationError, match="either all members or no members have names, found <a=int32,int32>"
    ):
        to_result((1, 2), mixed)
    assert to_structure((1, 2), mixed) == Struct([("a", 1), (None, 2)])


def test_values_of_clients_are_a_list_and_a_value_that_is_the_same_for_all_is_given_once():
    assert to_result(ListColumn([b"a", b"b"]), clients(np.str_)) == [b"a", b"b"]
    assert to_result(ConstantColumn(np.int32(7), 3), clients(INT)) == [7, 7, 7]
    assert to_result(ScalarColumn(np.zeros(0, np.int32)), clients(INT)) == []
    assert to_result(np.int32(7), clients(INT, all_equal=True)) == 7
    assert to_result(np.int32(7), fl.FederatedType(INT, fl.SERVER)) == 7


def test_a_sequence_comes_as_a_list_whatever_it_was():
    assert to_result(normalize(range(3), fl.SequenceType(INT)), fl.SequenceType(INT)) == [0, 1, 2]


def test_a_structure_has_the_names_of_the_type_at_every_level():
    type_spec = fl.StructType([("x", fl.StructType(FIELDS)), ("y", clients(fl.StructType(FIELDS)))])
    column = StructColumn((ScalarColumn(np.array([1])), ScalarColumn(np.array([3]))), 1)
    found = to_structure(((5, 6), column), type_spec)
    inner = Struct([("b", 5), ("a", 6)])
    assert found == Struct([("x", inner), ("y", [Struct([("b", 1), ("a", 3)])])])


# Whose arrays are they?


def test_an_array_of_the_result_can_be_written_to_and_nobody_notices():
    mine = np.zeros(3, np.float32)
    payload = normalize(mine, VECTOR)
    found = to_result(payload, VECTOR)
    found[0] = 1
    assert mine.tolist() == [0, 0, 0]
    assert payload.tolist() == [0, 0, 0]


def test_an_array_that_nobody_else_holds_is_handed_out_without_a_copy():
    payload = normalize(np.zeros(3, np.float32), VECTOR)
    gc.collect()
    address = payload.__array_interface__["data"][0]
    found = to_result(payload, VECTOR)
    assert found.__array_interface__["data"][0] == address
    assert found.flags.writeable


@pytest.mark.parametrize("view", [lambda a: a[::-1], lambda a: a[1:4], lambda a: a.reshape(5), lambda a: a[:5]])
def test_a_view_of_somebodys_array_is_copied(view):
    mine = np.arange(5, dtype=np.float32)
    shown = view(mine)
    found = to_result(normalize(shown, fl.TensorType(np.float32, [None])), VECTOR)
    assert found.tolist() == shown.tolist()
    found[:] = 9
    assert mine.tolist() == [0, 1, 2, 3, 4]


def test_a_structure_never_shares_its_arrays_with_the_payload():
    payload = normalize(np.zeros(3, np.float32), VECTOR)
    first, second = to_structure(payload, VECTOR), to_structure(payload, VECTOR)
    first[0] = 1
    assert second.tolist() == payload.tolist() == [0, 0, 0]


# What leaf functions see.


@pytest.mark.parametrize(
    ("container", "kind"),
    [
        (None, Record),
        (dict, AttributeDict),
        (collections.OrderedDict, OrderedAttributeDict),
        (Named, Named),
        (Attrs, Attrs),
    ],
)
def test_a_leaf_sees_its_struct_by_attribute_and_mostly_by_key(container, kind):
    type_spec = fl.StructType(FIELDS) if container is None else fl.StructWithPythonType(FIELDS, container)
    found = argument_maker(type_spec)((1, 2))
    assert isinstance(found, kind)
    assert (found.b, found.a) == (1, 2)
    if kind is not Attrs:
        assert (found["b"], found["a"]) == (1, 2)
        assert dict(**found) == {"b": 1, "a": 2}
        with pytest.raises(KeyError):
            found["c"]
        with pytest.raises(AttributeError):
            operator.attrgetter("c")(found)


def test_a_record_is_a_tuple_and_a_mapping_at_once():
    record = argument_maker(fl.StructType(FIELDS))((1, 2))
    assert tuple(record) == (1, 2)
    assert record[0] == record["b"] == record.b == 1
    assert record[-1] == 2
    assert record.keys() == ("b", "a")
    assert record.values() == (1, 2)
    assert list(record.items()) == [("b", 1), ("a", 2)]
    assert repr(record) == "Record(b=1, a=2)"
    with pytest.raises(KeyError, match=r"Expected one of the fields \['b', 'a'\], found 'c'"):
        record["c"]


def test_a_named_tuple_stays_what_it_is_and_is_read_by_key_too():
    class Model(collections.namedtuple("Model", ["b", "a"])):
        def total(self):
            return self.b + self.a

    found = argument_maker(fl.StructWithPythonType(FIELDS, Model))((1, 2))
    assert isinstance(found, Model)
    assert found == Model(1, 2) == (1, 2)
    assert found.total() == 3
    assert (found[0], found[-1], found[:]) == (1, 2, (1, 2))
    assert found._replace(b=3)["b"] == 3
    assert repr(found) == repr(Model(1, 2))
    with pytest.raises(KeyError, match=r"Expected one of the fields \['b', 'a'\], found 'c'"):
        found["c"]
    copied = pickle.loads(pickle.dumps(argument_maker(fl.StructWithPythonType(FIELDS, Named))((1, 2))))
    assert (type(copied), copied) == (Named, Named(1, 2))


METHODS = ["keys", "values", "get", "count", "index", "update", "copy", "pop"]


@pytest.mark.parametrize(
    ("container", "by_key_alone"),
    [
        (None, {"keys", "values"}),
        (dict, {*METHODS} - {"count", "index"}),
        (collections.OrderedDict, {*METHODS} - {"count", "index"}),
        (collections.namedtuple("OfMethods", METHODS), set()),
    ],
)
def test_fields_with_names_of_methods_are_read_by_key(container, by_key_alone):
    fields = [(name, INT) for name in METHODS]
    type_spec = fl.StructType(fields) if container is None else fl.StructWithPythonType(fields, container)
    found = argument_maker(type_spec)(range(len(METHODS)))
    assert [found[name] for name in METHODS] == list(range(len(METHODS)))
    for position, name in enumerate(METHODS):
        value = getattr(found, name)
        assert callable(value) if name in by_key_alone else value == position
    if "keys" in by_key_alone:
        assert dict(**found) == {name: position for position, name in enumerate(METHODS)}


def test_a_record_without_names_is_a_tuple():
    record = argument_maker(fl.StructType([INT, INT]))((1, 2))
    assert tuple(record) == (1, 2)
    assert record.keys() == ()
    assert repr(record) == "Record(1, 2)"


def test_makers_are_made_once_per_type():
    type_spec = fl.StructType(FIELDS)
    assert argument_maker(type_spec) is argument_maker(fl.StructType(FIELDS))
    assert result_maker(type_spec) is result_maker(fl.StructType(FIELDS))
