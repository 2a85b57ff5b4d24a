"""Who takes part in a pass, how it is told from others, and when it ends."""

from collections.abc import Iterator
from typing import Any

import pytest
from direct_passes import DATASET, Direct
from dispatching import AT_LEAST_ONCE, AT_MOST_ONCE, DYNAMIC, EXACTLY_ONCE, OFF, description, splits

from fedstack.errors import InvalidValueError, ResourceLimitError, StaleSessionError
from fedstack.proto.data_service_pb2 import OpenPassRequest
from fedstack.service.data.dispatcher.passes import check_request, end_all

FILE, DATA = OpenPassRequest.FILE, OpenPassRequest.DATA
OTHER = description(b"another definition", num_splits=10)
MOST = 2**62
SKIPPED = 2**32


@pytest.fixture
def direct() -> Iterator[Direct]:
    direct = Direct()
    yield direct
    direct.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"consumer": b"x" * 64},
        {"opening": b"x" * 64},
        {"job_name": "é" * 500},
        {"target_workers": "é" * 500},
        {"repetition": MOST},
        {"policy": DATA, "guarantee": EXACTLY_ONCE},
    ],
)
def test_what_may_be_asked_for_may_be_as_large_as_is_said(fields: dict[str, Any]) -> None:
    check_request(OpenPassRequest(**{"policy": DYNAMIC, "consumer": b"a", **fields}))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"consumer": b"x" * 65}, "a consumer id of at most 64 bytes, found 65"),
        ({"opening": b"x" * 65}, "opening of at most 64 bytes, found 65"),
        ({"job_name": "é" * 500 + "x"}, "job_name of at most 1000 bytes, found 1001"),
        ({"target_workers": "é" * 500 + "x"}, "target_workers of at most 1000 bytes, found 1001"),
        ({"consumer": b""}, "a non-empty consumer id"),
        ({"repetition": MOST + 1}, f"a repetition of at most {MOST}"),
        ({"policy": 0}, "found policy 0 and guarantee 0"),
        ({"policy": 7}, "found policy 7 and guarantee 0"),
        ({"guarantee": 9}, "found policy 2 and guarantee 9"),
    ],
)
def test_what_cannot_be_asked_for_is_named(fields: dict[str, Any], found: str) -> None:
    with pytest.raises(InvalidValueError, match=found):
        check_request(OpenPassRequest(**{"policy": DYNAMIC, "consumer": b"a", **fields}))


def test_a_pass_is_of_a_job_or_of_one_consumer_and_of_one_repetition(direct: Direct) -> None:
    opened = [
        direct.open(b"a"),
        direct.open(b"b"),
        direct.open(b"a", repetition=1),
        direct.open(b"a", job_name="one"),
        direct.open(b"a", job_name="other"),
        direct.open(b"a", job_name="one", repetition=MOST),
    ]
    ids = [consumer.opened.pass_id for consumer in opened]
    assert len({*ids}) == len(ids)
    assert direct.open(b"b", job_name="one").opened.pass_id == ids[3]
    assert direct.open(b"b", job_name="one", repetition=MOST).opened.pass_id == ids[5]
    assert direct.live() == {
        *((consumer.opened.pass_id, b"a") for consumer in (opened[0], *opened[2:])),
        *((ids[index], b"b") for index in (1, 3, 5)),
    }


def test_a_consumer_with_the_id_of_one_of_another_dataset_is_refused(direct: Direct) -> None:
    direct.open(b"a")
    with pytest.raises(
        InvalidValueError, match="a unique consumer id, found an id that another dataset's consumer already uses"
    ):
        direct.open(b"a", OTHER)
    direct.open(b"b", OTHER)


