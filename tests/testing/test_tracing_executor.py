"""What a tracing executor writes down, and that it changes nothing else."""

from collections import OrderedDict
from typing import NamedTuple

import attrs
import numpy as np
import pytest

from fedstack.computations.types.language import Struct
from fedstack.contexts import SyncExecutionContext
from fedstack.contexts.in_force import use_context
from fedstack.errors import ClosedError, ForeignValueError, InvalidValueError
from fedstack.executors import LeafExecutor
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.testing import TracingExecutor
from fedstack.testing.expectations import expect_same
from fedstack.testing.leaves import add, double, fail
from fedstack.testing.tracing_executor import (
    CallCreated,
    Closed,
    Computed,
    Raised,
    SelectionCreated,
    StructCreated,
    ValueCreated,
)


class Point(NamedTuple):
    x: object
    y: object


@attrs.define
class Pair:
    x: object
    y: object


async def test_events_tell_verbs_values_and_types_in_order() -> None:
    executor = TracingExecutor(LeafExecutor())
    function = await executor.create_value(add)
    one, two = await executor.create_value(1, np.int32), await executor.create_value(2, np.int32)
    pair = await executor.create_struct([one, two])
    three = await executor.create_call(function, pair)
    first = await executor.create_selection(pair, 0)
    assert await three.compute() == 3
    assert await first.compute() == 1
    executor.close()
    int32 = one.type_signature
    assert executor.events == [
        ValueCreated(0, add, function.type_signature),
        ValueCreated(1, 1, int32),
        ValueCreated(2, 2, int32),
        StructCreated(3, ((None, 1), (None, 2)), pair.type_signature),
        CallCreated(4, 0, 3, int32),
        SelectionCreated(5, 3, 0, int32),
        Computed(4, np.int32(3)),
        Computed(5, np.int32(1)),
        Closed(),
    ]


@pytest.mark.parametrize(
    "container",
    [
        lambda x, y: {"x": x, "y": y},
        lambda x, y: OrderedDict(x=x, y=y),
        lambda x, y: Struct([("x", x), ("y", y)]),
        Point,
        Pair,
    ],
)
async def test_names_of_structs_are_kept(container) -> None:
    executor = TracingExecutor(LeafExecutor())
    x, y = await executor.create_value(1, np.int32), await executor.create_value(2.0, np.float32)
    made = await executor.create_struct(container(x, y))
    assert str(made.type_signature) == "<x=int32,y=float32>"
    assert executor.events[-1] == StructCreated(2, (("x", 0), ("y", 1)), made.type_signature)
    expect_same(await made.compute(), {"x": np.int32(1), "y": np.float32(2)})
    executor.close()


async def test_errors_are_recorded_and_raised_as_they_are() -> None:
    executor = TracingExecutor(LeafExecutor())
    with pytest.raises(TypeError) as refused:
        await executor.create_value("three", np.int32)
    called = await executor.create_call(await executor.create_value(fail), await executor.create_value(3, np.int32))
    with pytest.raises(RuntimeError) as raised:
        await called.compute()
    assert executor.events[0] == Raised("create_value", refused.value)
    assert executor.events[-1] == Raised("compute", raised.value)
    executor.close()
    with pytest.raises(ClosedError) as closed:
        await executor.create_struct([called])
    assert executor.events[-1] == Raised("create_struct", closed.value)


async def test_values_of_others_are_refused_by_both_names() -> None:
    ours, theirs = TracingExecutor(LeafExecutor()), TracingExecutor(LeafExecutor())
    value = await theirs.create_value(1, np.int32)
    for foreign in (value, value.target):
        with pytest.raises(ForeignValueError, match="TracingExecutor over <LeafExecutor"):
            await ours.create_selection(foreign, 0)
    ours.close()
    theirs.close()


def test_a_context_can_run_on_a_traced_executor() -> None:
    made = []

    def make(cardinalities):
        made.append(TracingExecutor(LeafExecutor()))
        return made[-1]

    context = SyncExecutionContext(ResourceManagingExecutorFactory(make))
    with use_context(context):
        assert double(4) == 8
    context.close()
    kinds = [type(event) for event in made[0].events]
    assert kinds == [ValueCreated, ValueCreated, CallCreated, Computed, Closed]


def test_its_repr_shows_what_is_below() -> None:
    assert repr(TracingExecutor(LeafExecutor())) == "<TracingExecutor over <LeafExecutor>>"


def test_what_is_no_executor_is_refused_when_it_is_given() -> None:
    with pytest.raises(InvalidValueError, match="Expected an executor to wrap, found .*LeafExecutor"):
        TracingExecutor(LeafExecutor)
