"""Ids of values that nobody refers to any more: none is lost, none comes twice, and batches are due in time."""

import gc
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.errors import InvalidValueError
from fedstack.transport.wire.disposal import DisposalQueue


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def new_queue(batch_size=3, max_age=10.0):
    clock = Clock()
    return DisposalQueue(batch_size, max_age, clock), clock


def test_what_is_new_waits_until_a_batch_is_full():
    queue, _ = new_queue()
    queue.add("a")
    queue.add("b")
    assert queue.take() == []
    queue.add("c")
    queue.add("d")
    assert queue.take() == [["a", "b", "c"]]
    assert len(queue) == 1


def test_all_there_is_goes_when_the_oldest_has_waited_for_long_enough():
    queue, clock = new_queue()
    queue.add("a")
    clock.now += 9.0
    for item in "bcd":
        queue.add(item)
    clock.now += 1.0
    assert queue.take() == [["a", "b", "c"], ["d"]]
    assert queue.take() == []


def test_it_says_whether_there_is_anything_to_take():
    queue, clock = new_queue(batch_size=2)
    assert not queue.is_due
    queue.add("a")
    assert not queue.is_due
    queue.add("b")
    assert queue.is_due
    assert queue.take() == [["a", "b"]]
    queue.add("c")
    clock.now += 10.0
    assert queue.is_due
    assert queue.take() == [["c"]]
    assert not queue.is_due


def test_all_there_is_goes_when_forced():
    queue, _ = new_queue()
    for item in "abcd":
        queue.add(item)
    assert queue.take(force=True) == [["a", "b", "c"], ["d"]]
    assert queue.take(force=True) == []


@given(steps=st.lists(st.integers(0, 7) | st.floats(0, 20) | st.booleans(), max_size=40), batch_size=st.integers(1, 5))
def test_every_id_comes_once_and_in_order_and_nothing_due_stays(steps, batch_size):
    queue, clock = new_queue(batch_size)
    added, taken = 0, []
    for step in steps:
        if isinstance(step, bool):
            batches = queue.take(force=step)
            assert all(0 < len(batch) <= batch_size for batch in batches)
            taken += [item for batch in batches for item in batch]
            assert queue.take() == []
            assert not (step and len(queue))
        elif isinstance(step, float):
            clock.now += step
        else:
            for _ in range(step):
                queue.add(added)
                added += 1
    taken += [item for batch in queue.take(force=True) for item in batch]
    assert taken == list(range(added))


def test_finalizers_may_add_while_batches_are_taken():
    class Value:
        pass

    clock_calls = []

    def collecting_clock():
        clock_calls.append(None)
        if len(clock_calls) % 3 == 0:
            gc.collect()
        return 0.0

    queue = DisposalQueue(4, 10.0, collecting_clock)
    for number in range(50):
        value = Value()
        value.itself = value
        weakref.finalize(value, queue.add, number)
    del value
    taken = []
    while len(taken) < 50:
        gc.collect()
        taken += [item for batch in queue.take(force=len(taken) > 40) for item in batch]
    assert sorted(taken) == list(range(50))


def test_threads_may_add_at_the_same_time():
    queue = DisposalQueue(7)
    go = threading.Barrier(5)

    def add_many(first):
        go.wait()
        for number in range(first, first + 1000):
            queue.add(number)

    threads = [threading.Thread(target=add_many, args=(1000 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    go.wait()
    taken = []
    while any(thread.is_alive() for thread in threads) or len(queue):
        taken += [item for batch in queue.take(force=True) for item in batch]
    for thread in threads:
        thread.join()
    taken += [item for batch in queue.take(force=True) for item in batch]
    assert sorted(taken) == list(range(4000))


def test_a_batch_has_at_least_one_id():
    with pytest.raises(InvalidValueError, match="Expected batch_size to be at least 1, found 0"):
        DisposalQueue(0)


def test_it_shows_what_it_has():
    queue, _ = new_queue()
    queue.add("a")
    assert repr(queue) == "<DisposalQueue of 1, in batches of 3>"
