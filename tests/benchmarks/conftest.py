"""Starts what a process needs for gRPC, and for pools of processes, before the first test."""

from multiprocessing import resource_tracker

import pytest
from grpc_fixture import grpc_is_up as grpc_is_up


@pytest.fixture(scope="session", autouse=True)
def resources_are_tracked() -> None:
    """Starts what `multiprocessing` has for all spawned processes: it stays until this one ends."""
    resource_tracker.ensure_running()
