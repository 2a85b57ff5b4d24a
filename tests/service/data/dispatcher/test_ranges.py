"""How a pass is cut into ranges, and who gets which."""

import random
from collections.abc import Iterator, Sequence

import pytest
from direct_passes import Direct, DirectConsumer
from dispatching import AT_LEAST_ONCE, AT_MOST_ONCE, DYNAMIC, EXACTLY_ONCE, OFF, description, splits

from fedstack.errors import FedstackError
from fedstack.proto.data_service_pb2 import OpenPassRequest
from fedstack.proto.datasets_pb2 import DatasetStep

FILE, DATA = OpenPassRequest.FILE, OpenPassRequest.DATA
GUARANTEES = [AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE]
BATCH = DatasetStep(batch=DatasetStep.Batch(size=2))
MOST = 2**62


@pytest.fixture
def direct() -> Iterator[Direct]:
    direct = Direct()
    yield direct
    direct.close()


@pytest.mark.parametrize(
    ("policy", "workers", "consumers", "size"),
    [
        (DYNAMIC, 0, 1, 400),
        (DYNAMIC, 1, 1, 400),
        (DYNAMIC, 2, 1, 200),
        (DYNAMIC, 3, 1, 133),
        (DYNAMIC, 1, 2, 200),
        (DYNAMIC, 2, 2, 100),
        (OFF, 1, 1, 400),
        (OFF, 2, 1, 400),
        (OFF, 2, 2, 200),
    ],
)
def test_a_range_is_a_quarter_of_the_share_that_a_worker_and_a_consumer_have_in_what_is_left(
    direct: Direct, policy: int, workers: int, consumers: int, size: int
) -> None:
    direct.workers = [b"%d" % index for index in range(workers)]
    dataset = description(num_splits=1600)
    Direct.open(direct, b"other", dataset, job_name="other", policy=policy)
    for index in range(consumers + 1):
        consumer = direct.open(b"%d" % index, dataset, job_name="shared", policy=policy)
    consumer.release()
    consumer = direct.open(b"0", dataset, job_name="shared", policy=policy)
    assert consumer.take().bounds == [(0, size)]