def test_what_is_left_out_is_the_same_as_what_it_stands_for(direct: Direct) -> None:
    first = direct.open(b"a", job_name="shared", target_workers="auto")
    for fields in ({}, {"guarantee": AT_MOST_ONCE}, {"target_workers": "AUTO"}, {"target_workers": "Auto"}):
        assert direct.open(b"b", job_name="shared", **fields).opened.pass_id == first.opened.pass_id
    with pytest.raises(InvalidValueError, match="target_workers of job 'shared' to be AUTO, found LOCAL"):
        direct.open(b"b", job_name="shared", target_workers="Local")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"dataset": OTHER}, f"the dataset of job 'shared' to be {DATASET.digest.hex()[:32]}, found "),
        ({"policy": OFF}, "the sharding policy of job 'shared' to be dynamic, found off"),
        ({"guarantee": AT_LEAST_ONCE}, "the guarantee of job 'shared' to be at_most_once, found at_least_once"),
        ({"target_workers": "ANY"}, "the target_workers of job 'shared' to be AUTO, found ANY"),
    ],
)
def test_the_passes_of_a_job_are_alike_in_all_their_repetitions(
    direct: Direct, fields: dict[str, Any], found: str
) -> None:
    first = direct.open(b"a", job_name="shared")
    for repetition in (0, 1):
        with pytest.raises(InvalidValueError, match=found):
            direct.open(b"b", job_name="shared", repetition=repetition, **fields)
        direct.open(b"b", job_name="another", repetition=repetition, **{"policy": OFF, **fields})
    assert direct.open(b"b", job_name="shared").opened.pass_id == first.opened.pass_id


def test_only_who_comes_when_others_have_read_everything_is_told_that_it_is_over(direct: Direct) -> None:
    shared: dict[str, Any] = {"job_name": "shared", "guarantee": EXACTLY_ONCE}
    first = direct.open(b"a", **shared)
    assert not first.opened.is_over
    assert not direct.open(b"b", **shared).opened.is_over
    first.take_all()
    back, late = direct.open(b"a", **shared), direct.open(b"c", **shared)
    assert splits(back.opened.taken) == list(range(10))
    assert (back.opened.is_over, late.opened.is_over) == (False, True)
    nothing = description(num_splits=0)
    assert not direct.open(b"a", nothing, job_name="nothing").opened.is_over
    assert direct.open(b"b", nothing, job_name="nothing").opened.is_over


def test_the_same_request_again_has_the_same_answer_and_tells_nobody(direct: Direct) -> None:
    one = direct.open(b"a", guarantee=AT_LEAST_ONCE)
    assert one.number == 1
    first = one.take(2, may_wait=True)
    before = direct.journal.commit
    again = one.ask(1, 2, given_back=first.ids, finished=first.ids)
    assert again.ranges == first.ranges
    assert (again.is_empty, again.wakes) == (False, False)
    assert direct.journal.commit == before
    reopened = direct.open(b"a", guarantee=AT_LEAST_ONCE)
    assert reopened.number == one.number == 2
    assert one.ask(1).ranges == first.ranges
    assert one.take().ranges != first.ranges
    with pytest.raises(InvalidValueError, match=r"Expected request 3 of a consumer, found request 1; another process"):
        one.ask(1)


def test_the_last_answer_is_kept_also_if_it_has_no_range(direct: Direct) -> None:
    consumer = direct.open(dataset=description(num_splits=1))
    last = consumer.take(may_wait=True)
    assert last.is_exhausted
    assert not last.is_empty
    over = consumer.take(may_wait=True)
    assert (over.ranges, over.is_exhausted, over.is_empty) == ([], True, False)
    with pytest.raises(InvalidValueError):
        consumer.ask(1)
    assert consumer.ask(2) == over


def test_who_waits_asks_again_with_the_same_number_and_who_does_not_wait_has_an_answer(direct: Direct) -> None:
    direct.workers = []
    consumer = direct.open(policy=OFF)
    assert consumer.take(may_wait=True).is_empty
    direct.workers = [b"w"]
    assert consumer.ask(1).ranges
    direct.workers = []
    other = direct.open(b"b", policy=OFF)
    assert other.take(may_wait=False).is_empty
    direct.workers = [b"w"]
    assert other.ask(1).ranges == []
    assert other.take().ranges


@pytest.mark.parametrize("policy", [DYNAMIC, OFF])
def test_a_sign_of_life_is_no_commit(direct: Direct, policy: int) -> None:
    consumer = direct.open(policy=policy, guarantee=AT_LEAST_ONCE)
    before = direct.journal.commit
    assert not consumer.take(0).is_exhausted
    assert not consumer.take(0, may_wait=True).wakes
    assert direct.journal.commit == before
    assert consumer.ask(1).ranges


