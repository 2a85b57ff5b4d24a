"""Distributed datasets, over a dispatcher and two workers in this process."""

import asyncio
import contextlib
import gc
import math
import pickle
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import federated_language as fl
import grpc
import numpy as np
import pytest
from calling import WALL

import fedstack
from fedstack.command_line.certificates import CertificateFiles
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.errors import (
    AuthenticationError,
    CarrierError,
    ClosedError,
    InvalidComputationError,
    InvalidValueError,
    LeafError,
    NoWorkersError,
    ResourceLimitError,
    TypeMismatchError,
    WorkerUnavailableError,
)
from fedstack.foundations.deadline import Deadline
from fedstack.proto.data_service_pb2 import ReadRequest
from fedstack.service import ClusterSpec, ServerConfig
from fedstack.service.data import (
    Dataset,
    DispatcherConfig,
    DispatchServer,
    ShardingPolicy,
    WorkerConfig,
    WorkerServer,
    distribute,
    from_dataset_id,
    register_dataset,
)
from fedstack.service.data.consumer.connections import Connections
from fedstack.service.data.consumer.distributed_dataset import DistributedIterator
from fedstack.service.data.dispatcher import passes
from fedstack.service.data.reading.local_reader import LocalReader
from fedstack.service.data.reading.readers import Reading
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials

DYNAMIC, OFF = "distributed_epoch", "parallel_epochs"
POLICY = CarrierPolicy(python_code=True)
GUARANTEES = ("at_most_once", "at_least_once", "exactly_once")


@fedstack.python_computation([np.int64], np.int64)
def square(x: Any) -> Any:
    return x * x


@fedstack.python_computation([np.int64], np.bool_)
def is_even(x: Any) -> Any:
    return x % 2 == 0


@fedstack.python_computation([np.int64], np.int64)
def fails_at_500(x: Any) -> Any:
    if x == 500:
        raise ValueError("no 500")
    return x


def counted(elements: Any) -> Counter[str]:
    return Counter(map(repr, elements))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_dynamic_reads_each_element_once(service: DispatchServer, guarantee: str) -> None:
    dataset = Dataset.range(5000).map(square).apply(distribute(DYNAMIC, service, guarantee=guarantee))
    found = list(dataset)
    assert sorted(found) == [x * x for x in range(5000)]
    assert {type(x) for x in found} == {np.int64}


def test_off_reads_all_elements_at_each_worker(service: DispatchServer) -> None:
    dataset = Dataset.range(300).apply(distribute(ShardingPolicy.OFF, service))
    assert Counter(map(int, dataset)) == dict.fromkeys(range(300), 2)
    batches = Dataset.range(10).batch(4).apply(distribute(ShardingPolicy.OFF, service))
    assert sorted(map(len, batches)) == [2, 2, 4, 4, 4, 4]


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d.take(5),
        lambda d: d.skip(3),
        lambda d: d.enumerate(7),
        lambda d: d.filter(is_even),
        lambda d: d.map(square).filter(is_even).map(square),
        lambda d: d.zip(Dataset.range(100, 200)),
        lambda d: d.concatenate(Dataset.range(3)),
        lambda d: d.repeat(3),
        lambda d: d.shuffle(10, 1).take(7),
        lambda d: d.batch(4).map(_sum).take(3),
        lambda d: d.prefetch(10),
    ],
)
def test_steps_mean_the_same_as_locally(service: DispatchServer, make: Callable[[Dataset], Dataset]) -> None:
    local = make(Dataset.range(50))
    assert counted(local.apply(distribute(DYNAMIC, service))) == counted(local)


@fedstack.python_computation([fl.TensorType(np.int64, [None])], np.int64)
def _sum(x: Any) -> Any:
    return x.sum()


def test_batches_are_full_over_the_elements_of_all_workers(service: DispatchServer) -> None:
    found = list(Dataset.range(1000).batch(64).apply(distribute(DYNAMIC, service)))
    assert sorted(map(len, found)) == [40] + [64] * 15
    assert sorted(np.concatenate(found)) == list(range(1000))


def test_a_shuffle_shuffles_what_arrives(service: DispatchServer) -> None:
    found = list(map(int, Dataset.range(500).shuffle(500, 3).apply(distribute(DYNAMIC, service))))
    assert sorted(found) == list(range(500))
    assert found != list(range(500))


def test_further_steps_are_done_here(service: DispatchServer) -> None:
    dataset = Dataset.range(20).apply(distribute(DYNAMIC, service)).map(square).filter(is_even).batch(3)
    assert sorted(np.concatenate(list(dataset))) == [x * x for x in range(0, 20, 2)]
    assert len(list(Dataset.range(20).apply(distribute(DYNAMIC, service)).take(7))) == 7


def test_a_repeat_opens_passes_in_turn(service: DispatchServer) -> None:
    dataset = Dataset.range(100).apply(distribute(DYNAMIC, service)).repeat(3)
    found = list(map(int, dataset))
    assert [sorted(found[at : at + 100]) for at in (0, 100, 200)] == [list(range(100))] * 3
    endless = iter(Dataset.range(3).repeat().apply(distribute(DYNAMIC, service)))
    assert Counter(int(next(endless)) for _ in range(30)) == {0: 10, 1: 10, 2: 10}


