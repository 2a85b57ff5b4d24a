"""Over any number of workers results are those of a local run, to the last bit, and progress is shown on the way."""

import asyncio
import contextlib
import threading

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_computations import DEFAULT_CLIENTS, SLOW_IS_FINE, bare, programs

import fedstack
from fedstack.contexts import SyncExecutionContext
from fedstack.executors import RemoteExecutor
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.remote import phase_messages
from fedstack.foundations.caches import BoundedCache
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.limits import ServiceLimits
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.frames import Chunking

WALL = 20.0
FLOATS = fl.FederatedType(np.float32, fl.CLIENTS)
VECTORS = fl.FederatedType((np.float32, [5]), fl.CLIENTS)
PLAIN = {"extensions": False, "keeps_handles": True}
CHUNKED = Chunking(large_bytes=1, chunk_bytes=7)


def a_service(chunking=None, **limits):
    limits = ServiceLimits(chunking=chunking or Chunking(), **limits)
    return ExecutorService(fedstack.local_executor_factory(), limits=limits)


@pytest.fixture
def services():
    """Services that all examples of a test share; what one leaves behind shows in another."""
    made = [a_service(CHUNKED if k == 4 else None) for k in range(5)]
    yield made
    for service in made:
        io_loop.run_sync(service.close())


def stub_at(service, **options):
    chunking = CHUNKED if service._core.limits.chunking == CHUNKED else None
    return ExecutorStub(InMemoryConnection(service), chunking=chunking, **options)


def over(services, **options):
    stubs = [stub_at(service, **options) for service in services]
    factory = fedstack.remote_executor_factory(stubs, DEFAULT_CLIENTS)
    return SyncExecutionContext(factory)


@pytest.fixture
def contexts(services):
    made = {
        "local": fedstack.create_sync_local_execution_context(default_num_clients=DEFAULT_CLIENTS),
        "1 worker": over(services[:1]),
        "2 workers": over(services[:2]),
        "5 workers": over(services),
        "2 plain workers": over(services[:2], **PLAIN),
        "5 plain workers": over(services, **PLAIN),
    }
    yield made
    for context in made.values():
        context.close()


async def part_by_part(stub, computation, value, clients, **options):
    """Drives a remote executor through the verbs, and computes the members of a struct one by one, the last first."""
    executor = RemoteExecutor(stub, **options)
    executor.set_cardinalities({fl.CLIENTS: clients})
    signature = computation.type_signature
    function = await executor.create_value(computation)
    called = await executor.create_call(function, await executor.create_value(value, signature.parameter))
    if not isinstance(signature.result, fl.StructType):
        found = await called.compute()
    else:
        size = len(list(signature.result.items()))
        members = [await executor.create_selection(called, index) for index in range(size)]
        found = tuple(reversed([await member.compute() for member in reversed(members)]))
    executor.close()
    return found


def bits(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(bits, value))
    return value.dtype, np.shape(value), value.tobytes()


def check(contexts, services, program):
    computation, value, _, clients = program
    note(computation.to_building_block().formatted_representation())
    found = {}
    for name, context in contexts.items():
        with fedstack.use_context(context):
            found[name] = bits(bare(computation(value)))
    for name, options, streamed in [("verbs", {}, False), ("plain verbs", PLAIN, False), ("streamed", PLAIN, True)]:
        work = part_by_part(stub_at(services[4], **options), computation, value, clients, stream_structs=streamed)
        found[name] = bits(bare(asyncio.run(work)))
    for name, result in found.items():
        assert result == found["local"], name


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(program=programs())
def test_a_random_computation_gives_the_same_bits_wherever_it_runs(contexts, services, program):
    check(contexts, services, program)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=examples(3000), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(program=programs() | programs(fuel=8))
def test_many_random_computations_give_the_same_bits_wherever_they_run(contexts, services, program):
    check(contexts, services, program)


@fedstack.python_computation([VECTORS.member], VECTORS.member)
def shifted(x):
    return np.roll(x, 1) * np.float32(1.1)


@fl.federated_computation(FLOATS, VECTORS)
def all_folds(weights, vectors):
    moved = fl.federated_map(shifted, vectors)
    return (
        fl.federated_sum(weights),
        fl.federated_sum(moved),
        fl.federated_mean(vectors),
        fl.federated_mean(moved, weights),
        fl.federated_min(vectors),
        fl.federated_max(moved),
        moved,
    )


@pytest.mark.long
@settings(max_examples=examples(30), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(clients=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_floats_are_folded_along_the_same_tree_wherever_they_are(contexts, clients, seed):
    generator = np.random.default_rng(seed)
    with np.errstate(over="ignore"):  # infinity is a float like others
        weights = generator.lognormal(0, 8, clients).astype(np.float32)
        vectors = generator.lognormal(0, 20, (clients, 5)).astype(np.float32)
    found = {}
    for name, context in contexts.items():
        with fedstack.use_context(context):
            found[name] = bits(bare(all_folds(list(weights), list(vectors))))
    for name, result in found.items():
        assert result == found["local"], name


class Steps:
    """Lets clients go on one by one, as a test says."""

    def __init__(self):
        self.semaphore = threading.Semaphore(0)

    def wait(self):
        assert self.semaphore.acquire(timeout=WALL)


_steps = Steps()


@fedstack.python_computation([np.float32], np.float32)
def waits(x):
    _steps.wait()
    return x


@fl.federated_computation(FLOATS)
def wait_at_clients(values):
    return fl.federated_sum(fl.federated_map(waits, values))


def test_requests_with_large_functions_are_written_anew_when_there_were_others(contexts, monkeypatch):
    def adding(weight):
        leaf = fedstack.python_computation(np.float32, np.float32)(lambda x: x + weight)
        return fl.federated_computation(FLOATS)(lambda xs: fl.federated_sum(fl.federated_map(leaf, xs)))

    kept = BoundedCache(1000, 1)
    monkeypatch.setattr(phase_messages, "_templates", kept)
    some = [adding(weight) for weight in (1.0, 2.0, 3.0)]
    with fedstack.use_context(contexts["1 worker"]):
        for _ in range(2):
            assert [float(one([1.0, 2.0])) for one in some] == [5.0, 7.0, 9.0]
            assert len(kept) == 1


def test_heartbeats_tell_how_far_the_clients_of_a_worker_are():
    """Nothing but heartbeats can tell, for the phase ends after the last of them."""
    services = [a_service(heartbeat_seconds=0.02) for _ in range(2)]
    shown, changed = [], threading.Condition()

    class Listener:
        def changed(self, counts):
            with changed:
                shown.append((counts.done, counts.total))
                changed.notify_all()

    @contextlib.contextmanager
    def progress(computation):
        yield ProgressCounts(Listener())

    stubs = [ExecutorStub(InMemoryConnection(service)) for service in services]
    context = SyncExecutionContext(fedstack.remote_executor_factory(stubs), progress=progress)
    results = []

    def run():
        with fedstack.use_context(context):
            results.append(wait_at_clients([1.0] * 6))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        _steps.semaphore.release()
        with changed:
            assert changed.wait_for(lambda: (1, 6) in shown, WALL), shown
    finally:
        for _ in range(6):
            _steps.semaphore.release()
        thread.join(WALL)
        context.close()
        for service in services:
            io_loop.run_sync(service.close())
    assert results == [6.0]
    assert shown[-1] == (6, 6)
    assert all(done <= total for done, total in shown)