def test_numbers_are_as_large_as_can_be_kept(direct: Direct) -> None:
    consumer = direct.open()
    with pytest.raises(InvalidValueError, match=f"found request {MOST + 1}"):
        consumer.ask(MOST + 1)
    answer = consumer.ask(MOST)
    assert answer.ranges
    assert consumer.ask(MOST) == answer


def test_who_resumes_takes_the_place_of_its_former_self_however_far_that_was(direct: Direct) -> None:
    kept: dict[str, Any] = {"guarantee": EXACTLY_ONCE, "resumes": True}
    former = direct.open(b"a", guarantee=EXACTLY_ONCE, opening=b"one")
    taken = former.take(2)
    back = direct.open(b"a", **kept)
    assert back.number == SKIPPED + 1
    assert list(back.opened.taken) == taken.ranges
    with pytest.raises(InvalidValueError, match="another process has resumed"):
        former.take()
    back.ask(SKIPPED + 5)
    assert direct.open(b"a", **kept).number == 2 * SKIPPED + 1
    assert direct.open(b"a", **kept).number == 3 * SKIPPED + 1, "who says no opening is another each time"


def test_the_same_request_to_resume_again_is_the_same_process(direct: Direct) -> None:
    direct.open(b"a", guarantee=EXACTLY_ONCE, opening=b"one").take()
    kept: dict[str, Any] = {"guarantee": EXACTLY_ONCE, "resumes": True}
    back = direct.open(b"a", **kept, opening=b"two")
    answer = back.take()
    again = direct.open(b"a", **kept, opening=b"two")
    assert again.number == back.number
    assert back.ask(back.number - 1) == answer
    other = direct.open(b"a", **kept, opening=b"three")
    assert other.number == 2 * SKIPPED + 1
    with pytest.raises(InvalidValueError, match="another process has resumed"):
        back.take()


def test_a_cursor_is_of_a_pass_and_a_consumer_that_are_known_and_may_resume(direct: Direct) -> None:
    unknown = "The dispatcher does not know this cursor's pass"
    with pytest.raises(InvalidValueError, match=unknown):
        direct.open(guarantee=EXACTLY_ONCE, resumes=True)
    assert direct.live() == set()
    direct.open(b"a", job_name="shared", guarantee=EXACTLY_ONCE)
    with pytest.raises(InvalidValueError, match=unknown):
        direct.open(b"b", job_name="shared", guarantee=EXACTLY_ONCE, resumes=True)
    direct.open(b"a", job_name="shared", guarantee=EXACTLY_ONCE, resumes=True)
    direct.open(b"a")
    with pytest.raises(InvalidValueError, match="pass to be 'exactly_once', found 'at_most_once'"):
        direct.open(b"a", resumes=True)


@pytest.mark.parametrize("guarantee", [AT_MOST_ONCE, AT_LEAST_ONCE])
def test_who_was_given_up_and_comes_late_has_to_begin_anew(direct: Direct, guarantee: int) -> None:
    shared: dict[str, Any] = {"job_name": "shared", "guarantee": guarantee}
    lost = direct.open(b"a", **shared)
    lost.take()
    lost.lose()
    with pytest.raises(StaleSessionError, match="has removed this consumer"):
        lost.take()
    assert direct.live() == set()
    assert direct.open(b"a", **shared).take().ranges


def test_who_was_given_up_goes_on_where_it_has_lost_nothing(direct: Direct) -> None:
    shared: dict[str, Any] = {"job_name": "shared", "guarantee": EXACTLY_ONCE}
    lost, other = direct.open(b"a", **shared), direct.open(b"b", **shared)
    taken = lost.take()
    lost.lose()
    other.release()
    assert direct.live() == set()
    rest = lost.take_all()
    assert direct.live() == {(lost.opened.pass_id, b"a")}
    assert splits([*taken.ranges, *rest]) == list(range(10))
    assert direct.collect(1e9, 1.0, 1.0) == 0, "it is not idle any more"


