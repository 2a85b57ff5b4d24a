"""Simulated clusters: programs over many seeds, the same run again, and what they find in programs that are wrong."""

import asyncio
import contextlib
import gc
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest
from elastic_programs import elastic_rounds, ending_rounds, spread, surviving_rounds, values_of
from programs import PROGRAMS, rough_run, rounds, runs, third

import fedstack
from fedstack.backends import workers_backend
from fedstack.backends.piece_runs import ClientPieces
from fedstack.errors import ContextError, DeadlineExceededError, InvalidValueError, WorkerUnavailableError
from fedstack.executors import RemoteExecutor
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.service.coordinator import ClusterCoordinator
from fedstack.testing import SimulatedCluster, SimulatedFaults, SimulationError
from fedstack.transport.peers.methods import Method, Service

SEEDS = range(20)  # each with every program: 120 runs; `make simulate` has more
# Seeds by tens: the first ten in each run.
TENS = [0, *(pytest.param(tens, marks=pytest.mark.long) for tens in range(1, len(SEEDS) // 10))]


@pytest.fixture(autouse=True)
def _quiet():
    """Lost workers are what these tests are about."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("tens", TENS)
def test_every_result_is_right_whatever_happens_to_workers(name, tens):
    for seed in SEEDS[10 * tens : 10 * tens + 10]:
        rough_run(name, seed)


@pytest.mark.parametrize("tens", TENS)
def test_rounds_end_with_the_bits_of_a_local_run_however_slow_or_lost_workers_are(tens):
    for seed in SEEDS[10 * tens : 10 * tens + 10]:
        elastic_rounds(seed)


@pytest.mark.parametrize("tens", TENS)
def test_rounds_whose_clients_fail_end_with_the_bits_of_a_local_run(tens):
    for seed in SEEDS[10 * tens : 10 * tens + 10]:
        surviving_rounds(seed)


@pytest.mark.parametrize("tens", TENS)
def test_rounds_that_do_not_wait_for_all_clients_have_the_bits_of_a_local_replay(tens):
    for seed in SEEDS[10 * tens : 10 * tens + 10]:
        ending_rounds(seed)


@pytest.mark.parametrize("rounds", [elastic_rounds, surviving_rounds, ending_rounds])
def test_rounds_whose_clients_travel_in_pieces_have_the_same_bits(rounds, monkeypatch):
    def pieces(inputs, clients, threads):
        return ClientPieces(lambda left: min(4 - left.start % 4, len(left)), 3, in_turn=True) if clients > 4 else None

    monkeypatch.setattr(workers_backend, "pieces_of_inputs", pieces)
    for seed in SEEDS[:5]:
        rounds(seed)


def test_clients_take_simulated_time_on_workers_of_their_own_speed():
    def seconds(seed, number, client):
        assert (seed, number) == (7, 3)
        return 1.0 + client

    async def program(cluster):
        cluster.round = 3
        context = fedstack.contexts.AsyncExecutionContext(fedstack.remote_executor_factory(cluster.stubs()))
        begun = cluster.time
        with fedstack.use_context(context):
            await spread(values_of(0, 4))
        context.close()
        return cluster.time - begun

    # In each of the two phases, clients of 1 and 3 s run in one slot, and clients of 2 and 4 s in the other.
    assert 12.0 < SimulatedCluster(1, seed=7, client_seconds=seconds, slots=2).run(program) < 12.5
    assert 6.0 < SimulatedCluster(1, seed=7, client_seconds=seconds, slots=2, speeds=[2.0]).run(program) < 6.5


def test_speeds_and_clients_of_a_simulation_are_checked():
    with pytest.raises(InvalidValueError, match="a speed for each of 2 workers, found 1 speeds"):
        SimulatedCluster(2, speeds=[1.0])
    with pytest.raises(InvalidValueError, match="speed"):
        SimulatedCluster(1, speeds=[0.0])
    with pytest.raises(InvalidValueError, match="make_services as well"):
        SimulatedCluster(1, client_seconds=lambda *_: 1.0, make_services=lambda clock: [])


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, "1"])
def test_the_time_of_a_client_is_checked(seconds):
    async def program(cluster):
        context = fedstack.contexts.AsyncExecutionContext(fedstack.remote_executor_factory(cluster.stubs()))
        with fedstack.use_context(context):
            await spread(values_of(0, 2))

    with pytest.raises(SimulationError, match="Expected the result of client_seconds"):
        SimulatedCluster(1, client_seconds=lambda *_: seconds).run(program)


@pytest.mark.parametrize("seed", [1676, 1735])
def test_what_a_lost_worker_still_answers_fails_no_call(seed):
    rough_run("scheduled_calls", seed)


def test_who_does_not_try_again_gets_an_error_that_says_that_one_may():
    # There a worker crashes twice within one call, which ends with a session that is gone.
    cluster = rough_run("rounds", 30839)
    assert "RetryLimitError" in cluster.trace


def test_workers_join_and_drain_in_the_midst_of_rounds():
    def trace_of(seed):
        faults = SimulatedFaults(join_seconds=(0.0, 3.0), drain_seconds=10.0, grace_seconds=(0.2, 5.0))
        return elastic_rounds(seed, faults).trace

    traces = [trace_of(seed) for seed in range(12)]
    assert any("draining" in trace and "ShortenPhase" in trace.partition("draining")[2] for trace in traces)
    assert any(
        re.search(r"RunPhase at .*== (worker-\d) start 1\n.*RunPhase at \1:", trace, re.DOTALL) for trace in traces
    )
    assert trace_of(3) == traces[3]


def test_calls_run_once_where_nothing_is_lost():
    cluster = SimulatedCluster(3, seed=3)
    cluster.run(PROGRAMS["calls_that_are_not_repeated"])
    assert "Error" not in cluster.trace
    assert set(runs().values()) == {1}


def test_a_program_that_goes_round_in_circles_ends_with_its_seed():
    async def spin(cluster):
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def circle(cluster):
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    with pytest.raises(SimulationError, match=r"seed 5 failed after 0\.0000(.|\n)*clock to advance"):
        SimulatedCluster(seed=5).run(spin)
    with pytest.raises(SimulationError, match=r"seed 6 failed(.|\n)*to end within 0\.2 real seconds"):
        SimulatedCluster(seed=6, real_seconds=0.2).run(circle)


def test_a_calm_cluster_answers_every_call():
    cluster = SimulatedCluster(2, seed=1)
    cluster.run(rounds)
    assert "Error" not in cluster.trace


@pytest.mark.slow
def test_rough_clusters_see_faults_of_all_kinds():
    clusters = [SimulatedCluster(3, seed, SimulatedFaults.rough()) for seed in range(8)]
    for cluster in clusters:
        cluster.run(rounds)
    told = "".join(cluster.trace for cluster in clusters)
    for kind in ("crash", "start 2", "parted", "healed", "stalled", "resumed", "doubled", "WorkerUnavailableError"):
        assert kind in told, kind


SAME = {"rounds": [5], "elastic": [1, 8, 17, 24]}


def traces_of(which: str) -> list[str]:
    """Returns what happens in some simulations, as text."""
    if which == "elastic":
        return [elastic_rounds(seed).trace for seed in SAME[which]]
    clusters = [SimulatedCluster(3, seed, SimulatedFaults.rough()) for seed in SAME[which]]
    for cluster in clusters:
        cluster.run(rounds)
    return [cluster.trace for cluster in clusters]


@pytest.mark.parametrize("which", SAME)
def test_a_seed_does_the_same_again_in_another_process_too(which: str):
    program = (
        "import logging; logging.disable(logging.ERROR)\n"
        f"from test_simulated_cluster import traces_of; print(*traces_of({which!r}), sep='\\n')"
    )
    folder = Path(__file__).parent
    path = os.pathsep.join(map(str, (folder, folder.parents[1])))
    environment = {**os.environ, "PYTHONHASHSEED": "17", "PYTHONPATH": path}
    again = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    assert again.stdout.splitlines() == "\n".join(traces_of(which)).splitlines()


def test_other_seeds_do_other_things():
    traces = set()
    for seed in range(3):
        cluster = SimulatedCluster(2, seed)
        cluster.run(rounds)
        traces.add(cluster.trace)
    assert len(traces) == 3


def test_a_program_that_fails_names_seed_time_and_what_happened_last():
    async def program(cluster):
        await asyncio.sleep(1.5)
        cluster.workers[1].crash()
        raise ValueError("no luck")

    with pytest.raises(SimulationError) as caught:
        SimulatedCluster(2, seed=9).run(program)
    message = str(caught.value)
    assert "seed 9 failed after 1.5" in message
    assert "ValueError: no luck" in message
    assert "== worker-1 crash" in message
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_program_that_waits_too_long_is_an_error():
    async def program(cluster):
        await asyncio.sleep(100)

    with pytest.raises(SimulationError, match="to end within 50 simulated seconds"):
        SimulatedCluster(1, seconds=50).run(program)


def test_an_error_that_nobody_hears_of_is_an_error():
    async def program(cluster):
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="ZeroDivisionError"):
        SimulatedCluster(1).run(program)


def sessions_at(cluster, index):
    return len(cluster.workers[index].sessions)


def test_a_session_whose_client_is_cut_off_ends_with_its_lease():
    async def program(cluster):
        executor = RemoteExecutor(cluster.stubs()[0])
        executor.set_cardinalities({})
        value = await executor.create_value(np.float32(1), np.float32)
        await (await executor.create_call(await executor.create_value(third), value)).compute()
        assert sessions_at(cluster, 0) == 1
        cluster.workers[0].part()
        await asyncio.sleep(200)
        assert sessions_at(cluster, 0) == 0
        executor.close()

    SimulatedCluster(1).run(program)


def test_an_executor_that_is_left_open_is_an_error():
    left = []

    async def program(cluster):
        executor = RemoteExecutor(cluster.stubs()[0])
        executor.set_cardinalities({})
        await (await executor.create_value(np.float32(1), np.float32)).compute()
        left.append(executor)

    with pytest.raises(
        SimulationError, match="Expected no sessions on worker-0 after all leases have expired, found session"
    ):
        SimulatedCluster(1).run(program)
    left.pop().close()


def test_a_program_that_waits_on_the_loop_of_its_own_workers_fails_and_leaves_nothing_to_complain_of():
    async def program(cluster):
        with ClusterCoordinator(cluster.stubs()) as coordinator:
            value = coordinator.schedule(third, [np.float32(1)])
            value.cancel()
            value.get()  # only an AsyncClusterCoordinator can be used here

    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        with pytest.raises(SimulationError, match="found a call on that loop; await the coroutine instead"):
            SimulatedCluster().run(program)
        gc.collect()
    assert [str(complaint.message) for complaint in complaints] == []


def test_a_worker_without_power_loses_what_it_kept():
    async def program(cluster):
        executor = RemoteExecutor(cluster.stubs()[0])
        executor.set_cardinalities({})
        value = await executor.create_value(np.float32(9), np.float32)
        value = await executor.create_call(await executor.create_value(third), value)
        assert await value.compute() == 3
        cluster.workers[0].crash()
        cluster.workers[0].start()
        with pytest.raises(fedstack.FedstackError) as caught:
            await value.compute()
        executor.close()
        return type(caught.value).__name__

    assert SimulatedCluster(1).run(program) in ("StaleSessionError", "WorkerUnavailableError")


def test_a_way_that_is_cut_is_found_out_within_a_stated_time():
    async def program(cluster):
        executor = RemoteExecutor(cluster.stubs()[0])
        executor.set_cardinalities({})
        value = await executor.create_value(np.float32(9), np.float32)
        await value.compute()
        cluster.workers[0].part()
        begun = cluster.time
        with pytest.raises((WorkerUnavailableError, DeadlineExceededError)):
            await (await executor.create_call(await executor.create_value(third), value)).compute()
        executor.close()
        return cluster.time - begun

    # A creation is tried three times, each until the connection is known to lead nowhere.
    assert 0 < SimulatedCluster(1).run(program) < 31


def test_a_cluster_runs_once():
    async def program(cluster):
        return 7

    cluster = SimulatedCluster(1)
    assert cluster.run(program) == 7
    with pytest.raises(SimulationError, match="found one that has already run; create a new cluster"):
        cluster.run(program)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": (2.0, 1.0)}, "Expected delay as a pair of the minimum and maximum number of seconds, found"),
        ({"lost_rate": 1.5}, "Expected lost_rate to be a rate from 0 to 1, found 1.5"),
        ({"crash_seconds": -1}, "crash_seconds"),
    ],
)
def test_faults_that_cannot_be_are_refused(options, message):
    with pytest.raises(InvalidValueError, match=message.replace("(", r"\(")):
        SimulatedFaults(**options)


def test_a_cluster_without_workers_is_refused():
    with pytest.raises(InvalidValueError, match="workers"):
        SimulatedCluster(0)


def test_a_simulation_does_not_run_inside_of_a_running_loop() -> None:
    async def nothing(cluster: SimulatedCluster) -> int:
        return 3

    async def outer() -> int:
        cluster = SimulatedCluster()
        with pytest.raises(
            ContextError, match=r"found a running event loop.*await asyncio.to_thread\(cluster.run, program\)"
        ):
            cluster.run(nothing)
        return await asyncio.to_thread(cluster.run, nothing)

    assert asyncio.run(outer()) == 3


def test_any_service_says_what_it_keeps_for_clients() -> None:
    class Keeps(Service):
        methods: Mapping[str, Mapping[str, Method]] = {}
        sessions = (GetStatusResponse.Session(id="mine", values=2, lease_seconds_left=1000.0),)

    async def nothing(cluster: SimulatedCluster) -> None:
        pass

    with pytest.raises(SimulationError, match="Expected no sessions on worker-0.*found session mine with 2 values"):
        SimulatedCluster(1, make_services=lambda clock: [Keeps()]).run(nothing)


def test_functions_that_the_caller_folds_with_are_loaded_in_a_simulation():
    @fedstack.python_computation([np.int32, np.int32], np.int32)
    def add(left, right):
        return left + right

    @fedstack.python_computation([np.int32], np.int32)
    def doubled(total):
        return 2 * total

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total_of(values):
        return fl.federated_aggregate(values, np.int32(0), add, add, doubled)

    async def program(cluster):
        context = fedstack.contexts.AsyncExecutionContext(fedstack.remote_executor_factory(cluster.stubs()))
        with fedstack.use_context(context):
            found = await total_of(list(range(12)))
        context.close()
        return found

    assert SimulatedCluster(3).run(program) == 132
