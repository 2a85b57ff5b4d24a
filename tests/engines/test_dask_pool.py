"""Dask's workers as a pool: as many as there are when a phase begins, and Dask runs again what was on a lost one."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import federated_language as fl
import numpy as np
import pytest
from pool_leaves import doubled, ending_once, ends_at_three, total_of

import fedstack
from fedstack.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.errors import InvalidValueError, LeafError, NoWorkersError
from fedstack.observe import ClientsRetried, Observer, PhaseEnded, add_observer
from fedstack.testing import stack_rows

# Each process of a run collects this file, and Dask takes two seconds to import.
if TYPE_CHECKING:
    import distributed

pytestmark = pytest.mark.fedstack_leak_check(False)  # the cluster is for all tests
# What is special about Dask is how bytes travel and which thread runs a task. Any phase is bytes to it, and what phases
# do is in the rows over a pool of processes.
ROWS = [
    row
    for row in stack_rows(without=["lazy arguments", "same process"], tags=["values"])
    if row.promise.check.__module__.endswith((".values", ".sequences", ".contexts"))
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


MODEL = np.ones(1 << 19, np.float32)


def weighed(before=lambda value: None):
    """Returns a computation whose clients share a large model."""

    @fedstack.python_computation((np.int32, (np.float32, MODEL.shape)), (np.float32, [4]))
    def add_model(value, model):
        time.sleep(0.01)
        before(value)
        return model[:4] + np.float32(value)

    @fl.federated_computation(
        fl.FederatedType(np.int32, fl.CLIENTS), fl.FederatedType(fl.TensorType(np.float32, MODEL.shape), fl.SERVER)
    )
    def weigh(values, model):
        return fl.federated_sum(fl.federated_map(add_model, (values, fl.federated_broadcast(model))))

    return weigh


class Diary(Observer):
    """Keeps the events of one kind."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.events: list[object] = []

    def observe(self, event: object) -> None:
        if isinstance(event, self.kind):
            self.events.append(event)


def test_a_large_value_that_clients_share_is_scattered_once_in_a_phase(client, monkeypatch) -> None:
    scattered: list[object] = []
    scatter = client.scatter
    monkeypatch.setattr(
        client, "scatter", lambda *given, **named: (scattered.append(given), scatter(*given, **named))[1]
    )
    weigh, tasks = weighed(), Diary(PhaseEnded)
    with context_over(client, max_concurrent_clients=1), add_observer(tasks):
        for _ in range(2):  # once its clients have been measured, the second has several tasks for each worker
            assert weigh(list(range(320)), MODEL).tolist() == [320 + 51_040] * 4
    assert len(scattered) == 2
    assert len([one for one in tasks.events if one.worker]) > 4


@pytest.mark.long
def test_values_that_are_lost_with_all_workers_are_scattered_again(tmp_path: Path) -> None:
    import distributed

    flag, pids = tmp_path / "killed", []

    def ends_all(value):
        if value == 30 and not flag.exists():
            flag.touch()
            for pid in sorted(pids, key=lambda pid: pid == os.getpid()):  # its own process last
                os.kill(pid, signal.SIGKILL)

    retried = Diary(ClientsRetried)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as cluster:
        with distributed.Client(cluster) as made, context_over(made), add_observer(retried):
            pids += made.run(os.getpid).values()
            assert weighed(ends_all)(list(range(40)), MODEL).tolist() == [40 + 780] * 4
    assert flag.exists()
    assert retried.events


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
