"""Structures of a user's own classes: values are found in them, as arguments and where they are fetched."""

import dataclasses
from collections import OrderedDict
from typing import Any

import attrs
import numpy as np
import pytest

import fedstack
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.service.coordinator import ClusterCoordinator

WALL = 30.0


@dataclasses.dataclass
class Data:
    x: Any
    y: Any = 2


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenData:
    x: Any
    y: Any = 2


@attrs.define
class Attrs:
    x: Any
    y: Any = 2


@attrs.frozen
class FrozenAttrs:
    x: Any
    y: Any = 2


KINDS = [Data, FrozenData, Attrs, FrozenAttrs]


@dataclasses.dataclass
class MadeData:
    """One that its class could not make again of its fields."""

    _x: Any
    scale: dataclasses.InitVar[int]
    total: int = dataclasses.field(init=False)
    unset: int = dataclasses.field(init=False)

    def __post_init__(self, scale: int) -> None:
        self.total = 10 * scale


@attrs.define
class MadeAttrs:
    _x: Any
    total: int = attrs.field(init=False, default=0)


@dataclasses.dataclass
class Node:
    value: Any
    parent: "Node | None" = None
    children: "list[Node]" = dataclasses.field(default_factory=list)


@fedstack.python_computation([np.int32], np.int32)
def same(x):
    return x


@fedstack.python_computation([OrderedDict(x=np.int32, y=np.int32)], np.int32)
def total(pair):
    return pair["x"] + pair["y"]


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_fetched_into_instances(coordinator: ClusterCoordinator, kind: Any) -> None:
    value = coordinator.schedule(same, (7,))
    given = kind([value], {"inner": kind(1, value)})
    assert coordinator.fetch([given], WALL) == [kind([7], {"inner": kind(1, 7)})]
    assert given.x == [value]


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_arguments_in_instances(coordinator: ClusterCoordinator, kind: Any) -> None:
    def add(pairs: Any) -> int:
        return pairs[0].x + pairs[0].y

    value = coordinator.schedule(same, (7,))
    assert coordinator.schedule(total, (kind(value, 1),)).get(WALL) == 8
    assert coordinator.schedule(add, ([kind(value, 1)],)).get(WALL) == 8


@pytest.mark.parametrize("kind", KINDS)
def test_instances_without_values_stay_what_they_are(coordinator: ClusterCoordinator, kind: Any) -> None:
    value, untouched = coordinator.schedule(same, (7,)), kind({1, 2}, [kind(3)])
    found = coordinator.fetch([value, untouched], WALL)
    assert found[0] == 7
    assert found[1] is untouched


def test_what_else_an_instance_has_comes_along(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(same, (7,))
    data, made = MadeData(value, 3), MadeAttrs(value)
    made.total = 5
    found = coordinator.fetch((data, made), WALL)
    assert [(each._x, each.total) for each in found] == [(7, 30), (7, 5)]
    assert not hasattr(found[0], "unset")


def test_instances_may_refer_to_each_other(coordinator: ClusterCoordinator) -> None:
    root = Node(1)
    root.children = [Node(number, root) for number in range(2)]
    value = coordinator.schedule(same, (7,))
    assert coordinator.fetch([root, value, root], WALL) == [root, 7, root]
    shared = Node(value)
    first, second = coordinator.fetch([shared, {"again": shared}], WALL)
    assert first is second["again"]
    assert first.value == 7


def test_values_in_sets_are_refused_also_in_instances(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(same, (7,))
    for wrong in ({(1, value)}, iter([1])):
        with pytest.raises(
            InvalidValueError, match=r"Expected handles in lists, tuples or dictionaries, found .* at structure.x"
        ):
            coordinator.fetch(Data(wrong))


def test_a_result_that_is_a_dataclass_is_named_with_its_place(coordinator: ClusterCoordinator) -> None:
    with pytest.raises(TypeMismatchError, match=r"found Data Data.x=1, y=2. at result.a\[1\]"):
        coordinator.schedule(lambda: {"a": [0, Data(1)]}).get(WALL)
