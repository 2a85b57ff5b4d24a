"""What a dispatcher says to consumers and workers."""

import asyncio
import hashlib
import threading
import time
from collections.abc import Iterator

import pytest
from dispatching import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    OFF,
    Consumer,
    Peer,
    description,
    splits,
)

from fedstack.errors import InvalidValueError, MembershipError, RemoteError, ResourceLimitError, StaleSessionError
from fedstack.proto import data_service_pb2 as messages
from fedstack.proto.datasets_pb2 import DatasetStep
from fedstack.service.data import DispatcherConfig, DispatcherLimits, DispatchServer

BATCH = DatasetStep(batch=DatasetStep.Batch(size=2))


def test_a_dataset_is_known_by_its_digest_and_by_its_name(peer: Peer) -> None:
    digest = peer.register(b"mine", 7, dataset_id="numbers", cardinality=7)
    by_name, by_digest = peer.describe("numbers"), peer.describe(digest=digest)
    assert by_name == by_digest
    assert (by_name.digest, by_name.num_splits, by_name.cardinality) == (hashlib.sha256(b"mine").digest(), 7, 7)
    assert peer.definition(digest) == b"mine"


def test_the_same_dataset_has_the_same_id_without_being_given_one(peer: Peer) -> None:
    digest = peer.register(b"mine")
    assert peer.register(b"mine") == digest
    assert peer.describe(digest.hex()[:32]).digest == digest


def test_a_dataset_may_have_several_names(peer: Peer) -> None:
    digest = peer.register(b"mine", dataset_id="one")
    peer.register(b"mine", dataset_id="two")
    assert [peer.describe(name).digest for name in ("one", "two")] == [digest] * 2
    assert [peer.describe(name).dataset_id for name in ("one", "two")] == ["one", "two"]


def test_the_same_id_with_other_content_is_refused_with_both(peer: Peer) -> None:
    first = peer.register(b"mine", dataset_id="numbers")
    other = hashlib.sha256(b"other").hexdigest()[:32]
    with pytest.raises(
        InvalidValueError, match=f"'numbers' belongs to dataset {first.hex()[:32]}, so dataset {other} cannot"
    ):
        peer.register(b"other", dataset_id="numbers")
    assert peer.describe("numbers").digest == first


def test_of_a_dataset_that_is_known_nobody_says_something_else(peer: Peer) -> None:
    digest = peer.register(b"mine", 7)
    with pytest.raises(InvalidValueError, match=f"Expected the registered description of dataset {digest.hex()[:32]}"):
        peer.register(b"mine", 8, dataset_id="eight")
    assert peer.register(b"mine", 7, cardinality=100) == digest
    assert peer.describe(digest=digest).cardinality == 100
    with pytest.raises(InvalidValueError, match="No dataset with id 'eight' is registered"):
        peer.describe("eight")


def test_an_unknown_id_is_refused_with_some_that_there_are(peer: Peer) -> None:
    with pytest.raises(
        InvalidValueError, match="No dataset with id 'nothing' is registered; the dispatcher has no datasets"
    ):
        peer.describe("nothing")
    for index in range(7):
        peer.register(b"%d" % index, dataset_id=f"name-{index}")
    with pytest.raises(InvalidValueError, match="the registered datasets are 'name-0', .*'name-4' and 2 others"):
        peer.describe("nothing")
    with pytest.raises(InvalidValueError, match=f"No dataset with digest {'00' * 32}"):
        peer.definition(bytes(32))
    with pytest.raises(StaleSessionError, match="without a journal"):
        peer.definition(bytes(32), commit=messages.Commit(number=1))


