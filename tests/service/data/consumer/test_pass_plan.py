"""The state machine of a pass, against a small world of workers that come and go."""

import itertools
import random

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_plans import AT_LEAST, AT_MOST, EXACTLY, column

from fedstack.errors import WorkerUnavailableError
from fedstack.service.data.consumer.acknowledgements import Position
from fedstack.service.data.consumer.pass_plan import Guarantee, PassPlan, Read, TakenRange

DRAWS = st.integers(0, 2**32).map(random.Random)
some_worlds = settings(max_examples=examples(40))


class World:
    """A dispatcher with splits of some elements each, workers, and a consumer.

    Attributes:
      plan: What decides.
      got: The elements that the consumer has, in order.
    """

    def __init__(self, draw: random.Random, guarantee: Guarantee, workers: int = 2, sizes: list[int] | None = None):
        self._draw = draw
        self._sizes = sizes if sizes is not None else [draw.randrange(5) for _ in range(draw.randrange(1, 30))]
        bounds = [0, *itertools.accumulate(self._sizes)]
        self._splits = [list(range(first, last)) for first, last in itertools.pairwise(bounds)]
        self.plan = self._new_plan(guarantee)
        self._guarantee = guarantee
        self._cut = 0
        self.taken: dict[int, TakenRange] = {}
        self.workers = [bytes([65 + number]) for number in range(workers)]
        self.up = set(self.workers)
        self.pending: list[Read] = []
        self.got: list[int] = []
        self.acknowledged: set[int] = set()
        self._answers: dict[int, tuple[list[TakenRange], bool]] = {}
        self._list()

    def _new_plan(self, guarantee: Guarantee) -> PassPlan:
        one_each = all(size == 1 for size in self._sizes)
        most = self._draw.choice([None, 1, 5])
        return PassPlan(guarantee, max_requests=most, one_each=one_each)

    @property
    def elements(self) -> list[int]:
        return list(itertools.chain.from_iterable(self._splits))

    def _list(self) -> None:
        self.plan.list_workers(self.workers)

    # What the dispatcher does.

    def take(self, must: bool = False) -> None:
        asked = self.plan.take(must)
        if asked is None:
            return
        assert self.plan.take() is asked, "it is the same until it is answered"
        self.acknowledged.update(asked.finished)
        if asked.number not in self._answers:
            ranges: list[TakenRange] = []
            while len(ranges) < asked.want and self._cut < len(self._splits):
                last = min(len(self._splits), self._cut + self._draw.randrange(1, 6))
                ranges.append(TakenRange(len(self.taken), self._cut, last))
                self.taken[ranges[-1].id] = ranges[-1]
                self._cut = last
            self._answers[asked.number] = ranges, self._cut == len(self._splits)
        self.plan.took(*self._answers[asked.number])

    # What workers do.

    def ask(self) -> None:
        self.pending.extend(self.plan.reads())

    def answer(self) -> None:
        if not self.pending:
            return
        read = self.pending.pop(self._draw.randrange(len(self.pending)))
        if read.worker not in self.up:
            self.lose(read.worker)
            return
        elements = list(itertools.chain.from_iterable(self._splits[read.range.first : read.range.last]))
        left, size = elements[read.range.rows :], 1 + read.range.id % 3
        blocks = [left[at : at + size] for at in range(0, len(left), size)]
        self.plan.arrive(read, [column(block) for block in blocks[: self._draw.randrange(1, 3)]])

    def lose(self, worker: bytes) -> None:
        """The connection to a worker breaks off."""
        self.pending = [read for read in self.pending if read.worker != worker]
        assert not self.plan.lose(worker, ConnectionError("gone"), was_there=False)

    def come_and_go(self) -> None:
        worker = self._draw.choice(self.workers)
        if worker in self.up and len(self.up) > 1:
            self.up.remove(worker)
            if self._draw.random() < 0.5:
                self.lose(worker)
        elif worker not in self.up and worker in self.plan.away:
            self.up.add(worker)
            self.plan.found(worker)

    def join_or_leave(self) -> None:
        if self._draw.random() < 0.5 and len(self.workers) < 5:
            self.workers.append(bytes([97 + self._draw.randrange(26)]))
            self.up.add(self.workers[-1])
            self.workers = list(dict.fromkeys(self.workers))
        elif len(self.up & set(self.workers)) > 1:
            gone = self._draw.choice(self.workers)
            if self.up & set(self.workers) - {gone}:
                self.workers.remove(gone)
        self._list()

    # What the consumer does.

    def consume(self) -> None:
        some = self.plan.next()
        if some is not None:
            self.got.extend(int(element) for element in some.items())

    def run(self, losses: bool = False) -> None:
        """Lets things happen in any order until the pass is over."""
        steps = [self.take, self.ask, self.answer, self.consume, lambda: self.take(must=True)]
        steps += [self.answer] * 3 + [self.consume] * 2
        for turn in itertools.count():
            if self.plan.is_over:
                break
            assert turn < 20_000, f"it does not end: {self.plan!r}"
            if losses and turn < 300 and self._draw.random() < 0.2:
                self._draw.choice([self.come_and_go, self.join_or_leave])()
            self._draw.choice(steps)()
            if turn > 300:  # all come back some time
                self.up.update(self.workers)
                for worker in self.plan.away:
                    self.plan.found(worker)
        assert self.plan.next() is None