def test_structures_and_text_look_as_they_do_locally(service: DispatchServer) -> None:
    arrays = {"name": np.array(["a", "b", "ü"]), "at": (np.arange(6.0).reshape(3, 2), np.arange(3))}
    local = Dataset.from_arrays(arrays)
    assert counted(local.apply(distribute(DYNAMIC, service))) == counted(local)


def test_empty_datasets_have_no_elements(service: DispatchServer) -> None:
    for mode in (DYNAMIC, OFF):
        assert list(Dataset.range(0).apply(distribute(mode, service))) == []
        assert list(Dataset.range(0).batch(3).apply(distribute(mode, service))) == []


def test_async_loops_read_it_too(service: DispatchServer) -> None:
    async def read(dataset: Dataset) -> list[int]:
        return [int(x) async for x in dataset]

    dataset = Dataset.range(3000).apply(distribute(DYNAMIC, service))
    assert sorted(asyncio.run(read(dataset))) == list(range(3000))
    assert asyncio.run(read(Dataset.range(30).map(square))) == [x * x for x in range(30)]


def has_ended(elements: DistributedIterator) -> None:
    """Returns when the dispatcher has heard that an iterator reads no more."""
    driver = elements._passes._driver
    assert driver is not None
    driver.close(WALL)


def test_several_loops_read_at_a_time(service: DispatchServer) -> None:
    async def read(dataset: Dataset) -> int:
        return sum([1 async for _ in dataset])

    async def read_all() -> list[int]:
        dataset = Dataset.range(400).apply(distribute(DYNAMIC, service))
        return await asyncio.gather(*(read(dataset) for _ in range(5)))

    assert asyncio.run(read_all()) == [400] * 5


def test_a_cancelled_loop_reads_no_more(dispatcher: DispatchServer) -> None:
    elements = iter(Dataset.range(10).apply(distribute(DYNAMIC, dispatcher)))

    async def read() -> None:
        async for _ in elements:
            raise AssertionError("there is no worker")

    async def cancel() -> None:
        task = asyncio.ensure_future(read())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    has_ended(elements)


def test_computations_take_distributed_datasets(service: DispatchServer) -> None:
    @fedstack.python_computation([fl.SequenceType(np.int64)], np.int64)
    def total(numbers: Any) -> Any:
        return sum(numbers)

    @fl.federated_computation(fl.FederatedType(fl.SequenceType(np.int64), fl.CLIENTS))
    def total_of_all(data: Any) -> Any:
        return fl.federated_sum(fl.federated_map(total, data))

    dataset = Dataset.range(100).apply(distribute(DYNAMIC, service))
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert total_of_all([dataset, Dataset.range(3), dataset.take(0)]) == 4953


def test_the_number_of_elements_is_known_where_it_is_certain(service: DispatchServer) -> None:
    assert len(Dataset.range(100).batch(30).apply(distribute(DYNAMIC, service))) == 4
    assert len(Dataset.range(100).apply(distribute(DYNAMIC, service)).batch(30)) == 4
    assert Dataset.range(100).apply(distribute(OFF, service)).cardinality is None
    assert Dataset.range(100).apply(distribute(DYNAMIC, service, job_name="j")).cardinality is None
    assert Dataset.range(3).repeat().apply(distribute(OFF, service)).cardinality == math.inf
    assert Dataset.range(9).filter(is_even).apply(distribute(DYNAMIC, service)).cardinality is None


def test_a_registered_dataset_is_found_by_its_id(service: DispatchServer) -> None:
    local = Dataset.range(50).map(square).batch(8).map(_sum)
    dataset_id = register_dataset(service.target, local)
    assert register_dataset(service.target, local) == dataset_id
    with pytest.raises(CarrierError, match=r"must run in this process.*CarrierPolicy\(modules=\['mine'\]"):
        from_dataset_id(DYNAMIC, service, dataset_id)
    found = from_dataset_id(DYNAMIC, service.target, dataset_id, element_spec=np.int64, policy=POLICY)
    assert len(found) == 7
    assert sum(found) == sum(local)
    assert register_dataset(service, local, dataset_id="squares") == "squares"
    assert sum(from_dataset_id(OFF, service, "squares", policy=POLICY)) == 2 * sum(local)


def test_a_dispatcher_is_named_as_any_other_server_is(service: DispatchServer) -> None:
    spec = ClusterSpec({"dispatcher": [service.target], "worker": ["localhost:1"]})
    address = service.target.removeprefix("grpc://")
    assert WorkerConfig(spec.job("dispatcher")).dispatcher_address == service.target
    assert ServerConfig(data_services=spec.job("dispatcher")).data_services == (service.target,)
    assert ServerConfig(data_services=[address, ClusterSpec({"a": [address]})]).data_services == (address, address)
    with grpc.insecure_channel(address) as channel:
        for place in (address, service, spec.job("dispatcher"), spec.task_address("dispatcher", 0), channel):
            assert sorted(Dataset.range(5).apply(distribute(DYNAMIC, place))) == list(range(5))
    two = ClusterSpec({"dispatcher": [service.target, "localhost:1"]})
    with pytest.raises(InvalidValueError, match="Expected one server, found 2: .*; pass the address of one"):
        distribute(DYNAMIC, two)
    with pytest.raises(
        InvalidValueError, match="Expected data_services to contain addresses of dispatchers, found int 3"
    ):
        ServerConfig(data_services=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("transport", "how"), [("stream", "over stream"), ("grpc", "over gRPC")])
