"""How many calls a federated computation makes: as many for one client and one operation as for many."""

import itertools
from collections import Counter

import federated_language as fl
import numpy as np
import pytest
from fault_leaves import MODEL, difference, double, mean_length, wobble
from fault_stacks import context_over, status_of, stub_to
from processes import Fleet, WorkerProcess

from fedstack.backends.elastic import rebalancing

INTS = fl.FederatedType(np.int32, fl.CLIENTS)
NOT_OF_ROUNDS = {"GetStatus", "RenewLease", "Check", "Watch", "Open"}


@pytest.fixture(autouse=True)
def no_phase_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no worker take over clients of another one, as may happen where a phase takes long on a slow machine."""
    monkeypatch.setattr(rebalancing, "SETTLED_SECONDS", 60.0)


def calls_of(worker: WorkerProcess) -> Counter[str]:
    """Counts the calls that a worker has answered by method, those aside that come by the clock."""
    counts = Counter({calls.method.rpartition("/")[2]: calls.count for calls in status_of(worker.target).calls})
    return Counter({method: count for method, count in counts.items() if method not in NOT_OF_ROUNDS})


def chain(operations: int):
    """Returns a sum of what so many operations in a row make of the clients' values."""

    @fl.federated_computation(INTS)
    def run(xs):
        for _ in range(operations):
            xs = fl.federated_map(double, xs)
        return fl.federated_sum(xs)

    return run


@pytest.mark.parametrize("operations", [1, 10, 20])
@pytest.mark.parametrize("clients", [2, 50, 1000])
def test_one_call_to_each_worker_runs_all_operations_of_all_clients(fleet: Fleet, clients, operations) -> None:
    workers = [fleet.start(), fleet.start()]
    computation = chain(operations)
    with context_over([worker.target for worker in workers]):
        assert computation([1] * clients) == np.int32(clients * 2**operations)
        first = [calls_of(worker) for worker in workers]
        assert computation([1] * clients) == np.int32(clients * 2**operations)
        later = [calls_of(worker) - before for worker, before in zip(workers, first, strict=True)]
    # To find out who is there, and to open the session; each is done once.
    assert first == [Counter(Handshake=2, OpenSession=1, RunPhase=1)] * 2
    assert later == [Counter(RunPhase=1)] * 2


def test_each_aggregation_that_waits_for_another_is_one_call_more(fleet: Fleet) -> None:
    @fl.federated_computation(INTS)
    def centred(xs):
        mean = fl.federated_broadcast(fl.federated_sum(xs))
        return fl.federated_sum(fl.federated_map(difference, (xs, mean))), fl.federated_max(xs), fl.federated_min(xs)

    worker = fleet.start()
    with context_over([worker.target]):
        centred([1, 2, 3])
        before = calls_of(worker)
        assert centred([1, 2, 3]) == (-12, 3, 1)
        assert calls_of(worker) - before == Counter(RunPhase=2)


def test_large_values_do_not_take_more_calls(fleet: Fleet) -> None:
    worker = fleet.start()
    with context_over([worker.target]):
        mean_length([np.ones(MODEL.shape, np.float32)] * 3)
        before = calls_of(worker)
        mean_length([np.ones(MODEL.shape, np.float32)] * 3)
        assert calls_of(worker) - before == Counter(RunPhase=1)


@pytest.mark.parametrize("clients", [2, 50])
def test_a_plain_peer_gets_as_many_calls_for_many_clients_as_for_few(fleet: Fleet, clients) -> None:
    worker = fleet.start(extensions=True)

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def total(xs):
        return fl.federated_sum(fl.federated_map(wobble, xs))

    with context_over([stub_to(worker.target, extensions=False)]):
        total([0.1] * clients)
        before = calls_of(worker)
        total([0.1] * clients)
        made = calls_of(worker) - before
    made.pop("Dispose", None)  # in batches, and in their own time
    assert made == Counter(CreateValue=2, CreateCall=1, Compute=1)


def test_an_unused_worker_gets_no_calls_of_rounds(fleet: Fleet) -> None:
    workers = [fleet.start(), fleet.start(), fleet.start()]
    with context_over([worker.target for worker in workers]):
        for _ in itertools.repeat(None, 3):
            chain(1)([1, 1])
    assert sum(calls_of(worker)["RunPhase"] for worker in workers) == 6
