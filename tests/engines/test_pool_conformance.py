"""Every promise, over a pool of processes; `make test-engines` runs what is in this folder."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest

import fedstack
from fedstack.computations.types.language import CLIENTS
from fedstack.computations.types.language import Executor as LanguageExecutor
from fedstack.testing import ExecutorRow, StackRow, executor_rows, stack_rows

LACKS = ["lazy arguments", "same process"]
# A context asks the executor for what the row of the other suite asks it for: what both say of values is said once.
OF_EXECUTORS = [row for row in executor_rows(without=LACKS) if row.promise.tag != "values" or not row.promise.of_stacks]
pytestmark = pytest.mark.fedstack_leak_check(False)  # the pool is every row's


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as made:
        yield made


@pytest.mark.parametrize("row", OF_EXECUTORS, ids=lambda row: row.name)
def test_an_executor_over_a_pool_keeps_every_promise(pool: Executor, row: ExecutorRow) -> None:
    def make(clients: int) -> LanguageExecutor:
        return fedstack.pool_executor_factory(pool).create_executor({CLIENTS: clients})

    row.check(make)


@pytest.mark.parametrize("row", stack_rows(without=LACKS), ids=lambda row: row.name)
def test_a_stack_over_a_pool_keeps_every_promise(pool: Executor, row: StackRow) -> None:
    row.check(lambda: fedstack.pool_executor_factory(pool))
