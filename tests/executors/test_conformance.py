"""Every promise, over every stack."""

from collections.abc import Iterator

import numpy as np
import pytest
import remote_stacks
from stacks import EXECUTORS, FACTORIES, SLOW, SLOW_VALUES, FactoryStack, rows_for

from fedstack.errors import ForeignValueError
from fedstack.testing import ExecutorRow, StackRow


def marks_of(name: str, kind: str, row: ExecutorRow | StackRow | None = None) -> list[pytest.MarkDecorator]:
    # The services that remote stacks share keep leaf threads for the next test. What they must not keep are sessions.
    marks = [pytest.mark.fedstack_leak_check(False)] if kind == "remote" else []
    is_slow = name in SLOW or (name in SLOW_VALUES and row is not None and row.promise.tag == "values")
    return [*marks, pytest.mark.slow] if is_slow else marks


EXECUTOR_ROWS = [
    pytest.param(stack, row, id=f"{name}-{row.name}", marks=marks_of(name, stack.kind, row))
    for name, stack in EXECUTORS.items()
    for row in rows_for(stack)
]
STACK_ROWS = [
    pytest.param(stack, row, id=f"{name}-{row.name}", marks=marks_of(name, stack.kind, row))
    for name, stack in FACTORIES.items()
    for row in rows_for(stack)
]


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    remote_stacks.start_servers()
    yield
    remote_stacks.stop_servers()


@pytest.fixture(autouse=True)
def no_session_is_left() -> Iterator[None]:
    yield
    remote_stacks.wait_for_no_sessions(seconds=20)


@pytest.mark.parametrize(("stack", "row"), EXECUTOR_ROWS)
def test_an_executor_keeps_every_promise(stack, row: ExecutorRow) -> None:
    row.check(stack.make)


@pytest.mark.parametrize(("stack", "row"), STACK_ROWS)
def test_a_stack_keeps_every_promise(stack: FactoryStack, row: StackRow) -> None:
    row.check(stack.make, **stack.options)


@pytest.mark.parametrize("stack", [pytest.param(s, id=n, marks=marks_of(n, s.kind)) for n, s in EXECUTORS.items()])
async def test_an_executor_of_ours_has_an_error_of_its_own_for_a_value_of_another(stack) -> None:
    ours, theirs = stack.make(1), stack.make(1)
    value = await theirs.create_value(3, np.int32)
    with pytest.raises(ForeignValueError):
        await ours.create_struct([value])
    ours.close()
    theirs.close()
