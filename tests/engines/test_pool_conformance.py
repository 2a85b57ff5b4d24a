"""Every promise, over a pool of processes; `make test-engines` runs what is in this folder."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest

import fedstack
from fedstack.testing import StackRow, stack_rows

ROWS = stack_rows(without=["lazy arguments", "same process"])
pytestmark = pytest.mark.fedstack_leak_check(False)  # the pool is every row's


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as made:
        yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_stack_over_a_pool_keeps_every_promise(pool: Executor, row: StackRow) -> None:
    row.check(lambda: fedstack.pool_executor_factory(pool))