def test_a_definition_must_be_the_one_that_its_digest_stands_for(peer: Peer) -> None:
    dataset = description(b"mine")
    request = messages.RegisterDatasetRequest(dataset=dataset)
    with pytest.raises(InvalidValueError, match="Expected a definition with the digest"):
        peer.ask(lambda stub: stub.register(request, memoryview(b"yours")[:4].toreadonly()))
    with pytest.raises(InvalidValueError):
        peer.ask(lambda stub: stub.register(request, memoryview(b"much more than that")))
    with pytest.raises(InvalidValueError, match="the dispatcher has no datasets"):
        peer.describe(digest=dataset.digest)


def test_a_dynamic_pass_hands_out_each_split_once_and_says_with_the_last_that_it_is_over(peer: Peer) -> None:
    peer.attend(b"w")
    consumer = Consumer(peer, peer.register(num_splits=1000))
    ranges = consumer.take_all()
    assert splits(ranges) == list(range(1000))
    assert len(ranges) < 100
    assert ranges[0].last - ranges[0].first > ranges[-1].last - ranges[-1].first == 1


def test_the_same_request_again_has_the_same_answer(peer: Peer) -> None:
    peer.attend(b"w")
    consumer = Consumer(peer, peer.register())
    answer = consumer.take(3)
    assert consumer.repeat().range == answer.range
    assert Consumer(peer, peer.register()).opened.next_number == consumer.number


def test_consumers_of_a_job_share_its_pass(peer: Peer) -> None:
    digest = peer.register(num_splits=100)
    first, second = (Consumer(peer, digest, name, job_name="shared") for name in (b"a", b"b"))
    assert first.opened.pass_id == second.opened.pass_id
    ranges = [first.take(), second.take(), first.take()]
    rest = second.take_all()
    assert splits([*(one for answer in ranges for one in answer.range), *rest]) == list(range(100))


def test_a_consumer_that_comes_when_all_is_read_is_told_so_and_the_next_repetition_begins_anew(peer: Peer) -> None:
    digest = peer.register()
    Consumer(peer, digest, b"a", job_name="shared").take_all()
    assert Consumer(peer, digest, b"late", job_name="shared").opened.is_over
    again = Consumer(peer, digest, b"late", job_name="shared", repetition=1)
    assert not again.opened.is_over
    assert splits(again.take_all()) == list(range(10))


def test_a_job_that_is_of_another_kind_is_refused(peer: Peer) -> None:
    digest, other = peer.register(), peer.register(b"other")
    Consumer(peer, digest, b"a", job_name="shared")
    for what, fields in (("dataset", {"digest": other}), ("guarantee", {"guarantee": EXACTLY_ONCE})):
        with pytest.raises(InvalidValueError, match=f"Expected the {what} of job 'shared' to be .*, found"):
            Consumer(peer, **{"digest": digest, **fields}, name=b"b", job_name="shared")


def test_without_a_policy_each_worker_reads_all_of_it(peer: Peer) -> None:
    for worker in (b"v", b"w"):
        peer.attend(worker)
    consumer = Consumer(peer, peer.register(), policy=OFF)
    ranges = consumer.take_all()
    for worker in (b"v", b"w"):
        assert splits(one for one in ranges if one.worker == worker) == list(range(10))


def test_where_something_is_done_to_all_elements_each_worker_reads_it_whole(peer: Peer) -> None:
    for worker in (b"v", b"w"):
        peer.attend(worker)
    consumer = Consumer(peer, peer.register(num_splits=3, after=[BATCH]), policy=OFF)
    ranges = consumer.take_all()
    assert sorted((one.worker, one.first, one.last, one.whole) for one in ranges) == [
        (b"v", 0, 3, True),
        (b"w", 0, 3, True),
    ]


def test_a_worker_that_joins_adds_its_copy(peer: Peer) -> None:
    peer.attend(b"v")
    consumer = Consumer(peer, peer.register(), policy=OFF)
    first = consumer.take()
    peer.attend(b"w")
    ranges = [*first.range, *consumer.take_all()]
    assert splits(ranges) == sorted([*range(10), *range(10)])


