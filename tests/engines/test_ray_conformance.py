"""Every promise, over actors of Ray."""

from collections.abc import Iterator
from typing import Any

import pytest

import fedstack
from fedstack.backends import Backend, BackendExecutorFactory
from fedstack.testing import StackRow, stack_rows

ROWS = stack_rows(without=["lazy arguments", "same process"])


@pytest.fixture(scope="module")
def backend(cluster: Any) -> Iterator[Backend]:
    """A backend that stays open for the next row: actors take a second to start."""
    found = fedstack.ray_executor_factory(num_workers=2, resources_per_worker={"CPU": 0.5}).backend
    close, found.close = found.close, lambda: None
    yield found
    close()


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_stack_over_ray_keeps_every_promise(backend: Backend, row: StackRow) -> None:
    row.check(lambda: BackendExecutorFactory(backend))