def test_the_transport_can_be_chosen(service: DispatchServer, transport: Any, how: str) -> None:
    dataset = Dataset.range(5)
    dataset_id = register_dataset(service, dataset, transport=transport)
    for found in (
        dataset.apply(distribute(DYNAMIC, service, transport=transport)),
        from_dataset_id(DYNAMIC, service, dataset_id, transport=transport),
    ):
        assert sorted(found) == list(range(5))
        connections = found._source._connections
        assert how in repr(connections.dispatcher.connection)
        again = pickle.loads(pickle.dumps(Connections(service.target, transport=transport)))
        assert again._transport == transport


def test_an_unknown_transport_is_refused(service: DispatchServer) -> None:
    for call in (
        lambda: distribute(DYNAMIC, service, transport="http"),  # type: ignore[arg-type]
        lambda: register_dataset(service, Dataset.range(1), transport="http"),  # type: ignore[arg-type]
        lambda: from_dataset_id(DYNAMIC, service, "x", transport="http"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidValueError, match="Expected transport to be one of .*, found 'http'"):
            call()


def test_a_dataset_is_registered_with_the_arguments_in_the_order_of_the_original(service: DispatchServer) -> None:
    numbers = Dataset.range(5)
    assert register_dataset(service, numbers, "AUTO", "numbers") == "numbers"
    assert register_dataset(service, numbers, None, "numbers") == "numbers"
    assert register_dataset(service, numbers, "AUTO") == register_dataset(service, numbers) != "AUTO"
    with pytest.raises(InvalidValueError, match="Expected compression to be 'AUTO' or None, found 'mine'.*dataset_id="):
        register_dataset(service, numbers, "mine")
    with pytest.raises(TypeError, match="positional"):
        distribute(DYNAMIC, service, "job", 0, 2)  # type: ignore[call-arg, misc]


@fedstack.python_computation([np.int64], fl.SequenceType(np.int64))
def up_to(x: Any) -> Any:
    return list(range(x % 5))


def test_further_steps_mean_what_they_mean_locally(service: DispatchServer) -> None:
    local = Dataset.range(100)
    for dataset in (
        local.interleave(up_to, 4, 2),
        local.window(6, 4),
        local.shard(3, 1).padded_batch(5),
        local.batch(4).unbatch().cache().repeat(2),
    ):
        elements = [repr(element) for element in dataset]
        assert sorted(map(repr, dataset.apply(distribute(DYNAMIC, service)))) == sorted(elements)
        everywhere = dataset.apply(distribute(OFF, service))
        assert Counter(map(repr, everywhere)) == Counter({one: 2 * n for one, n in Counter(elements).items()})
    cached = local.cache()
    distributed = cached.apply(distribute(DYNAMIC, service))
    assert sorted(distributed) == list(range(100))
    assert list(distributed) == list(distributed)  # in the order of the first pass
    assert list(cached) == list(range(100))


def test_an_id_stands_for_one_dataset(service: DispatchServer) -> None:
    register_dataset(service, Dataset.range(5), dataset_id="numbers")
    with pytest.raises(InvalidValueError, match="'numbers'.*; choose another dataset_id"):
        register_dataset(service, Dataset.range(6), dataset_id="numbers")
    with pytest.raises(InvalidValueError, match="No dataset with id 'nothing'"):
        from_dataset_id(DYNAMIC, service, "nothing")
    with pytest.raises(TypeMismatchError, match="Expected elements of type float64, .*, found elements of type int64"):
        from_dataset_id(DYNAMIC, service, "numbers", element_spec=np.float64)


def test_consumers_share_the_passes_of_a_job(service: DispatchServer) -> None:
    found: list[list[int]] = [[], []]

    def consume(mine: list[int]) -> None:
        dataset = Dataset.range(3000).apply(distribute(DYNAMIC, service, job_name="shared"))
        mine.extend(map(int, dataset))

    threads = [threading.Thread(target=consume, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found[0] + found[1]) == list(range(3000))


def test_consumers_that_wait_for_each_other_hear_at_once_what_is_done() -> None:
    # Signs of life come every half a minute.
    config = DispatcherConfig(consumer_timeout_ms=90_000)
    with DispatchServer(config) as dispatcher, WorkerServer(WorkerConfig(dispatcher.target)):
        shared = distribute(DYNAMIC, dispatcher, job_name="shared", guarantee="at_least_once")
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.extend(map(int, Dataset.range(3000).apply(shared))), daemon=True)
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WALL)
        assert sorted(found) == list(range(3000))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    "keep_back",
    [
        lambda d: d.batch(7),
        lambda d: d.shuffle(1000, 1),
        lambda d: d.filter(is_even),
        lambda d: d.prefetch(4).batch(7).prefetch(2),
        lambda d: d.shuffle(10, 1).repeat(2).batch(7),
    ],
    ids=["batch", "shuffle", "filter", "prefetch", "repeat"],
)
def test_consumers_whose_steps_keep_elements_back_wait_for_each_other_and_end(
    service: DispatchServer, keep_back: Callable[[Dataset], Dataset], count: int
) -> None:
    dataset = Dataset.range(40)
    found: list[int] = []

    def consume() -> None:
        shared = distribute(DYNAMIC, service, job_name="shared", guarantee="at_least_once")
        for some in keep_back(dataset.apply(shared)):
            found.extend(map(int, np.atleast_1d(some)))

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WALL)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(found) == sorted(int(x) for some in keep_back(dataset) for x in np.atleast_1d(some))