def test_a_pass_waits_for_its_first_worker(peer: Peer) -> None:
    consumer = Consumer(peer, peer.register(), policy=OFF)
    assert not consumer.take(wait_seconds=0).is_exhausted
    joins = threading.Timer(0.05, peer.attend, [b"w"])
    joins.start()
    answer = consumer.take(wait_seconds=30)
    joins.join()
    assert [one.worker for one in answer.worker] == [b"w"]
    assert splits([*answer.range, *consumer.take_all()]) == list(range(10))


def test_news_of_workers_come_with_the_answers(peer: Peer) -> None:
    consumer = Consumer(peer, peer.register())
    peer.attend(b"w")
    answer = consumer.take()
    assert [(one.worker, one.address) for one in answer.worker] == [(b"w", "w.example:1")]
    assert not consumer.take().worker
    peer.attend(b"w", leaves=True)
    before = consumer.version
    assert not consumer.take().worker
    assert consumer.version != before
    assert not peer.ask(lambda stub: stub.list_workers()).worker


def test_where_another_worker_serves_the_former_one_is_gone(peer: Peer) -> None:
    peer.attend(b"old", "host:1")
    peer.attend(b"new", "host:1")
    assert [one.worker for one in peer.ask(lambda stub: stub.list_workers()).worker] == [b"new"]


def test_what_a_consumer_gives_back_goes_to_others(peer: Peer) -> None:
    digest = peer.register()
    first = Consumer(peer, digest, b"a", job_name="shared")
    taken = list(first.take(5).range)
    first.release(finished=[taken[0].id], given_back=[one.id for one in taken[1:]])
    second = Consumer(peer, digest, b"b", job_name="shared")
    assert splits([taken[0], *second.take_all()]) == list(range(10))


@pytest.fixture
def hasty() -> Iterator[Peer]:
    """Calls a dispatcher that soon takes everyone for lost."""
    config = DispatcherConfig(worker_timeout_ms=1500, consumer_timeout_ms=1500)
    with DispatchServer(config) as server, Peer(server.target) as peer:
        yield peer


def test_what_a_lost_consumer_has_not_finished_goes_to_others_at_least_once(hasty: Peer) -> None:
    digest = hasty.register()
    lost = Consumer(hasty, digest, b"a", job_name="shared", guarantee=AT_LEAST_ONCE)
    taken = list(lost.take(5).range)
    lost.take(0, [taken[0].id])
    other = Consumer(hasty, digest, b"b", job_name="shared", guarantee=AT_LEAST_ONCE)
    assert splits([taken[0], *other.take_all()]) == list(range(10))
    with pytest.raises(StaleSessionError, match="has removed this consumer"):
        lost.take()


def test_what_a_lost_consumer_has_taken_is_gone_at_most_once(hasty: Peer) -> None:
    digest = hasty.register()
    taken = Consumer(hasty, digest, b"a", job_name="shared", guarantee=AT_MOST_ONCE).take(5).range
    other = Consumer(hasty, digest, b"b", job_name="shared", guarantee=AT_MOST_ONCE)
    assert splits([*taken, *other.take_all()]) == list(range(10))


def test_what_a_lost_consumer_has_taken_is_kept_for_it_exactly_once(hasty: Peer) -> None:
    digest = hasty.register()
    shared = {"job_name": "shared", "guarantee": EXACTLY_ONCE}
    lost = Consumer(hasty, digest, b"a", **shared)
    taken = list(lost.take(5).range)
    lost.take(0, [taken[0].id])
    others = Consumer(hasty, digest, b"b", **shared).take_all()
    back = Consumer(hasty, digest, b"a", **shared, resumes=True)
    assert [(one.id, one.is_finished) for one in back.opened.taken] == [(one.id, one is taken[0]) for one in taken]
    assert splits([*taken, *others]) == list(range(10))
    with pytest.raises(InvalidValueError, match="another process has resumed"):
        lost.take()
    assert back.take().is_exhausted