def test_ranges_get_smaller_down_to_one_split_and_are_counted_from_one_on(direct: Direct) -> None:
    consumer = direct.open(dataset=description(num_splits=16))
    taken = [consumer.take(4), consumer.take(5), consumer.take(1)]
    bounds = [bounds for answer in taken for bounds in answer.bounds]
    assert [last - first for first, last in bounds] == [4, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    assert bounds[0][0] == 0
    assert [last for _, last in bounds[:-1]] == [first for first, _ in bounds[1:]]
    assert [id for answer in taken for id in answer.ids] == list(range(1, 11))
    assert [answer.is_exhausted for answer in taken] == [False, False, True]
    assert {(one.worker, one.whole, one.shard, one.is_finished) for one in taken[0].ranges} == {
        (b"", False, False, False)
    }


def test_a_request_gets_no_more_ranges_and_no_larger_ones_than_are_good_for_a_dispatcher(direct: Direct) -> None:
    consumer = direct.open(dataset=description(num_splits=1 << 20))
    ranges = consumer.take(1000).ranges
    assert len(ranges) == 64
    assert [one.last - one.first for one in ranges[:2]] == [16_384, 16_384]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_what_was_given_back_comes_first_in_its_order_and_at_any_worker(direct: Direct, guarantee: int) -> None:
    direct.workers = [b"v"]
    dataset = description(num_splits=4)
    one = direct.open(b"a", dataset, job_name="shared", policy=OFF, guarantee=guarantee)
    taken = one.take(3).ranges
    assert {range.worker for range in taken} == {b"v"}
    answer = one.take(0, given_back=[3, 1])
    assert (answer.ranges, answer.is_exhausted, answer.is_empty, answer.wakes) == ([], False, True, True)
    other = direct.open(b"b", dataset, job_name="shared", policy=OFF, guarantee=guarantee)
    assert not other.opened.is_over
    first = other.take(1)
    assert [(range.id, range.worker, range.is_finished) for range in first.ranges] == [(1, b"", False)]
    second = other.take(2)
    assert [(range.id, range.worker) for range in second.ranges] == [(3, b""), (4, b"v")]
    assert splits([taken[1], *first.ranges, *second.ranges]) == list(range(4))


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_what_another_has_or_has_finished_is_nobody_s_to_give_back_or_to_finish(direct: Direct, guarantee: int) -> None:
    shared = {"job_name": "shared", "guarantee": guarantee}
    one, other = direct.open(b"a", **shared), direct.open(b"b", **shared)
    taken = one.take(2)
    one.take(0, finished=taken.ids[:1])
    other.take(0, finished=taken.ids, given_back=taken.ids)
    one.take(0, given_back=taken.ids[:1])
    assert splits([*taken.ranges, *other.take_all()]) == list(range(10))
    back = direct.open(b"a", **shared)
    finished = [(taken.ids[0], True)] if guarantee == EXACTLY_ONCE else []
    assert [(range.id, range.is_finished) for range in back.opened.taken] == [*finished, (taken.ids[1], False)]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_others_are_woken_by_what_may_be_theirs_and_by_nothing_else(direct: Direct, guarantee: int) -> None:
    consumer = direct.open(job_name="shared", guarantee=guarantee)
    taken = consumer.take(4)
    assert not taken.wakes
    assert not consumer.take().wakes
    # What is left may be the last at which somebody else waits.
    assert consumer.take(0, finished=taken.ids[:1]).wakes == (guarantee == AT_LEAST_ONCE)
    assert consumer.take(0, given_back=taken.ids[1:2]).wakes
    assert consumer.release(given_back=taken.ids[2:3])
    again = direct.open(b"b", job_name="shared", guarantee=guarantee)
    assert again.release() == (guarantee == AT_LEAST_ONCE)
    assert direct.open(b"c", job_name="shared", guarantee=guarantee).lose() == (guarantee == AT_LEAST_ONCE)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_ids_that_no_range_can_have_are_no_news_to_anybody(direct: Direct, guarantee: int) -> None:
    consumer = direct.open(job_name="shared", guarantee=guarantee)
    taken = consumer.take()
    answer = consumer.take(0, finished=[MOST, 2**64 - 1], given_back=[MOST, 2**64 - 1])
    assert not answer.wakes
    assert direct.open(job_name="shared", guarantee=guarantee).opened.taken == taken.ranges


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_ranges_of_a_lost_consumer_are_others_or_gone_or_kept_for_it(direct: Direct, guarantee: int) -> None:
    shared = {"job_name": "shared", "policy": OFF, "guarantee": guarantee}
    lost, other = direct.open(b"a", **shared), direct.open(b"b", **shared)
    taken, kept = lost.take(2), other.take(1)
    lost.lose()
    rest = other.take_all()
    back = direct.open(b"a", **shared)
    assert list(back.opened.taken) == (taken.ranges if guarantee == EXACTLY_ONCE else [])
    found = splits([*kept.ranges, *rest])
    if guarantee == AT_LEAST_ONCE:
        assert found == list(range(10))
        assert {one.worker for one in rest if one.id in taken.ids} == {b""}
    else:
        assert sorted([*found, *splits(taken.ranges)]) == list(range(10))


def test_at_least_once_a_consumer_waits_for_what_others_have_not_finished_and_not_for_its_own(direct: Direct) -> None:
    shared = {"job_name": "shared", "guarantee": AT_LEAST_ONCE}
    one, other = direct.open(b"a", **shared), direct.open(b"b", **shared)
    taken = one.take(2)
    mine = other.take(64).ids
    answer = other.take()
    assert (answer.ranges, answer.is_exhausted, answer.is_empty) == ([], False, True)
    one.take(0, finished=taken.ids[:1])
    assert not other.take().is_exhausted
    one.take(0, finished=taken.ids[1:])
    assert other.take().is_exhausted, f"its own {mine} are left"
    assert not one.take().is_exhausted


def waiting_consumers(direct: Direct, *wants: int) -> tuple[list[DirectConsumer], list[Sequence[int]]]:
    """Consumers of a job at least once, and what each has taken; all is taken."""
    consumers = [
        direct.open(f"{number}".encode(), job_name="shared", guarantee=AT_LEAST_ONCE) for number in range(len(wants))
    ]
    return consumers, [consumer.take(want).ids if want else [] for consumer, want in zip(consumers, wants, strict=True)]


def test_where_all_that_have_something_wait_for_each_other_one_ends_after_the_other(direct: Direct) -> None:
    (one, other, third), taken = waiting_consumers(direct, 2, 2, 64)
    assert not one.take(waits=True).is_exhausted
    assert not other.take(waits=True).is_exhausted, "the third may have elements in work"
    assert third.take(waits=True).is_exhausted
    assert not one.take(waits=True).is_exhausted, "the third has not finished"
    third.release(finished=taken[2])
    assert other.take(waits=True).is_exhausted
    assert not one.take(waits=True).is_exhausted
    other.release(finished=taken[1])
    assert one.take(waits=True).is_exhausted


def test_whoever_has_nothing_stays_until_those_that_wait_have_finished(direct: Direct) -> None:
    (one, idle), taken = waiting_consumers(direct, 64, 0)
    assert not idle.take(waits=True).is_exhausted
    assert one.take(waits=True).is_exhausted
    assert not idle.take(waits=True).is_exhausted
    one.release(finished=taken[0])
    assert idle.take(waits=True).is_exhausted


def test_what_one_has_that_is_lost_when_it_was_to_end_is_read_by_those_that_wait(direct: Direct) -> None:
    (one, other), taken = waiting_consumers(direct, 2, 64)
    assert not one.take(waits=True).is_exhausted
    assert other.take(waits=True).is_exhausted
    assert other.lose()
    again = one.take(64, waits=True)
    assert again.ids == taken[1]
    third = direct.open(b"third", job_name="shared", guarantee=AT_LEAST_ONCE)
    assert not third.take(waits=True).is_exhausted
    third.lose()
    assert not direct.open(b"fourth", job_name="shared", guarantee=AT_LEAST_ONCE).take().is_exhausted


def test_whoever_gets_something_waits_no_more_and_whoever_waits_does_so_until_it_hears_more(direct: Direct) -> None:
    (one, other), taken = waiting_consumers(direct, 2, 64)
    assert not one.take(waits=True, may_wait=True).is_exhausted
    other.take(0, given_back=taken[1][:1])
    assert one.take(waits=True).ids == taken[1][:1]
    assert not other.take(waits=True).is_exhausted
    other.number += 1
    assert not other.take().is_exhausted
    assert one.take(waits=True).is_exhausted, "and the other still waits"


def test_that_one_waits_is_told_beside_a_question_which_is_asked_again(direct: Direct) -> None:
    (one, other), _ = waiting_consumers(direct, 2, 64)
    assert other.take(waits=True, may_wait=True).is_empty
    number = one.number
    assert one.ask(number, may_wait=True).is_empty
    told = one.ask(number, 0, waits=True)
    assert (told.wakes, told.is_exhausted) == (True, False), "nobody looks at this answer"
    assert not one.ask(number, 0, waits=True).wakes
    assert one.ask(number, may_wait=True).is_exhausted
    assert not other.take(waits=True).is_exhausted


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_pass_is_over_when_nothing_of_it_is_left_whatever_is_left_of_others(direct: Direct, guarantee: int) -> None:
    for job, want in (("cut", 64), ("not cut", 1)):
        other = direct.open(b"a", job_name=job)
        other.take(0, given_back=other.take(want).ids[:1])
    consumer = direct.open(b"c", job_name="shared", guarantee=guarantee)
    taken = consumer.take(64)
    assert taken.is_exhausted
    assert not consumer.take(0, given_back=taken.ids[1:2]).is_exhausted
    again = consumer.take(64)
    assert (again.ids, again.is_exhausted) == (taken.ids[1:2], True)


@pytest.mark.parametrize("guarantee", [AT_MOST_ONCE, EXACTLY_ONCE])
def test_else_nobody_waits_for_what_others_have(direct: Direct, guarantee: int) -> None:
    shared = {"job_name": "shared", "guarantee": guarantee}
    direct.open(b"a", **shared).take(2)
    assert direct.open(b"b", **shared).take(64).is_exhausted


def test_without_a_policy_the_worker_that_is_behind_is_next(direct: Direct) -> None:
    direct.workers = [b"v"]
    consumer = direct.open(dataset=description(num_splits=8), policy=OFF)
    assert consumer.take(2).bounds == [(0, 2), (2, 3)]
    direct.workers = [b"v", b"w"]
    order = [(one.worker, one.first) for one in consumer.take(5).ranges]
    assert order == [(b"w", 0), (b"w", 2), (b"v", 3), (b"w", 3), (b"v", 4)]


def test_without_a_policy_a_pass_waits_for_a_worker_also_where_there_is_nothing_to_read(direct: Direct) -> None:
    direct.workers = []
    consumer = direct.open(dataset=description(num_splits=0), policy=OFF)
    assert not consumer.take().is_exhausted
    direct.workers = [b"w"]
    assert not consumer.take(0).is_exhausted, "who wants nothing begins nothing"
    answer = consumer.take()
    assert (answer.is_exhausted, answer.ranges) == (True, [])


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_worker_that_comes_after_the_end_adds_no_copy(direct: Direct, guarantee: int) -> None:
    direct.workers = [b"v"]
    consumer = direct.open(policy=OFF, guarantee=guarantee)
    answer = consumer.take(64)
    assert answer.is_exhausted
    direct.workers = [b"v", b"w"]
    consumer.take(0, given_back=answer.ids[-1:])
    after = consumer.take(64)
    assert (after.ids, after.is_exhausted) == (answer.ids[-1:], True)


@pytest.mark.parametrize("num_splits", [0, 3])
def test_where_something_is_done_to_all_elements_a_range_is_all_of_it(direct: Direct, num_splits: int) -> None:
    direct.workers = [b"v", b"w"]
    answer = direct.open(dataset=description(num_splits=num_splits, after=[BATCH]), policy=OFF).take(64)
    assert [(one.worker, one.first, one.last, one.whole, one.shard) for one in answer.ranges] == [
        (b"v", 0, num_splits, True, False),
        (b"w", 0, num_splits, True, False),
    ]
    assert answer.is_exhausted


def test_where_each_split_comes_once_nothing_is_whole_whatever_is_done_afterwards(direct: Direct) -> None:
    ranges = direct.open(dataset=description(num_splits=3, after=[BATCH])).take_all()
    assert [(one.first, one.last, one.whole) for one in ranges] == [(0, 1, False), (1, 2, False), (2, 3, False)]


def test_under_data_each_place_reads_its_share_of_the_elements(direct: Direct) -> None:
    direct.workers, direct.assigned = [b"u", b"w"], [b"u", b"v", b"w"]
    answer = direct.open(dataset=description(num_splits=7), policy=DATA).take(64)
    assert [(one.first, one.last, one.worker) for one in answer.ranges] == [(0, 3, b"u"), (1, 3, b""), (2, 3, b"w")]
    assert all(one.whole and one.shard for one in answer.ranges)
    assert answer.is_exhausted


def test_under_file_each_place_reads_every_so_many_th_file(direct: Direct) -> None:
    direct.workers, direct.assigned = [b"u", b"v"], [b"u", b"v"]
    dataset = description(num_splits=9, file_splits=[2, 3, 0, 4])
    ranges = direct.open(dataset=dataset, policy=FILE).take(64).ranges
    assert not any(one.whole or one.shard for one in ranges)
    assert splits(one for one in ranges if one.worker == b"u") == [0, 1]
    assert splits(one for one in ranges if one.worker == b"v") == [2, 3, 4, 5, 6, 7, 8]


def test_a_place_that_there_is_no_longer_leaves_what_it_was_to_read_to_any_worker(direct: Direct) -> None:
    direct.workers, direct.assigned = [b"u", b"v"], [b"u", b"v"]
    consumer = direct.open(policy=DATA)
    direct.assigned = [b"u"]
    assert [one.worker for one in consumer.take(64).ranges] == [b"u", b""]


class Visitor:
    """Does things in one pass as a seed has it, and notes what it is told."""

    def __init__(self, direct: Direct, seed: int, job: str, policy: int, guarantee: int) -> None:
        self._direct = direct
        self._chance = random.Random(seed)
        self._job, self._fields = job, {"job_name": job, "policy": policy, "guarantee": guarantee}
        self._workers: list[bytes] = [b"v"]
        self._here: dict[bytes, DirectConsumer] = {}
        self._held: dict[bytes, list[int]] = {b"a": [], b"b": []}
        self.told: list[object] = []

    def step(self) -> None:
        try:
            self._told(self._do())
        except FedstackError as error:
            self._told(repr(error))

    def _do(self) -> object:
        chance = self._chance
        name = chance.choice([b"a", b"b"]) if self._job else b"a"
        what = chance.choice(["open", "resume", "take", "take", "take", "take", "lose", "release", "workers"])
        consumer = self._here.get(name)
        if what == "workers":
            self._workers = chance.sample([b"u", b"v", b"w"], chance.randint(0, 2))
        elif what == "open" or what == "resume" or consumer is None:
            resumes = what == "resume" and consumer is not None
            self._here[name] = found = self._direct.open(name, resumes=resumes, **self._fields)
            opened = found.opened
            return [opened.next_number, opened.is_over, [(one.id, one.is_finished) for one in opened.taken]]
        elif what == "take":
            self._direct.workers = self._workers
            held = self._held[name]
            finished, back = (chance.sample(held, min(len(held), chance.randint(0, 1))) for _ in range(2))
            answer = consumer.take(chance.randint(0, 3), finished=finished, given_back=back)
            self._held[name] += answer.ids
            return answer
        elif what == "lose":
            return consumer.lose()
        else:
            return consumer.release(given_back=self._held[name][-1:], may_resume=chance.random() < 0.7)
        return None

    def _told(self, what: object) -> None:
        here = {name for name, consumer in self._here.items() if (consumer.opened.pass_id, name) in self._direct.live()}
        self.told += [what, here]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("policy", [DYNAMIC, OFF])
def test_what_happens_in_one_pass_changes_nothing_in_another(policy: int, guarantee: int, seed: int) -> None:
    told: list[list[object]] = []
    for others in (0, 3):
        direct = Direct()
        visitor = Visitor(direct, seed, "shared" if seed else "", policy, guarantee)
        chance = random.Random(100 + seed)
        neighbours = [
            Visitor(direct, 1000 + 10 * seed + number, f"other {number}", chance.choice([DYNAMIC, OFF]), one)
            for number, one in enumerate(GUARANTEES[:others])
        ]
        for _ in range(25):
            for neighbour in neighbours:
                neighbour.step()
            visitor.step()
        told.append(visitor.told)
        direct.close()
    assert told[0] == told[1]
