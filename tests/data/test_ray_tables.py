"""How datasets of Ray are split in several threads; `tests/engines` splits them in a cluster."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from fedstack.data import ray_tables
from fedstack.data.ray_tables import rows_by_client

LIMIT = 20.0


class Dataset:
    """A dataset without rows, which is split when it may be."""

    def __init__(self, options: SimpleNamespace) -> None:
        self.context = SimpleNamespace(execution_options=options)
        self.begun, self.may_end = threading.Event(), threading.Event()

    def columns(self) -> list[str]:
        return ["who"]

    def select_columns(self, cols: Any) -> "Dataset":
        return self

    def sort(self, key: str) -> "Dataset":
        return self

    def to_numpy_refs(self) -> list[Any]:
        self.begun.set()
        assert self.may_end.wait(LIMIT)
        return []


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_tables, "imported_ray", lambda: SimpleNamespace(remote=lambda _: None, get=lambda _: []))


@pytest.mark.parametrize("before", [False, True])
def test_ray_keeps_the_order_until_all_threads_have_split_a_dataset_and_no_longer(before: bool) -> None:
    options = SimpleNamespace(preserve_order=before)
    first, second = Dataset(options), Dataset(options)
    with ThreadPoolExecutor(2) as threads:
        splits = []
        for dataset in (first, second):
            splits.append(threads.submit(rows_by_client, dataset, "who", []))
            assert dataset.begun.wait(LIMIT)
        for dataset, split in zip((first, second), splits):
            assert options.preserve_order is True
            dataset.may_end.set()
            assert split.result(LIMIT) == {}
    assert options.preserve_order is before


def test_a_forked_child_has_the_order_of_rows_as_its_parent_had_it_before() -> None:
    options = SimpleNamespace(preserve_order=False)
    dataset = Dataset(options)
    with ThreadPoolExecutor(1) as threads:
        split = threads.submit(rows_by_client, dataset, "who", [])
        assert dataset.begun.wait(LIMIT)
        ray_tables._ordered.renew()
        assert options.preserve_order is False
        dataset.may_end.set()
        split.result(LIMIT)