def test_what_a_consumer_had_in_work_while_others_waited_is_read_when_it_is_gone(service: DispatchServer) -> None:
    shared = distribute(DYNAMIC, service, job_name="shared", guarantee="at_least_once")
    busy = iter(Dataset.range(400).apply(shared).batch(7))
    next(busy)
    found: list[int] = []
    others = cast(DistributedIterator, iter(Dataset.range(400).apply(shared).shuffle(1000, 1)))
    thread = threading.Thread(target=lambda: found.extend(map(int, others)), daemon=True)
    thread.start()
    soon(lambda: others._passes._driver is not None and others._passes._driver._plan.waits)
    assert thread.is_alive()
    busy.close()
    thread.join(WALL)
    assert not thread.is_alive()
    assert sorted(found) == list(range(400))


def test_a_consumer_does_not_wait_before_it_has_had_what_its_prefetch_has_made(service: DispatchServer) -> None:
    shared = distribute(DYNAMIC, service, job_name="shared", guarantee="at_least_once")
    other = iter(Dataset.range(400).apply(shared))
    next(other)
    ahead = cast(DistributedIterator, iter(Dataset.range(400).apply(shared).filter(is_even).prefetch(1_000_000)))
    found = [int(next(ahead))]
    driver = ahead._passes._driver
    assert driver is not None
    plan = driver._plan
    soon(lambda: plan._is_asked and plan.others_wait)
    assert not plan.waits
    thread = threading.Thread(target=lambda: found.extend(map(int, ahead)), daemon=True)
    thread.start()
    soon(lambda: plan.waits)
    other.close()
    thread.join(WALL)
    assert not thread.is_alive()
    assert sorted(found) == list(range(0, 400, 2))


def soon(is_so: Callable[[], bool]) -> None:
    """Returns when something is so."""
    end = time.monotonic() + WALL
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.long
def test_without_workers_a_pass_ends_after_the_time_that_the_user_gives(dispatcher: DispatchServer) -> None:
    dataset = Dataset.range(3).apply(distribute(DYNAMIC, dispatcher, dispatcher_timeout_ms=300))
    with pytest.raises(NoWorkersError, match=r"of the dispatcher at .*, found none within 0\.3 s; start one with"):
        list(dataset)


def test_a_consumer_that_stops_leaves_to_others_what_it_has_not_begun(service: DispatchServer) -> None:
    shared = distribute(DYNAMIC, service, job_name="left", guarantee="at_least_once")
    dataset = Dataset.range(3000).apply(shared)
    elements = iter(dataset)
    first = [int(next(elements)) for _ in range(10)]
    elements.close()
    rest = list(map(int, Dataset.range(3000).apply(shared)))
    assert set(first + rest) == set(range(3000))


@pytest.mark.parametrize("protocol", ["", "grpc://"])
def test_the_examples_of_the_original_run(protocol: str) -> None:
    dispatcher = DispatchServer()
    dispatcher_address = protocol + dispatcher.target.split("://")[1]
    worker = WorkerServer(WorkerConfig(dispatcher_address=dispatcher_address))
    dataset = Dataset.range(10)
    dataset = dataset.apply(distribute(processing_mode="parallel_epochs", service=dispatcher.target))
    assert sorted(dataset.as_numpy_iterator()) == list(range(10))

    dataset = Dataset.range(10)
    dataset_id = register_dataset(dispatcher.target, dataset)
    dataset = from_dataset_id(
        processing_mode="parallel_epochs",
        service=dispatcher.target,
        dataset_id=dataset_id,
        element_spec=dataset.element_spec,
    )
    assert sorted(dataset.as_numpy_iterator()) == list(range(10))
    worker.stop()
    dispatcher.stop()
    assert dispatcher.join(WALL)


def test_a_late_consumer_gets_nothing_and_is_told_why(
    service: DispatchServer, caplog: pytest.LogCaptureFixture
) -> None:
    early = Dataset.range(10).apply(distribute(DYNAMIC, service, job_name="late"))
    late = Dataset.range(10).apply(distribute(DYNAMIC, service, job_name="late"))
    assert len(list(early)) == 10
    assert list(late) == []
    assert "Pass 0 of the job 'late' has ended" in caplog.text
    assert len(list(late)) == 10, "the next pass"


def test_a_job_is_of_one_dataset_and_one_kind(service: DispatchServer) -> None:
    list(Dataset.range(10).apply(distribute(DYNAMIC, service, job_name="one")))
    with pytest.raises(InvalidValueError, match="the dataset of job 'one'"):
        list(Dataset.range(11).apply(distribute(DYNAMIC, service, job_name="one")))
    with pytest.raises(InvalidValueError, match="the sharding policy of job 'one' to be dynamic, found off"):
        list(Dataset.range(10).apply(distribute(OFF, service, job_name="one")))


@pytest.mark.parametrize("mode", [DYNAMIC, OFF])
def test_an_error_of_a_function_ends_that_pass_and_no_other(service: DispatchServer, mode: str) -> None:
    other = iter(Dataset.range(5000).apply(distribute(DYNAMIC, service)))
    before = [next(other) for _ in range(10)]
    with pytest.raises(
        LeafError, match=r"'fails_at_500' raised ValueError: no 500(?s:.*)the data worker at 127\.0\.0\.1"
    ):
        list(Dataset.range(1000).map(fails_at_500).apply(distribute(mode, service)))
    assert len(before + list(other)) == 5000