def test_a_worker_that_is_silent_is_lost_and_its_ranges_go_to_any(hasty: Peer) -> None:
    hasty.attend(b"w")
    consumer = Consumer(hasty, hasty.register(), policy=OFF)
    assert consumer.take().range[0].worker == b"w"
    while not consumer.take(0, wait_seconds=10).worker and hasty.ask(lambda stub: stub.list_workers()).worker:
        pass
    hasty.attend(b"v")
    assert {one.worker for one in consumer.take(1).range} <= {b"v", b""}


def test_a_pass_of_one_consumer_ends_with_it(peer: Peer) -> None:
    digest = peer.register()
    consumer = Consumer(peer, digest)
    consumer.take()
    consumer.release()
    consumer.release()
    with pytest.raises(StaleSessionError, match="does not know this consumer or has removed"):
        consumer.take()
    assert splits(Consumer(peer, digest).take_all()) == list(range(10))


def test_a_pass_that_nobody_takes_part_in_any_more_is_collected() -> None:
    config = DispatcherConfig(job_gc_check_interval_ms=20, job_gc_timeout_ms=20)
    with DispatchServer(config) as server, Peer(server.target) as peer:
        digest = peer.register()
        kept = Consumer(peer, digest, b"a", job_name="kept", guarantee=EXACTLY_ONCE)
        kept.take()
        kept.release(may_resume=True)
        first = Consumer(peer, digest, b"a", job_name="shared")
        first.take_all()
        first.release()
        end = time.monotonic() + 30
        while (again := Consumer(peer, digest, b"b", job_name="shared")).opened.pass_id == first.opened.pass_id:
            assert again.opened.is_over
            assert time.monotonic() < end
            again.release()
            peer.ask(lambda stub: asyncio.sleep(0.05))
        assert splits(again.take_all()) == list(range(10))
        resumed = Consumer(peer, digest, b"a", job_name="kept", guarantee=EXACTLY_ONCE, resumes=True)
        assert resumed.opened.taken


def test_the_same_request_to_resume_takes_nobody_s_place(peer: Peer) -> None:
    digest = peer.register()
    shared = {"job_name": "kept", "guarantee": EXACTLY_ONCE}
    Consumer(peer, digest, b"a", **shared, opening=b"first")
    back = Consumer(peer, digest, b"a", **shared, resumes=True, opening=b"second")
    again = Consumer(peer, digest, b"a", **shared, resumes=True, opening=b"second")
    assert (again.opened.pass_id, again.number) == (back.opened.pass_id, back.number)
    assert back.take(1).range
    Consumer(peer, digest, b"a", **shared, resumes=True, opening=b"second")
    assert back.take(1).range, "it came late"
    Consumer(peer, digest, b"a", **shared, resumes=True, opening=b"third")
    with pytest.raises(InvalidValueError, match="another process has resumed"):
        back.take(1)


def test_resuming_what_is_not_there_is_refused(peer: Peer) -> None:
    digest = peer.register()
    with pytest.raises(InvalidValueError, match="does not know this cursor's pass"):
        Consumer(peer, digest, resumes=True, guarantee=EXACTLY_ONCE)
    Consumer(peer, digest, b"a", job_name="shared")
    with pytest.raises(InvalidValueError, match="'exactly_once', found 'at_most_once'"):
        Consumer(peer, digest, b"a", job_name="shared", resumes=True)


def test_a_dispatcher_that_was_started_again_without_a_journal_says_so() -> None:
    with DispatchServer() as server, Peer(server.target) as peer:
        consumer = Consumer(peer, peer.register())
    with DispatchServer() as server, Peer(server.target) as peer:
        consumer.peer = peer
        with pytest.raises(StaleSessionError, match="without a journal.*fault_tolerant_mode=True"):
            consumer.take()
        with pytest.raises(StaleSessionError, match="without a journal"):
            Consumer(peer, peer.register(), commit=consumer.opened.commit)