@some_worlds
@given(DRAWS, st.sampled_from(Guarantee), st.integers(1, 4))
def test_each_element_comes_once_if_nothing_is_lost(draw: random.Random, guarantee: Guarantee, workers: int) -> None:
    world = World(draw, guarantee, workers)
    world.run()
    assert sorted(world.got) == world.elements
    assert world.plan.missing == 0


@some_worlds
@given(DRAWS)
def test_one_worker_keeps_the_order(draw: random.Random) -> None:
    world = World(draw, AT_MOST, 1)
    world.run()
    assert world.got == world.elements


@pytest.mark.parametrize("splits", [None, [1] * 40])
@some_worlds
@given(draw=DRAWS)
def test_nothing_is_missing_or_comes_twice_where_it_is_to_come_at_most_once(
    draw: random.Random, splits: list[int] | None
) -> None:
    world = World(draw, AT_MOST, 3, splits)
    world.run(losses=True)
    assert sorted(world.got) == world.elements
    assert world.plan.missing == 0


def test_what_costs_worker_after_worker_is_left_out_and_counted_where_it_is_to_come_at_most_once() -> None:
    plan = PassPlan(AT_MOST, one_each=True)
    plan.list_workers([b"a"])
    plan.take()
    plan.took([TakenRange(0, 0, 10)], True)
    plan.arrive(plan.reads()[0], [column([0, 1])])
    missing: list[int] = []
    for _ in range(4):
        (read,) = plan.reads()
        missing.append(plan.lose(read.worker, ConnectionError("gone")))
        plan.found(read.worker)
    assert missing == [0, 0, 0, 8]
    assert plan.missing == 8
    assert plan.next() is not None
    assert plan.is_over


@some_worlds
@given(DRAWS)
def test_nothing_is_missing_where_it_is_to_come_at_least_once(draw: random.Random) -> None:
    world = World(draw, AT_LEAST, 3)
    world.run(losses=True)
    assert set(world.got) == set(world.elements)


@some_worlds
@given(DRAWS)
def test_everything_comes_exactly_once_whatever_is_lost(draw: random.Random) -> None:
    world = World(draw, EXACTLY, 3)
    world.run(losses=True)
    assert sorted(world.got) == world.elements
    assert world.plan.missing == 0


@some_worlds
@given(DRAWS)
def test_a_pass_goes_on_after_any_element(draw: random.Random) -> None:
    world = World(draw, EXACTLY, 2)
    for _ in range(draw.randrange(60)):
        draw.choice([world.take, world.ask, world.answer, world.answer, world.consume])()
    done = draw.randint(0, len(world.got))
    world.plan.acknowledge(draw.randint(0, done))
    position = world.plan.position(done)
    before = world.got[:done]
    resumed = World(draw, EXACTLY, 2, world._sizes)
    resumed._cut = world._cut
    resumed.taken = {r.id: TakenRange(r.id, r.first, r.last) for r in world.taken.values()}
    resumed.plan.resume(resumed.taken.values(), position, len(world._answers))
    resumed.run()
    assert sorted(before + resumed.got) == world.elements


@some_worlds
@given(DRAWS)
def test_ranges_are_acknowledged_when_the_consumer_has_done_with_them(draw: random.Random) -> None:
    world = World(draw, AT_LEAST, 2)
    world.run()
    before = world.acknowledged | set(world.plan.leave().finished)
    for id in before:
        reading = world.taken[id]
        assert not sum(world._sizes[reading.first : reading.last]), "nobody has done with its elements"
    world.plan.acknowledge(None)
    assert before | set(world.plan.leave().finished) == set(world.taken)