def test_one_worker_keeps_the_order(dispatcher: DispatchServer, start_worker: Any) -> None:
    start_worker()
    assert list(Dataset.range(20_000).apply(distribute(DYNAMIC, dispatcher))) == list(range(20_000))


def test_workers_join_in_the_middle(dispatcher: DispatchServer, start_worker: Any) -> None:
    dataset = Dataset.range(100_000).apply(distribute(DYNAMIC, dispatcher))
    threading.Timer(0.3, start_worker).start()
    elements = iter(dataset)
    before = [int(next(elements)) for _ in range(1000)]
    start_worker()
    assert sorted(before + list(map(int, elements))) == list(range(100_000))


def test_a_worker_that_stops_orderly_costs_nothing(dispatcher: DispatchServer, start_worker: Any) -> None:
    first, _ = start_worker(), start_worker()
    elements = iter(Dataset.range(50_000).apply(distribute(DYNAMIC, dispatcher, guarantee="exactly_once")))
    before = [int(next(elements)) for _ in range(1000)]
    first.stop(0)
    assert sorted(before + list(map(int, elements))) == list(range(50_000))
    assert elements.missing == 0


def test_a_cursor_goes_on_where_it_was_taken(service: DispatchServer) -> None:
    local = Dataset.range(5000).map(square)
    elements = iter(local.apply(distribute(DYNAMIC, service, guarantee="exactly_once")))
    before = [int(next(elements)) for _ in range(1234)]
    cursor = elements.cursor()
    [next(elements) for _ in range(700)]
    elements.close()
    again = local.apply(distribute(DYNAMIC, service, guarantee="exactly_once", resume=cursor))
    assert sorted(before + list(map(int, again))) == [x * x for x in range(5000)]
    assert len(list(again)) == 5000, "the next pass is a new one"


def test_a_cursor_that_was_taken_in_the_middle_is_good_after_the_end_too(service: DispatchServer) -> None:
    local = Dataset.range(300)
    elements = iter(local.apply(distribute(DYNAMIC, service, guarantee="exactly_once")))
    had = [next(elements) for _ in range(100)]
    cursor = elements.cursor()
    rest = list(elements)
    elements.close()
    again = local.apply(distribute(DYNAMIC, service, guarantee="exactly_once", resume=cursor))
    assert sorted([*had, *again]) == sorted([*had, *rest]) == list(range(300))


def test_a_cursor_is_good_for_who_could_not_go_on_from_it_before(service: DispatchServer) -> None:
    local = Dataset.range(5000)
    elements = iter(local.apply(distribute(DYNAMIC, service, guarantee="exactly_once")))
    before = [int(next(elements)) for _ in range(1234)]
    cursor = elements.cursor()
    elements.close()
    for _ in range(2):
        again = iter(local.apply(distribute(DYNAMIC, service, guarantee="exactly_once", resume=cursor)))
        next(again)
        again.close()
    at_last = local.apply(distribute(DYNAMIC, service, guarantee="exactly_once", resume=cursor))
    assert sorted(before + list(map(int, at_last))) == list(range(5000))


