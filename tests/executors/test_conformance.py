"""Every promise, over every stack that can be built in one process."""

import pytest
from stacks import EXECUTORS, FACTORIES, FactoryStack

from fedstack.testing import ExecutorRow, StackRow, executor_rows, stack_rows

EXECUTOR_ROWS = [
    pytest.param(stack, row, id=f"{name}-{row.name}")
    for name, stack in EXECUTORS.items()
    for row in executor_rows(without=stack.without)
]
STACK_ROWS = [
    pytest.param(stack, row, id=f"{name}-{row.name}")
    for name, stack in FACTORIES.items()
    for row in stack_rows(without=stack.without)
]


@pytest.mark.parametrize(("stack", "row"), EXECUTOR_ROWS)
def test_an_executor_keeps_every_promise(stack, row: ExecutorRow) -> None:
    row.check(stack.make)


@pytest.mark.parametrize(("stack", "row"), STACK_ROWS)
def test_a_stack_keeps_every_promise(stack: FactoryStack, row: StackRow) -> None:
    row.check(stack.make, **stack.options)
