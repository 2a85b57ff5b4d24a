"""Dask's workers as a pool: as many as there are when a phase begins, and Dask runs again what was on a lost one."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pool_leaves import doubled, ending_once, ends_at_three, total_of

import fedstack
from fedstack.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.errors import InvalidValueError, LeafError, NoWorkersError
from fedstack.testing import stack_rows

# Each process of a run collects this file, and Dask takes two seconds to import.
if TYPE_CHECKING:
    import distributed

pytestmark = pytest.mark.fedstack_leak_check(False)  # the cluster is for all tests
# What is special about Dask is how bytes travel, which thread runs a task, and that clients may fail. A phase is bytes
# to it, and what phases do is in the rows over a pool of processes.
ROWS = [
    row
    for row in stack_rows(without=["lazy arguments", "same process"], tags=["values"])
    if row.promise.check.__module__.endswith((".values", ".sequences", ".contexts", ".survivors"))
]


@pytest.fixture(scope="module")
def client() -> "Iterator[distributed.Client]":
    import dask
    import distributed

    # What has ended two workers is not tried again: of two there is one left for the second try.
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}):
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
        ) as cluster:
            with distributed.Client(cluster) as made:
                yield made


def context_over(client: "distributed.Client", **options) -> SyncExecutionContext:
    return SyncExecutionContext(fedstack.pool_executor_factory(client.get_executor(), **options))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_stack_over_dask_keeps_promises_about_values(client: "distributed.Client", row) -> None:
    row.check(lambda: fedstack.pool_executor_factory(client.get_executor()))


def test_an_error_of_a_client_comes_back_as_it_is(client: "distributed.Client") -> None:
    def picky(value):
        raise ValueError(f"not {value}")

    with context_over(client), pytest.raises(LeafError, match="'picky' raised ValueError: not 8; at client 0"):
        total_of(picky)([8, 9])


def test_dask_runs_again_what_was_on_a_worker_that_ended(client: "distributed.Client", tmp_path: Path) -> None:
    with context_over(client):
        assert ending_once(tmp_path / "ended")(list(range(8))) == 28


@pytest.mark.long
def test_a_client_that_ends_one_worker_after_the_other_is_named(client: "distributed.Client") -> None:
    def allow(failures: int) -> None:
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", failures))

    allow(0)
    try:
        with context_over(client), pytest.raises(LeafError, match="'ends_at_three' crashed its worker; at client 3"):
            total_of(ends_at_three)(list(range(8)))
    finally:
        allow(1)


async def test_a_client_with_an_event_loop_of_its_own_needs_a_number() -> None:
    import distributed

    with_loop = {"asynchronous": True, "dashboard_address": ":0", "silence_logs": 50}
    async with distributed.LocalCluster(n_workers=1, processes=False, **with_loop) as cluster:
        async with distributed.Client(cluster, asynchronous=True) as client:
            with pytest.raises(InvalidValueError, match="num_workers is required for a ClientExecutor"):
                fedstack.pool_executor_factory(client.get_executor())
            async with AsyncExecutionContext(fedstack.pool_executor_factory(client.get_executor(), 1)):
                assert await total_of(doubled)([1, 2]) == 6


@pytest.mark.long
def test_a_cluster_without_workers_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstack.backends.pool_backend._JOIN_SECONDS", 0.1)
    import distributed

    with distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as cluster:
        with distributed.Client(cluster) as client:
            policy = fedstack.RetryPolicy.none()
            factory = fedstack.pool_executor_factory(client.get_executor())
            with SyncExecutionContext(factory, retry_policy=policy):
                with pytest.raises(NoWorkersError, match="joined the Dask cluster within 0.1 s; start"):
                    total_of(doubled)([1])