def test_a_cursor_may_be_taken_after_an_error_of_the_dispatcher(
    service: DispatchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Dataset.range(5000)
    elements = iter(local.apply(distribute(DYNAMIC, service, guarantee="exactly_once")))
    before = [int(next(elements)) for _ in range(10)]
    release, released = passes.release, threading.Event()

    def note_release(*arguments: Any) -> bool:
        wakes = release(*arguments)
        released.set()
        return wakes

    monkeypatch.setattr(passes, "release", note_release)
    with monkeypatch.context() as full:
        full.setattr(passes, "take", no_room)
        with pytest.raises(ResourceLimitError, match="no room"):
            before.extend(map(int, elements))
    assert released.wait(WALL), "the pass has been left"
    cursor = elements.cursor()
    elements.close()
    again = local.apply(distribute(DYNAMIC, service, guarantee="exactly_once", resume=cursor))
    assert sorted([*before, *map(int, again)]) == list(range(5000))


def no_room(*_: object, **__: object) -> passes.Taken:
    raise ResourceLimitError("there is no room")


def test_a_cursor_may_be_taken_after_an_error_here(service: DispatchServer) -> None:
    exactly = distribute(DYNAMIC, service, guarantee="exactly_once")
    elements = iter(Dataset.range(5000).apply(exactly).map(fails_at_500))
    before: list[int] = []
    with pytest.raises(LeafError):
        before.extend(map(int, elements))
    cursor = elements.cursor()
    again = Dataset.range(5000).apply(distribute(DYNAMIC, service, guarantee="exactly_once", resume=cursor))
    assert sorted([*before, *map(int, again)]) == list(range(5000))


def test_a_cursor_may_be_taken_after_a_wait_that_was_cancelled(
    dispatcher: DispatchServer, start_worker: Callable[..., object]
) -> None:
    local = Dataset.range(5000)

    async def first() -> bytes:
        elements = iter(local.apply(distribute(DYNAMIC, dispatcher, guarantee="exactly_once")))
        deadline = Deadline(WALL)
        while True:
            with pytest.raises(asyncio.TimeoutError):  # there is no worker yet
                await asyncio.wait_for(elements.__anext__(), 0.3)
            with contextlib.suppress(InvalidValueError):  # the pass has not begun yet
                return elements.cursor()
            assert not deadline.is_over

    cursor = asyncio.run(first())
    start_worker()
    again = local.apply(distribute(DYNAMIC, dispatcher, guarantee="exactly_once", resume=cursor))
    assert sorted(map(int, again)) == list(range(5000))


def test_a_closed_iterator_has_a_cursor_only_if_it_had_one_before(service: DispatchServer) -> None:
    local = Dataset.range(5000)
    exactly = distribute(DYNAMIC, service, guarantee="exactly_once")
    elements = iter(local.apply(exactly))
    before = [int(next(elements)) for _ in range(10)]
    elements.cursor()
    before.append(int(next(elements)))
    elements.close()
    again = local.apply(distribute(DYNAMIC, service, guarantee="exactly_once", resume=elements.cursor()))
    assert sorted([*before, *map(int, again)]) == list(range(5000))
    elements = iter(local.apply(exactly))
    next(elements)
    elements.close()
    with pytest.raises(ClosedError, match=r"request the cursor before calling close\(\)"):
        elements.cursor()


def test_a_cursor_counts_the_elements_of_batches(service: DispatchServer) -> None:
    local = Dataset.range(1000).batch(7)
    elements = iter(local.apply(distribute(DYNAMIC, service, guarantee="exactly_once")).map(_sum))
    before = [int(next(elements)) for _ in range(50)]
    cursor = elements.cursor()
    elements.close()
    again = local.apply(distribute(DYNAMIC, service, guarantee="exactly_once", resume=cursor)).map(_sum)
    assert sum(before) + sum(map(int, again)) == sum(range(1000))


def test_a_cursor_counts_elements_that_are_left_out_before_they_come(
    dispatcher: DispatchServer, start_worker: Any
) -> None:
    start_worker()

    def every_fiftieth(**options: Any) -> Dataset:
        exactly = distribute(DYNAMIC, dispatcher, guarantee="exactly_once", **options)
        return Dataset.range(300).apply(exactly).shard(50, 0)

    elements: Any = iter(every_fiftieth())
    assert [int(next(elements)) for _ in range(2)] == [0, 50]
    cursor = elements.cursor()
    elements.close()
    assert list(map(int, every_fiftieth(resume=cursor))) == [100, 150, 200, 250]


@pytest.mark.parametrize("size", [0, 5])
def test_an_iterator_has_a_cursor_between_its_first_element_and_its_end(service: DispatchServer, size: int) -> None:
    elements = iter(Dataset.range(size).apply(distribute(DYNAMIC, service, guarantee="exactly_once")))
    with pytest.raises(InvalidValueError, match="found a new iterator; read an element first"):
        elements.cursor()
    assert len(list(elements)) == size
    with pytest.raises(InvalidValueError, match="found an iterator at its end"):
        elements.cursor()


def test_there_is_no_cursor_where_the_place_cannot_be_told(service: DispatchServer) -> None:
    exactly = distribute(DYNAMIC, service, guarantee="exactly_once")
    for dataset in (Dataset.range(9).shuffle(3, 1).apply(exactly), Dataset.range(9).apply(exactly).repeat(2)):
        elements = iter(dataset)
        next(elements)
        with pytest.raises(
            InvalidComputationError, match="create the cursor from an iterator over the dataset without"
        ):
            elements.cursor()
    elements = iter(Dataset.range(9).apply(distribute(DYNAMIC, service)))
    next(elements)
    with pytest.raises(InvalidValueError, match="Expected the guarantee 'exactly_once' for a cursor"):
        elements.cursor()


def test_a_cursor_is_of_one_dataset_and_job(service: DispatchServer) -> None:
    elements = iter(Dataset.range(9).apply(distribute(DYNAMIC, service, guarantee="exactly_once")))
    next(elements)
    cursor = elements.cursor()
    with pytest.raises(InvalidValueError, match="a cursor of this dataset"):
        Dataset.range(10).apply(distribute(DYNAMIC, service, guarantee="exactly_once", resume=cursor))
    with pytest.raises(InvalidValueError, match="Expected guarantee to be 'exactly_once' for a pass that is resumed"):
        distribute(DYNAMIC, service, resume=cursor)
    with pytest.raises(InvalidValueError, match="Expected job_name to be '', as in the pass to resume, found 'j'"):
        distribute(DYNAMIC, service, guarantee="exactly_once", resume=cursor, job_name="j")
    with pytest.raises(
        InvalidValueError, match="ShardingPolicy.DYNAMIC, as in the pass to resume, found ShardingPolicy.OFF; use"
    ):
        distribute(OFF, service, guarantee="exactly_once", resume=cursor)
    changed = bytes([*cursor[:-1], cursor[-1] ^ 1])
    for wrong, error in ((changed, InvalidValueError), (b"", InvalidValueError), ("text", TypeMismatchError)):
        with pytest.raises(error, match="the bytes that an iterator's cursor"):
            distribute(DYNAMIC, service, guarantee="exactly_once", resume=wrong)  # type: ignore[arg-type]


def test_a_dropped_iterator_ends_its_pass(service: DispatchServer) -> None:
    dataset = Dataset.range(100_000).apply(distribute(DYNAMIC, service))
    elements = iter(dataset)
    next(elements)
    dropped = weakref.ref(elements._passes)
    driver = weakref.ref(elements._passes._driver)
    del elements
    gc.collect()
    assert dropped() is None
    for _ in range(200):
        if driver() is None:
            break
        threading.Event().wait(0.02)
        gc.collect()
    assert driver() is None, "nothing keeps what reads"


def test_a_distributed_dataset_is_not_distributed_again(service: DispatchServer) -> None:
    dataset = Dataset.range(5).apply(distribute(DYNAMIC, service))
    with pytest.raises(CarrierError, match="The dataset cannot be sent to other processes, because its source"):
        dataset.apply(distribute(DYNAMIC, service))
    with pytest.raises(CarrierError, match="The dataset cannot be sent to other processes, because its source"):
        register_dataset(service, Dataset.range(5).zip(dataset))


def test_clients_are_made_of_distributed_datasets_too(service: DispatchServer) -> None:
    local = Dataset.from_arrays({"who": np.array(["a", "b", "a"]), "x": np.arange(3)})
    clients = local.apply(distribute(DYNAMIC, service)).by_client("who")
    assert clients.client_ids == ["a", "b"]
    assert sorted(int(e["x"]) for e in clients["a"]) == [0, 2]


def test_a_function_that_workers_do_not_let_in_is_named() -> None:
    with DispatchServer() as dispatcher, WorkerServer(port=0, dispatcher_address=dispatcher.target):
        with pytest.raises(CarrierError, match="--allow-"):
            list(Dataset.range(5).map(square).apply(distribute(DYNAMIC, dispatcher)))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"processing_mode": 1}, TypeMismatchError, "Expected processing_mode to be .*, found"),
        ({"processing_mode": "whole"}, InvalidValueError, "FILE or DATA, found 'whole'$"),
        ({"processing_mode": ShardingPolicy.FILE}, InvalidValueError, "Expected a dataset of files.*DATA"),
        ({"processing_mode": ShardingPolicy.FILE_OR_DATA}, InvalidValueError, "found ShardingPolicy.FILE_OR_DATA"),
        ({"processing_mode": ShardingPolicy.HINT}, InvalidValueError, "found ShardingPolicy.HINT.* use .*FILE"),
        ({"processing_mode": "hint"}, InvalidValueError, r"found ShardingPolicy.HINT, .* add a shard\(n, index\) step"),
        ({"service": ""}, InvalidValueError, "Expected service to be the address of a dispatcher"),
        ({"service": 5}, InvalidValueError, "Expected service to be the address of a dispatcher"),
        ({"service": "grpc://a://b:1"}, InvalidValueError, "found 'grpc://a://b:1'"),
        ({"service": ("grpc", 5)}, InvalidValueError, "Expected service to be a tuple of a protocol and an address"),
        ({"service": ("http", "a:1")}, InvalidValueError, "replace the scheme with"),
        ({"service": "localhost"}, InvalidValueError, "an address with a port"),
        ({"compression": "snappy"}, InvalidValueError, "Expected compression to be 'AUTO' or None"),
        (
            {"target_workers": "remote"},
            InvalidValueError,
            "Expected target_workers to be one of 'AUTO', 'ANY', 'LOCAL'",
        ),
        ({"job_name": ""}, InvalidValueError, "Expected job_name to be a non-empty string"),
        ({"job_name": 5}, InvalidValueError, "Expected job_name to be a non-empty string"),
        ({"max_outstanding_requests": 0}, InvalidValueError, "max_outstanding_requests to be one or more"),
        ({"max_outstanding_requests": "2"}, TypeMismatchError, "max_outstanding_requests to be an integer"),
        ({"guarantee": "twice"}, InvalidValueError, "Expected guarantee to be one of 'at_most_once'"),
        ({"dispatcher_timeout_ms": -1}, InvalidValueError, "dispatcher_timeout_ms"),
        (
            {"element_spec": np.float32},
            TypeMismatchError,
            "Expected elements of type float32, as declared by element_spec, found elements of type int64",
        ),
        ({"element_spec": "x y"}, TypeMismatchError, "Expected a type for element_spec, found"),
        ({"consumer_index": 0}, InvalidValueError, "The argument consumer_index=.* is not supported.*job_name"),
        ({"num_consumers": 2}, InvalidValueError, "The argument num_consumers=.* is not supported.*job_name"),
        (
            {"cross_trainer_cache": object()},
            InvalidValueError,
            "The argument cross_trainer_cache=.* is not supported.*job_name",
        ),
        (
            {"data_transfer_protocol": "shm"},
            InvalidValueError,
            "The argument data_transfer_protocol=.* is not supported.*grpc\\+local",
        ),
        ({"colour": "red"}, TypeError, "Unknown argument 'colour'"),
    ],
)
def test_an_argument_that_cannot_be_right_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Dataset.range(5).apply(distribute(**{"processing_mode": DYNAMIC, "service": "localhost:1", **arguments}))