def test_workers_that_are_not_in_the_list_are_refused_with_the_list() -> None:
    config = DispatcherConfig(worker_addresses=["one:5000", "two", "three:%port%"])
    with DispatchServer(config) as server, Peer(server.target) as peer:
        for address in ("one:5000", "grpc://two:7", "three:1"):
            peer.attend(address.encode(), address)
        for address in ("one:5001", "four:1"):
            with pytest.raises(MembershipError, match=rf"one:5000, two, three:%port%\), found a worker at {address}"):
                peer.attend(b"w", address)
        assert len(peer.ask(lambda stub: stub.list_workers()).worker) == 3


def test_limits_are_kept_and_named() -> None:
    limits = DispatcherLimits(
        max_datasets=1, max_definition_bytes=60, max_passes=1, max_consumers=1, max_data_workers=1
    )
    with DispatchServer(DispatcherConfig(limits=limits)) as server, Peer(server.target) as peer:
        digest = peer.register()
        with pytest.raises(ResourceLimitError, match="at most 1 datasets?"):
            peer.register(b"other")
        with pytest.raises(ResourceLimitError, match="60 bytes in the definition of a dataset, found"):
            peer.register(b"much larger than that", dataset_id="x" * 100)
        peer.attend(b"w")
        with pytest.raises(ResourceLimitError, match="--max-data-workers"):
            peer.attend(b"v")
        consumer = Consumer(peer, digest, b"a", job_name="shared")
        with pytest.raises(ResourceLimitError, match="--max-consumers"):
            Consumer(peer, digest, b"b", job_name="shared")
        with pytest.raises(ResourceLimitError, match="--max-passes"):
            Consumer(peer, digest, b"b", job_name="another")
        assert splits(consumer.take_all()) == list(range(10))


def test_passes_that_might_be_resumed_make_room_for_others() -> None:
    limits = DispatcherLimits(max_passes=2)
    with DispatchServer(DispatcherConfig(limits=limits)) as server, Peer(server.target) as peer:
        digest = peer.register()
        for name in (b"a", b"b", b"c"):
            consumer = Consumer(peer, digest, name, guarantee=EXACTLY_ONCE)
            assert splits(consumer.take_all()) == list(range(10))
            consumer.release(may_resume=True)
        assert Consumer(peer, digest, b"b", guarantee=EXACTLY_ONCE, resumes=True).opened.taken
        with pytest.raises(InvalidValueError, match="The dispatcher does not know this cursor's pass"):
            Consumer(peer, digest, b"a", guarantee=EXACTLY_ONCE, resumes=True)


def test_passes_that_cannot_be_are_refused(peer: Peer) -> None:
    digest = peer.register()
    for fields in ({"policy": 7}, {"guarantee": 9}, {"repetition": 2**64 - 1}, {"name": b""}, {"digest": b"unknown"}):
        with pytest.raises(InvalidValueError):
            Consumer(peer, **{"digest": digest, **fields})
    assert splits(Consumer(peer, digest).take_all()) == list(range(10))


def test_numbers_that_cannot_be_do_no_harm(peer: Peer) -> None:
    consumer = Consumer(peer, peer.register())
    answer = consumer.take(2**32 - 1, [2**64 - 1, 0], [2**63, 10**6], wait_seconds=float("nan"))
    assert splits(answer.range) == list(range(10))
    consumer.number = 2**64 - 1
    with pytest.raises(InvalidValueError):
        consumer.take()
    with pytest.raises(InvalidValueError, match="splits"):
        peer.register(b"vast", 2**64 - 1)


def test_a_server_without_a_dispatcher_is_told_from_one() -> None:
    from echo_service import EchoService

    from fedstack.service.host.host import GrpcServer
    from fedstack.service.host.server_thread import ServerThread

    with ServerThread(GrpcServer([EchoService()])) as server, Peer(server.target) as peer:
        with pytest.raises(RemoteError, match="Expected the dispatcher of a data service at .*--data-dispatcher"):
            peer.describe("numbers")