@pytest.mark.parametrize("most", range(1, 7))
def test_no_more_blocks_are_asked_for_than_may_be(most: int) -> None:
    plan = PassPlan(AT_MOST, max_requests=most)
    plan.list_workers([b"a", b"b", b"c"])
    plan.take()
    plan.took([TakenRange(number, number, number + 1) for number in range(9)], True)
    on_the_way = plan.reads()
    assert len(on_the_way) == min(most, 3)
    plan.arrive(on_the_way[0], [column([1])] * most)
    assert plan.reads() == [], "they wait to be consumed"
    while plan.next() is not None:
        pass
    assert len(plan.reads()) == min(most, 3) - len(on_the_way) + 1


def test_an_element_that_ends_every_worker_ends_the_pass() -> None:
    plan = PassPlan(EXACTLY)
    plan.take()
    plan.took([TakenRange(7, 3, 5)], True)
    for number in range(3):
        plan.list_workers([bytes([number])])
        assert plan.reads()
        plan.lose(bytes([number]), ConnectionError("gone"))
    plan.list_workers([b"x"])
    plan.reads()
    with pytest.raises(WorkerUnavailableError, match="^4 workers in a row were lost at element 0 of splits 3 to 4"):
        plan.lose(b"x", ConnectionError("gone"))


def test_a_range_of_one_worker_is_read_elsewhere_when_that_is_lost() -> None:
    plan = PassPlan(AT_MOST)
    plan.list_workers([b"a", b"b"])
    plan.take()
    plan.took([TakenRange(0, 0, 5, worker=b"a"), TakenRange(1, 0, 5, worker=b"b")], True)
    reads = plan.reads()
    assert {(read.worker, read.range.id) for read in reads} == {(b"a", 0), (b"b", 1)}
    plan.lose(b"a", ConnectionError("gone"))
    plan.arrive(next(read for read in reads if read.worker == b"b"), [])
    assert {(read.worker, read.range.id) for read in plan.reads()} == {(b"b", 0)}


def test_a_worker_that_is_not_on_the_list_any_more_begins_nothing() -> None:
    plan = PassPlan(AT_MOST)
    plan.list_workers([b"a"])
    plan.take()
    plan.took([TakenRange(0, 0, 5), TakenRange(1, 5, 6)], True)
    reads = plan.reads()
    assert plan.list_workers([b"b"]) == [b"a"], "to be asked whether it is alive"
    plan.arrive(reads[0], [])
    assert {read.worker for read in plan.reads()} == {b"b"}


def test_the_end_is_known_with_the_last_element() -> None:
    plan = PassPlan(AT_MOST)
    plan.list_workers([b"a"])
    plan.take()
    plan.took([TakenRange(0, 0, 1)], True)
    plan.arrive(plan.reads()[0], [column([1])])
    plan.arrive(plan.reads()[0], [])
    assert not plan.is_over
    assert plan.next() is not None
    assert plan.next() is None
    assert plan.is_over


def test_a_position_counts_no_range_as_done_before_its_elements() -> None:
    plan = PassPlan(EXACTLY)
    plan.list_workers([b"a"])
    plan.take()
    plan.took([TakenRange(4, 0, 10)], True)
    plan.arrive(plan.reads()[0], [column(list(range(10)))])
    plan.arrive(plan.reads()[0], [])
    plan.next()
    plan.next()
    assert plan.position(6) == Position((), {4: 6})
    assert plan.position(10) == Position((4,), {})


def test_the_end_of_a_range_waits_for_nobody_who_asks_for_more() -> None:
    plan = PassPlan(AT_LEAST)
    plan.list_workers([b"a"])
    plan.take()
    plan.took([TakenRange(1, 0, 2)], False)
    (begin,) = plan.reads()
    plan.arrive(begin, [column([0, 1])])
    (rest,) = plan.reads()
    plan.arrive(rest, [])
    assert plan.next() is not None
    assert not plan.has_arrived, "so a consumer does not ask again"
    plan.acknowledge(2)
    assert plan.leave().finished == (1,), "others may wait for that"


def test_an_end_that_comes_after_its_elements_are_done_with_is_acknowledged() -> None:
    plan = PassPlan(AT_LEAST)
    plan.list_workers([b"a"])
    plan.take()
    plan.took([TakenRange(1, 0, 2)], False)
    (begin,) = plan.reads()
    plan.arrive(begin, [column([0, 1])])
    assert plan.next() is not None
    plan.acknowledge(2)
    (rest,) = plan.reads()
    plan.arrive(rest, [])
    assert plan.leave().finished == (1,)