def test_of_what_is_not_there_any_more_nobody_hears(direct: Direct) -> None:
    consumer = direct.open()
    stranger = direct.open(b"b", job_name="shared")
    stranger.opened.pass_id = consumer.opened.pass_id
    with pytest.raises(StaleSessionError, match="does not know this consumer or has removed"):
        stranger.take()
    assert not consumer.release()
    with pytest.raises(StaleSessionError, match="does not know this consumer or has removed"):
        consumer.take()
    assert not consumer.release(finished=[1], given_back=[1])
    assert not consumer.lose()


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("may_resume", [True, False])
@pytest.mark.parametrize("guarantee", [AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE])
def test_a_pass_of_one_consumer_ends_with_it_unless_that_may_resume(
    guarantee: int, may_resume: bool, leaves: bool
) -> None:
    direct = Direct(max_passes=1)
    consumer = direct.open(guarantee=guarantee)
    consumer.take()
    if leaves:
        consumer.release(may_resume=may_resume)
    else:
        consumer.lose()
    if guarantee == EXACTLY_ONCE and (may_resume or not leaves):
        assert direct.open(guarantee=guarantee, resumes=True).opened.taken
    else:
        assert direct.collect(1e9, 1.0, 1.0) == 0, "nothing of it is left"
        assert direct.open(job_name="another").take().bounds == [(0, 2)]
    direct.close()


def test_a_pass_of_a_job_stays_for_those_who_come_later(direct: Direct) -> None:
    first = direct.open(b"a", job_name="shared")
    taken = first.take()
    first.release()
    late = direct.open(b"b", job_name="shared")
    assert late.opened.pass_id == first.opened.pass_id
    assert splits([*taken.ranges, *late.take_all()]) == list(range(10))
    late.release()
    assert direct.open(b"c", job_name="shared").opened.is_over


def test_passes_are_collected_that_nobody_has_taken_part_in_for_too_long(direct: Direct) -> None:
    jobs = {"one": AT_MOST_ONCE, "two": AT_LEAST_ONCE, "kept": EXACTLY_ONCE, "used": AT_MOST_ONCE}
    consumers = {name: direct.open(b"a", job_name=name, guarantee=guarantee) for name, guarantee in jobs.items()}
    direct.open(b"b", job_name="used").release(now=0.0)
    for name, now in (("one", 100.0), ("two", 200.0), ("kept", 50.0)):
        assert consumers[name].take(2).ranges
        consumers[name].release(now=now, may_resume=True)

    def left() -> set[str]:
        with direct.journal.transaction() as tables:
            of = dict(tables.execute("SELECT pass, job FROM passes"))
            for table in ("lists", "consumers", "ranges"):
                assert {id for (id,) in tables.execute(f"SELECT pass FROM {table}")} <= of.keys()
        return set(of.values())

    assert direct.collect(110.0, 10.0, 1000.0) == 0
    assert direct.collect(110.5, 10.0, 1000.0) == 1
    assert left() == {"two", "kept", "used"}
    assert direct.collect(1050.0, 10.0, 1000.0) == 1
    assert left() == {"kept", "used"}
    assert direct.collect(1050.5, 10.0, 1000.0) == 1
    assert left() == {"used"}
    assert consumers["used"].take().ranges


def test_a_pass_is_idle_from_when_the_last_one_left_until_the_next_one_comes(direct: Direct) -> None:
    one, other = direct.open(b"a", job_name="shared"), direct.open(b"b", job_name="shared")
    one.release(now=0.0)
    assert direct.collect(1e9, 1.0, 1.0) == 0
    other.release(now=100.0)
    assert direct.collect(100.5, 1.0, 1.0) == 0
    direct.open(b"c", job_name="shared")
    assert direct.collect(1e9, 1.0, 1.0) == 0


def test_all_passes_may_be_ended(direct: Direct) -> None:
    consumers = [direct.open(), direct.open(b"b", job_name="shared")]
    assert all(consumer.take().ranges for consumer in consumers)
    with direct.journal.transaction() as tables:
        end_all(tables)
        rows = {table: tables.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("lists", "ranges")}
    assert rows == {"lists": (0,), "ranges": (0,)}
    assert direct.live() == set()
    for consumer in consumers:
        with pytest.raises(StaleSessionError):
            consumer.take()
    assert splits(direct.open().take_all()) == list(range(10))


