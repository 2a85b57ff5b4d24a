"""What ends actors, nodes and drivers, and what Ray cannot start."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import federated_language as fl
import numpy as np
import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray_calls import (
    PATIENCE_SECONDS,
    average,
    checked,
    ends_always,
    held_up,
    inputs,
    is_running,
    numbers,
    processes,
    survives,
    wait_until,
)

import fedstack
from fedstack.backends.ray_cluster.ray_backend import RayBackend
from fedstack.backends.ray_cluster.ray_room import Room
from fedstack.backends.task_phases import Task
from fedstack.contexts import ProgressCounts
from fedstack.errors import LeafError, NoWorkersError
from fedstack.executors.concurrency.leaf_threads import LOOP_COPY_BYTES

HALF = {"CPU": 0.5}
QUICK = fedstack.RetryPolicy(attempts=3, first_pause=0.01)


def over_ray(**options):
    return fedstack.create_sync_ray_execution_context(**{"resources_per_worker": HALF, **options})


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_what_a_killed_actor_had_is_run_again(tmp_path) -> None:
    with over_ray(num_workers=2):
        assert survives(str(tmp_path), numbers(10)) == 45
        assert (tmp_path / "ended").exists()
        assert checked(numbers(5)) == 10


def test_a_task_is_cancelled_as_well_if_it_is_just_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_vain(call, cancel):
        call()
        cancel()  # nobody has been told of the task yet
        raise asyncio.CancelledError

    cancelled: list[object] = []
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    method = SimpleNamespace(remote=lambda *_: ("note", "content"))
    backend = RayBackend(cast(Any, SimpleNamespace(check=lambda: None)), cores=1)
    monkeypatch.setattr(backend._threads, "run", in_vain)
    place = cast(Any, SimpleNamespace(handle=SimpleNamespace(run=method)))
    large = [np.zeros(LOOP_COPY_BYTES + 1, np.uint8)]

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await backend.run(place, Task(print, (large,), cast(Any, print)), lambda beat: None)

    asyncio.run(run())
    assert cancelled == ["note"]


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_client_that_ends_actors_again_and_again_is_named() -> None:
    with over_ray(num_workers=1, retry_policy=QUICK):
        with pytest.raises(LeafError, match="'ends' crashed its worker") as caught:
            ends_always([np.int32(4), np.int32(5)])
        assert caught.value.client_index == 1
        assert "its process or its node has ended" in str(caught.value)
        assert checked(numbers(5)) == 10


@ray.remote(num_cpus=0)
class Owner:
    def put(self, arrays):
        return [ray.put(arrays)]


def lost_ref(*content: object) -> object:
    """Returns a reference to something that is gone with its owner."""
    owner = Owner.remote()
    (ref,) = ray.get(owner.put.remote(*content))
    ray.kill(owner)

    def is_lost() -> bool:
        try:
            ray.get(ref)
        except ray.exceptions.OwnerDiedError:
            return True
        return False

    wait_until(is_lost, "the loss of what the actor had put")
    return ref


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_what_is_gone_from_the_object_store_with_its_owner_is_sent_and_made_again(monkeypatch) -> None:
    share, fetch, lost = RayBackend.share, RayBackend.fetch, []

    async def losing_what_is_sent(self, memory):
        if not lost:
            lost.append(lost_ref(memory))
            return lost[0]
        return await share(self, memory)

    async def losing_what_comes(self, content):
        if len(lost) == 1:
            content = lost_ref(np.zeros(50_000))
            lost.append(content)
        return await fetch(self, content)

    with fedstack.create_sync_local_execution_context():
        expected = average(*inputs(20))
    monkeypatch.setattr(RayBackend, "share", losing_what_is_sent)
    monkeypatch.setattr(RayBackend, "fetch", losing_what_comes)
    with over_ray(num_workers=2):
        assert average(*inputs(20)).tobytes() == expected.tobytes()
    assert len(lost) == 2


@pytest.mark.usefixtures("cluster")
def test_a_client_that_needs_more_memory_than_its_process_may_have_is_named() -> None:
    @fedstack.python_computation([np.int32], np.int32)
    def eats(number):
        if number != 2:
            return number
        import resource

        before = resource.getrlimit(resource.RLIMIT_AS)
        there = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (there + 100_000_000, before[1]))
        try:
            return np.ones(500_000_000, np.int8)[number]
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total(numbers):
        return fl.federated_sum(fl.federated_map(eats, numbers))

    with over_ray(num_workers=1):
        with pytest.raises(LeafError, match="'eats' raised .*MemoryError: Unable to allocate .*; at client 2"):
            total(numbers(4))
        assert total(numbers(2)) == 1


@pytest.mark.usefixtures("cluster")
def test_too_few_resources_are_an_error_that_says_which() -> None:
    with over_ray(num_workers=2, resources_per_worker={"CPU": 1, "GPU": 2}, start_seconds=0.5):
        with pytest.raises(NoWorkersError) as caught:
            checked(numbers(3))
    told = str(caught.value)
    assert "No Ray worker was ready within 0.5 s: each worker needs 1 CPU (the cluster has 4" in told
    assert "2 GPU (the cluster has 1, with 1 free); request less in resources_per_worker" in str(caught.value)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_fewer_workers_than_asked_for_do_the_work(caplog) -> None:
    with over_ray(num_workers=3, resources_per_worker={"CPU": 2}):
        assert len(set(processes(numbers(6)))) == 2
    told = "Continuing with 2 of 3 Ray workers; the other workers join when they are ready: each worker needs 2 CPU"
    assert told in caplog.text


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_workers_run_in_a_placement_group_that_is_ready() -> None:
    group = placement_group([{"CPU": 0.5}, {"CPU": 0.5}])
    with over_ray(placement=group):
        assert len(set(processes(numbers(6)))) == 2
    remove_placement_group(group)


@pytest.mark.usefixtures("cluster")
def test_a_placement_group_that_is_never_ready_is_an_error() -> None:
    group = placement_group([{"CPU": 100}])
    with over_ray(placement=group, start_seconds=0.5), pytest.raises(NoWorkersError) as caught:
        checked(numbers(3))
    remove_placement_group(group)
    assert "the placement group reserves" in str(caught.value)
    assert "check that the placement group is ready" in str(caught.value)


@pytest.mark.usefixtures("cluster")
def test_a_placement_group_that_was_removed_is_an_error_at_once() -> None:
    group = placement_group([{"CPU": 1}])
    assert group.wait(PATIENCE_SECONDS)
    remove_placement_group(group)
    with over_ray(placement=group), pytest.raises(NoWorkersError, match="placement group .* has been removed; create"):
        checked(numbers(3))


@pytest.mark.usefixtures("cluster")
def test_what_the_own_workers_have_reserved_is_said() -> None:
    room = Room({"CPU": 1}, "SPREAD")
    holder = Owner.options(num_cpus=3).remote()
    free = "each worker needs 1 CPU (the cluster has 4, with 1 free; "
    wait_until(lambda: free in room.told(0, 2), "three CPUs are held")
    assert "free; up to 2 used by the 2 workers of this context being started); raise start_seconds" in room.lacking(2)
    assert "free; 2 used by the 2 workers of this context; up to 1 used by the 1 worker of" in room.told(2, 1)
    ray.kill(holder)
    wait_until(lambda: room.told(0, 2) == "each worker needs 1 CPU (the cluster has 4, with 4 free)", "they are free")


@pytest.mark.usefixtures("cluster")
def test_memory_is_told_in_gigabytes() -> None:
    with over_ray(num_workers=1, resources_per_worker={"memory": 5e13}, start_seconds=0.5):
        memory = r"each worker needs 5e\+04 GB memory \(the cluster has [\d.]+ GB, with [\d.]+ GB"
        with pytest.raises(NoWorkersError, match=memory):
            checked(numbers(3))


@pytest.mark.usefixtures("cluster")
def test_a_runtime_env_that_does_not_build_is_an_error_at_once() -> None:
    # No package registry is asked. Without virtualenv, Ray builds no environment at all.
    packages = {"packages": ["no-such-package-of-fedstack"], "pip_install_options": ["--no-index"]}
    with over_ray(num_workers=1, runtime_env={"pip": packages}, start_seconds=240.0):
        message = "Ray cannot start a worker: setting up its runtime_env failed; fix"
        with pytest.raises(NoWorkersError, match=message):
            checked(numbers(3))
        context = fl.framework.get_context_stack().current

        def call() -> object:
            with fedstack.use_context(context):
                return checked(numbers(3))

        # Several callers wait for the same actor, and each of them is told.
        with ThreadPoolExecutor(3) as pool:
            for running in [pool.submit(call) for _ in range(3)]:
                with pytest.raises(NoWorkersError, match=message):
                    running.result()


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_ctrl_c_ends_the_clients_that_have_not_begun(tmp_path, request) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell has it ignored
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    main = threading.main_thread().ident

    def interrupt() -> None:
        wait_until(lambda: any(tmp_path.glob("here-*")), "an actor is at work")
        signal.pthread_kill(main, signal.SIGINT)

    with over_ray(num_workers=2, max_concurrent_clients=1):
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            held_up(str(tmp_path), numbers(1000))
        thread.join()
        (tmp_path / "go").touch()
        assert checked(numbers(5)) == 10


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_progress_is_heard_while_clients_run(tmp_path) -> None:
    running = []

    class Listener:
        def changed(self, counts) -> None:
            running.append(counts.running)

    def progress(_):
        return contextlib.nullcontext(ProgressCounts(Listener()))

    def let_go() -> None:
        wait_until(lambda: any(running), "clients are said to run")
        (tmp_path / "go").touch()

    with over_ray(num_workers=1, progress=progress):
        thread = threading.Thread(target=let_go)
        thread.start()
        assert held_up(str(tmp_path), numbers(4)) == 6
        thread.join()


def driver(cluster, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "RAY_ADDRESS": cluster.address if cluster else "local"}
    script = str(Path(__file__).parent / "ray_driver.py")
    return subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.long
def test_a_killed_driver_leaves_no_actor_behind(cluster, tmp_path) -> None:
    with driver(cluster, "wait", str(tmp_path)) as process:
        found = list(map(int, process.stdout.readline().split()))
        assert len(found) == 2
        assert all(map(is_running, found))
        process.kill()
    wait_until(lambda: not any(map(is_running, found)), "the actors have ended")


@pytest.mark.long
def test_ray_is_initialised_where_nobody_has_and_after_it_is_shut_down_by_its_user_alone(cluster, tmp_path) -> None:
    with driver(cluster, "shut_down", str(tmp_path)) as process:
        before, between, after, during, closed = process.stdout.read().splitlines()
    assert (before, after, closed) == ("10 True", "10 True", "closed")
    assert during == between
    assert between.startswith("Ray has been shut down together with the workers of this context")
    assert between.endswith("to start new workers False")


@pytest.mark.long
def test_a_ray_that_a_context_has_started_lives_on_when_the_threads_of_its_first_call_have_ended() -> None:
    with driver(None, "start") as process:
        assert process.stdout.read().split() == ["10", "True", "10"]
    assert process.returncode == 0
