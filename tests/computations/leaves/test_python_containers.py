"""The containers in which a function sees structs go with it to other processes."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import attrs
import federated_language as fl
import numpy as np
import pytest

from fedstack.computations.leaves.computation_pickles import (
    Containers,
    containers_of,
    from_message,
    have_names,
    to_message,
    with_containers,
)
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.errors import CarrierError
from fedstack.proto.carriers_pb2 import PythonContainer
from fedstack.testing.leaves import Pair, Point


@dataclass
class Model:
    weights: Any
    bias: Any


TYPES = [
    {"b": np.int32, "a": np.float32},
    OrderedDict([("b", np.int32), ("a", {"c": np.bool_})]),
    Pair(np.int32, [np.int32, (np.int8, np.int8)]),
    Point({"x": np.int32}, np.str_),
    fl.StructWithPythonType([("weights", (np.float32, [3])), ("bias", np.float32)], Model),
    fl.StructType([("dressed", {"inner": np.int32}), ("plain", np.int32)]),
    fl.SequenceType({"x": (np.float32, [None]), "y": Pair(np.int32, np.int32)}),
    fl.StructType([np.int32, {"x": np.int32}]),
]


def anything_goes(module: str, shown: str) -> None:
    pass


def containers_in(type_spec):
    if isinstance(type_spec, fl.SequenceType):
        return ["sequence", containers_in(type_spec.element)]
    if isinstance(type_spec, fl.StructType):
        return [type_spec.python_container, *(containers_in(member) for _, member in type_spec.items())]
    return None


@pytest.mark.parametrize("spec", TYPES, ids=str)
def test_a_type_that_came_as_a_message_gets_its_containers_back(spec):
    type_spec = fl.to_type(spec)
    received = type_from_proto(type_spec.to_proto())
    containers = containers_of(type_spec)
    assert have_names(containers)
    message = PythonContainer.FromString(to_message(containers).SerializeToString())
    restored = with_containers(received, from_message(message, anything_goes))
    assert restored is not None
    assert restored.is_equivalent_to(type_spec)
    assert containers_in(restored) == containers_in(type_spec)


@pytest.mark.parametrize(
    "spec", [np.int32, (np.float32, [2]), fl.StructType([("a", np.int32)]), fl.SequenceType(np.int8)]
)
def test_a_type_without_containers_needs_none(spec):
    type_spec = fl.to_type(spec)
    assert containers_of(type_spec) is None
    assert with_containers(type_spec, None) is type_spec
    assert from_message(PythonContainer(), anything_goes) is None


def test_a_class_of_a_function_has_no_name_elsewhere():
    @attrs.frozen
    class Local:
        x: Any

    assert not have_names(containers_of(fl.to_type({"inner": Local(np.int32)})))
    assert have_names(containers_of(fl.to_type(Point(np.int32, np.int32))))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("builtins:eval", "not allowed"),
        ("test_python_containers:containers_in", "to be a named tuple, an attrs class or a dataclass"),
        ("test_python_containers:Missing", "Cannot find the function"),
        ("test_python_containers", "Cannot find the function"),
        (":", "Expected"),
    ],
)
def test_only_classes_of_fields_in_allowed_modules_are_taken(name, expected):
    def check(module: str, shown: str) -> None:
        if module == "builtins":
            raise CarrierError(f"{shown} is not allowed")

    with pytest.raises(CarrierError, match=expected):
        from_message(PythonContainer(type=name), check)


@pytest.mark.parametrize("member", [[], [PythonContainer(), PythonContainer()]])
def test_members_without_containers_may_be_left_out(member):
    message = PythonContainer(member=[PythonContainer(type="dict", member=member)])
    parameter = fl.SequenceType(fl.StructType([("b", np.int32), ("a", fl.StructType([("c", np.int32)]))]))
    dressed = with_containers(parameter, from_message(message, anything_goes))
    assert containers_in(dressed) == ["sequence", [dict, None, [None, None]]]


@pytest.mark.parametrize(
    ("spec", "containers"),
    [
        (np.int32, Containers(dict, ())),
        ([np.int32, np.int32], Containers(list, (None,))),
        (fl.StructType([np.int32, np.int32]), Containers(dict, (None, None))),
        (fl.StructType([np.int32, np.int32]), Containers(Pair, (None, None))),
        (fl.SequenceType(np.int32), Containers(None, (None, None))),
        (fl.SequenceType(np.int32), Containers(None, (Containers(tuple, ()),))),
    ],
)
def test_containers_of_another_type_are_refused(spec, containers):
    with pytest.raises(CarrierError, match="Expected"):
        with_containers(fl.to_type(spec), containers)
