"""Starts what a process needs for gRPC and for pools of processes before the first test, and hides other tests."""

import gc
from multiprocessing import resource_tracker
from types import SimpleNamespace

import pytest
from grpc_fixture import grpc_is_up as grpc_is_up

from benchmarks import harness


@pytest.fixture(scope="session", autouse=True)
def resources_are_tracked() -> None:
    """Starts what `multiprocessing` has for all spawned processes: it stays until this one ends."""
    resource_tracker.ensure_running()


@pytest.fixture(autouse=True)
def the_collector_looks_at_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps thousands of collected tests out of each `gc.collect()` of a benchmark, as the check for leaks does.

    A benchmark that unfroze them would have that check take what earlier tests keep for new.
    """
    hidden = SimpleNamespace(collect=gc.collect, freeze=gc.freeze, unfreeze=lambda: None)
    monkeypatch.setattr(harness, "gc", hidden)