def test_arguments_that_say_nothing_new_are_taken(service: DispatchServer) -> None:
    dataset = Dataset.range(5).apply(
        distribute(
            "distributed_epoch",
            ("grpc", service.target.partition("://")[2] or service.target),
            consumer_index=None,
            compression=None,
            target_workers="any",
            max_outstanding_requests=1,
            element_spec=fl.TensorType(np.int64),
        )
    )
    assert sorted(dataset) == [0, 1, 2, 3, 4]


def test_what_is_no_dataset_is_refused(service: DispatchServer) -> None:
    with pytest.raises(TypeMismatchError, match="Expected distribute to be applied to a dataset, found"):
        distribute(DYNAMIC, service)([1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeMismatchError, match="Expected register_dataset to receive a dataset, found"):
        register_dataset(service, [1, 2])  # type: ignore[arg-type]


def test_a_dispatcher_that_is_not_there_is_an_error_in_time() -> None:
    for call in (
        lambda: register_dataset("localhost:1", Dataset.range(5), dispatcher_timeout_ms=300),
        lambda: from_dataset_id(DYNAMIC, "localhost:1", "x", dispatcher_timeout_ms=300),
        lambda: list(Dataset.range(5).apply(distribute(DYNAMIC, "localhost:1", dispatcher_timeout_ms=300))),
    ):
        with pytest.raises(WorkerUnavailableError, match="localhost:1: no server is listening"):
            call()


def test_a_server_of_another_kind_is_named(service: DispatchServer, start_worker: Any) -> None:
    worker = start_worker()
    with pytest.raises(fedstack.FedstackError, match="Expected the dispatcher of a data service at"):
        list(Dataset.range(5).apply(distribute(DYNAMIC, worker.target)))


def test_workers_of_this_process_hand_over_their_memory() -> None:
    numbers = np.arange(1000.0).reshape(100, 10)
    with DispatchServer(DispatcherConfig(protocol="grpc+local")) as dispatcher:
        with WorkerServer(WorkerConfig(dispatcher.target, protocol="grpc+local")):
            dataset = Dataset.from_arrays(numbers).apply(distribute(DYNAMIC, dispatcher, target_workers="LOCAL"))
            first, second = list(dataset), list(dataset)
            assert len(first) == 100
            assert np.shares_memory(first[0], second[0])
            assert not first[0].flags.writeable


def test_a_slow_consumer_has_little_made_ahead(dispatcher: DispatchServer, start_worker: Any) -> None:
    start_worker()
    made: list[int] = []

    def elements(split: int) -> Any:
        for number in range(200):
            made.append(number)
            yield np.full(1 << 17, number, np.float64)  # a megabyte

    dataset = Dataset.from_generator(elements, fl.TensorType(np.float64, [1 << 17]), name="large")
    iterator = iter(dataset.apply(distribute(DYNAMIC, dispatcher, max_outstanding_requests=1)))
    next(iterator)
    before = -1
    while before != len(made):  # until nothing is made any more
        before = len(made)
        threading.Event().wait(0.2)
    assert before < 40
    assert [int(e[0]) for e in iterator] == list(range(1, 200))


def test_certificates_and_tokens_say_who_may_read(files: CertificateFiles, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    theirs = ServerCredentials.from_files(
        certificate=files.server_cert, private_key=files.server_key, client_root_certificates=files.ca
    )
    own = ClientCredentials.from_files(
        root_certificates=files.ca,
        certificate=files.client_cert,
        private_key=files.client_key,
        token_file=tmp_path / "token",
    )
    (tmp_path / "worker-token").write_text("of-workers\n")
    secured: dict[str, Any] = {
        "credentials": theirs,
        "token_file": tmp_path / "token",
        "worker_token_file": tmp_path / "worker-token",
    }
    with DispatchServer(DispatcherConfig(**secured)) as dispatcher:
        with WorkerServer(WorkerConfig(dispatcher.target, client_credentials=own, **secured)):
            dataset_id = register_dataset(dispatcher, Dataset.range(30), credentials=own)
            assert sorted(from_dataset_id(DYNAMIC, dispatcher, dataset_id, credentials=own)) == list(range(30))
            for bad in (None, attrs.evolve(own, token="guess", files=None), ClientCredentials(token="secret")):
                with pytest.raises(AuthenticationError):
                    list(Dataset.range(30).apply(distribute(DYNAMIC, dispatcher, credentials=bad)))


def test_local_workers_alone_are_asked_where_that_is_wanted(service: DispatchServer) -> None:
    assert sorted(Dataset.range(9).apply(distribute(DYNAMIC, service, target_workers="local"))) == list(range(9))
    assert not Connections("localhost:1", only_local=True).may_ask(b"of another process", "localhost:2")
    assert Connections("localhost:1").may_ask(b"of another process", "localhost:2")


def test_elements_before_an_error_come_first(dispatcher: DispatchServer, start_worker: Any) -> None:
    start_worker()
    found: list[int] = []
    with pytest.raises(LeafError, match="at element 500 of map"):
        for element in Dataset.range(1000).map(fails_at_500).take(1000).apply(distribute(DYNAMIC, dispatcher)):
            found.append(int(element))
    assert found == list(range(500))


def test_workers_hear_of_which_pass_a_range_is(service: DispatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    passes_read: list[bytes] = []

    def open(self: LocalReader, what: ReadRequest, *args: Any) -> Reading:
        passes_read.append(what.pass_id)
        return opened(self, what, *args)

    opened = LocalReader.open
    monkeypatch.setattr(LocalReader, "open", open)
    dataset = Dataset.range(100).apply(distribute(DYNAMIC, service))
    for passes_until_now in (1, 2):
        assert len(list(dataset)) == 100
        assert len(set(passes_read)) == passes_until_now
    assert all(passes_read)
