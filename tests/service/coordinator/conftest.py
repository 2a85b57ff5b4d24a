"""A coordinator over executors of this process, and a file that functions wait for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fedstack
from fedstack.service.coordinator import ClusterCoordinator


@pytest.fixture
def coordinator() -> Iterator[ClusterCoordinator]:
    with fedstack.local_executor_factory() as factory, ClusterCoordinator(factory) as made:
        yield made


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "open"
    yield made
    made.touch()
