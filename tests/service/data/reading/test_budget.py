"""A few items are made ahead of their consumer, in order; what makes them is closed when the consumer ends."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from fedstack.errors import ClosedError, InvalidValueError, ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.service.data.reading.budget import AHEAD, Ahead, Budget, MadeAhead
from fedstack.transport.peers.io_loop import result_of

WALL = 20.0


class Counted:
    """Makes items, and counts them; each may wait to be let go."""

    def __init__(self, number: int) -> None:
        self.made = self.closed = 0
        self.changed = threading.Condition()
        self.items = self._make(number)

    def _make(self, number: int) -> Iterator[int]:
        try:
            for place in range(number):
                self._count("made")
                yield place
        finally:
            self._count("closed")

    def _count(self, what: str) -> None:
        with self.changed:
            setattr(self, what, getattr(self, what) + 1)
            self.changed.notify_all()

    async def reaches(self, condition: Callable[[], bool]) -> None:
        def wait() -> None:
            with self.changed:
                assert self.changed.wait_for(condition, WALL)

        await asyncio.to_thread(wait)


@pytest.fixture
def threads() -> Iterator[LeafThreads]:
    threads = LeafThreads()
    yield threads
    threads.close()


def ahead_of(items: Iterator[int], threads: LeafThreads, budget: Budget | None = None) -> MadeAhead[int]:
    return MadeAhead(items, threads, size_of=lambda item: 10, budget=budget or Budget(1 << 30))


async def taken(ahead: MadeAhead[int]) -> int | None:
    return await asyncio.wait_for(result_of(ahead.take()), WALL)


def test_items_come_in_order_and_what_makes_them_is_closed(threads: LeafThreads) -> None:
    async def work() -> None:
        counted = Counted(5)
        ahead = ahead_of(counted.items, threads)
        assert [await taken(ahead) for _ in range(5)] == [0, 1, 2, 3, 4]
        await counted.reaches(lambda: counted.closed == 1)
        ahead.end()

    asyncio.run(work())


def test_after_the_last_block_there_is_none_where_that_was_not_known(threads: LeafThreads) -> None:
    async def work() -> None:
        ahead = ahead_of(iter(range(2)), threads, Budget(1))
        assert [await taken(ahead) for _ in range(3)] == [0, 1, None]

    asyncio.run(work())


def test_a_few_items_are_made_ahead_and_no_more(threads: LeafThreads) -> None:
    async def work() -> None:
        counted = Counted(1000)
        ahead = ahead_of(counted.items, threads)
        for number in range(20):
            assert await taken(ahead) == number
        await counted.reaches(lambda: counted.made == 20 + AHEAD)
        await asyncio.sleep(0.05)
        assert counted.made == 20 + AHEAD
        ahead.end()

    asyncio.run(work())


def test_without_room_for_items_ahead_each_is_made_when_it_is_asked_for(threads: LeafThreads) -> None:
    async def work() -> None:
        budget = Budget(20)
        first, second = Counted(100), Counted(100)
        aheads = [ahead_of(counted.items, threads, budget) for counted in (first, second)]
        await taken(aheads[0])
        await first.reaches(lambda: first.made == 2)  # one is sent, one is ahead, and they take all the room
        for number in range(10):
            assert await taken(aheads[1]) == number
        await asyncio.sleep(0.05)
        assert (first.made, second.made) == (2, 10)
        aheads[0].end()
        await taken(aheads[1])
        await second.reaches(lambda: second.made > 11)
        aheads[1].end()
        assert not budget.taken

    asyncio.run(work())


def test_one_that_ends_closes_what_makes_its_items(threads: LeafThreads) -> None:
    async def work() -> None:
        counted = Counted(1000)
        ahead = ahead_of(counted.items, threads)
        await taken(ahead)
        ahead.end()
        await counted.reaches(lambda: counted.closed == 1)

    asyncio.run(work())


def test_one_that_ends_just_after_a_turn_closes_what_makes_its_items_too(threads: LeafThreads) -> None:
    async def work() -> None:
        counted = Counted(1000)
        ahead = ahead_of(counted.items, threads)
        ahead.take()
        job = ahead._job
        assert job is not None
        job.exception(WALL)  # the thread has done its turn
        ahead.end()
        await counted.reaches(lambda: counted.closed == 1)

    asyncio.run(work())


def test_one_that_ends_while_a_block_is_made_closes_what_makes_it(threads: LeafThreads) -> None:
    async def work() -> None:
        begun, gate, closed = threading.Event(), threading.Event(), threading.Event()

        def items() -> Iterator[int]:
            try:
                begun.set()
                gate.wait(WALL)
                yield 0
            finally:
                closed.set()

        ahead = ahead_of(items(), threads, Budget(1))
        ahead.take()
        assert await asyncio.to_thread(begun.wait, WALL)
        ahead.end()
        gate.set()
        assert await asyncio.to_thread(closed.wait, WALL)

    asyncio.run(work())


def test_an_error_comes_after_the_items_before_it(threads: LeafThreads) -> None:
    async def work() -> None:
        def items() -> Iterator[int]:
            yield 0
            raise InvalidValueError("no more")

        ahead = ahead_of(items(), threads, Budget(1))
        assert await taken(ahead) == 0
        with pytest.raises(InvalidValueError, match="no more"):
            await taken(ahead)

    asyncio.run(work())


def test_what_makes_items_has_ended_when_the_last_is_taken(threads: LeafThreads) -> None:
    counted = Counted(3)
    ahead = MadeAhead(counted.items, threads, is_last=lambda item: item == 2)
    assert [ahead.take().result(WALL) for _ in range(3)] == [0, 1, 2]
    assert counted.closed == 1
    ahead.end()
    assert ahead.take().result(WALL) is None


def test_a_thread_takes_items_too(threads: LeafThreads) -> None:
    counted = Counted(40)
    ahead = ahead_of(counted.items, threads)
    assert [ahead.take().result(WALL) for _ in range(41)] == [*range(40), None]
    ahead.end()
    assert counted.closed == 1


def test_what_ends_a_thread_is_an_error_of_what_is_made(threads: LeafThreads) -> None:
    def items() -> Iterator[int]:
        raise SystemExit
        yield 0

    with pytest.raises(ResourceLimitError, match="interrupted by SystemExit"):
        ahead_of(items(), threads).take().result(WALL)


class Put(Ahead[int]):
    """Items that a test puts."""

    started = stopped = 0

    def _start(self) -> None:
        self.started += 1

    def _stop(self) -> None:
        self.stopped += 1


def test_a_producer_is_started_where_there_is_room_and_told_where_there_is_none() -> None:
    ahead = Put(2)
    first = ahead.take()
    assert (ahead.started, first.done()) == (1, False)
    assert ahead.put(0)
    assert first.result(0) == 0
    assert ahead.put(1)
    assert not ahead.put(2)
    assert (ahead.take().result(0), ahead.started) == (1, 2)


def test_who_waits_when_it_ends_gets_nothing_and_a_producer_at_work_is_refused() -> None:
    ahead = Put(2)
    waiting = ahead.take()
    ahead.end()
    assert (waiting.result(0), ahead.stopped) == (None, 0)  # it is at work, and finds out by itself
    with pytest.raises(ClosedError):
        ahead.put(0)
    ahead.finish(ClosedError("as the producer says"))
    assert ahead.stopped == 1
    assert ahead.take().result(0) is None


def test_a_producer_that_pauses_is_stopped_once() -> None:
    ahead = Put(1)
    ahead.take()
    ahead.put(0)
    assert not ahead.put(1)
    ahead.end()
    ahead.end()
    assert ahead.stopped == 1


def test_a_budget_counts_what_waits_and_what_was_taken_last() -> None:
    budget = Budget(100)
    ahead = Put(5, budget)
    ahead.take()
    ahead.put(0, 30)
    ahead.put(1, 40)
    assert budget.taken == 70
    ahead.take()
    assert budget.taken == 40
    ahead.put(2, 70)
    assert budget.is_full
    ahead.end()
    assert budget.taken == 0


def test_a_budget_refuses_if_it_is_to() -> None:
    budget = Budget(10, ResourceLimitError)
    budget.take(7, "a batch")
    with pytest.raises(ResourceLimitError, match="4 more for a batch, in addition to 7"):
        budget.take(4, "a batch")
    budget.take(-7)
    assert not budget.taken