def test_there_are_no_more_passes_and_consumers_than_may_be(direct: Direct) -> None:
    direct = Direct(max_passes=2, max_consumers=3)
    consumers = [direct.open(b"a"), direct.open(b"b", job_name="shared")]
    for job in ("", "other"):
        with pytest.raises(ResourceLimitError, match="wait until others have ended.*max_passes"):
            direct.open(b"c", job_name=job)
    consumers.append(direct.open(b"c", job_name="shared"))
    with pytest.raises(ResourceLimitError, match="wait until others have ended.*max_consumers"):
        direct.open(b"d", job_name="shared")
    assert direct.open(b"c", job_name="shared").number == 1, "it is there already"
    assert all(consumer.take().ranges for consumer in consumers)
    direct.close()


@pytest.mark.parametrize("limit", ["max_passes", "max_consumers"])
def test_the_pass_of_one_consumer_that_is_idle_for_the_longest_time_makes_room(limit: str) -> None:
    direct = Direct(**{limit: 3})
    kept: dict[str, Any] = {"guarantee": EXACTLY_ONCE}
    for name, now in ((b"a", 20.0), (b"b", 10.0), (b"c", 30.0)):
        consumer = direct.open(name, **kept)
        consumer.take()
        consumer.release(now=now, may_resume=True)
    direct.open(b"d")
    with pytest.raises(InvalidValueError, match="The dispatcher does not know this cursor's pass"):
        direct.open(b"b", **kept, resumes=True)
    assert direct.open(b"a", **kept, resumes=True).opened.taken
    direct.open(b"e")
    with pytest.raises(InvalidValueError, match="The dispatcher does not know this cursor's pass"):
        direct.open(b"c", **kept, resumes=True)
    with pytest.raises(ResourceLimitError, match=limit):
        direct.open(b"f")
    assert {name for _, name in direct.live()} == {b"a", b"d", b"e"}
    direct.close()


def test_an_idle_pass_makes_room_also_for_one_who_joins_a_job() -> None:
    direct = Direct(max_consumers=2)
    idle = direct.open(b"a", guarantee=EXACTLY_ONCE)
    idle.release(may_resume=True)
    first, second = (direct.open(name, job_name="shared") for name in (b"b", b"c"))
    assert splits([*first.take().ranges, *second.take_all()]) == list(range(10))
    with pytest.raises(StaleSessionError):
        idle.take()
    direct.close()


def test_a_pass_that_goes_on_after_a_silence_makes_no_room_for_others() -> None:
    direct = Direct(max_passes=1)
    consumer = direct.open(guarantee=EXACTLY_ONCE)
    consumer.lose(now=10.0)
    consumer.take()
    with pytest.raises(ResourceLimitError):
        direct.open(b"b")
    assert consumer.take().ranges
    direct.close()


def test_the_pass_of_a_job_makes_no_room_for_others() -> None:
    direct = Direct(max_passes=1)
    shared: dict[str, Any] = {"job_name": "shared", "guarantee": EXACTLY_ONCE}
    consumer = direct.open(**shared)
    consumer.take()
    consumer.release(may_resume=True)
    with pytest.raises(ResourceLimitError):
        direct.open(b"b")
    assert direct.open(**shared, resumes=True).opened.taken
    direct.close()


@pytest.mark.parametrize("policy", [FILE, DATA])
def test_who_reads_what_at_which_place_needs_addresses_that_are_known_beforehand(direct: Direct, policy: int) -> None:
    dataset = description(num_splits=3, file_splits=[1, 2])
    with pytest.raises(InvalidValueError, match="Expected a dispatcher with worker_addresses"):
        direct.open(dataset=dataset, policy=policy)
    direct.assigned = [b"v", b"w"]
    assert direct.open(dataset=dataset, policy=policy).take().ranges


def test_under_file_there_is_a_file_at_least_for_each_place(direct: Direct) -> None:
    dataset = description(num_splits=3, file_splits=[1, 2])
    direct.assigned = [b"u", b"v", b"w"]
    with pytest.raises(
        InvalidValueError, match="at least one file for each of 3 workers under the policy FILE, found 2"
    ):
        direct.open(dataset=dataset, policy=FILE)
    for number, policy in enumerate((DATA, DYNAMIC, OFF)):
        assert direct.open(b"%d" % number, dataset, policy=policy).take().ranges
    direct.assigned = [b"v", b"w"]
    assert splits(direct.open(dataset=dataset, policy=FILE).take(64).ranges) == [0, 1, 2]
