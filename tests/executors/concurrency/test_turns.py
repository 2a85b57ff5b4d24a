"""Owners of work take turns at the threads, each in the order of its own."""

import asyncio
import threading

from hypothesis import given
from hypothesis import strategies as st

from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.turn_queue import TurnQueue

WALL = 60


def test_owners_take_turns() -> None:
    queue = TurnQueue[str]()
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.append(item, item[0])
    assert [queue.popleft() for _ in range(len(queue))] == ["a1", "b1", "c1", "a2", "c2", "a3"]


@given(steps=st.lists(st.sampled_from("abc") | st.booleans(), max_size=40))
def test_nothing_is_lost_and_each_owner_gets_its_own_in_order(steps: list[str | bool]) -> None:
    queue = TurnQueue[tuple[str, int]]()
    added: list[tuple[str, int]] = []
    taken: list[tuple[str, int]] = []
    for step in steps:
        if isinstance(step, str):
            added.append((step, len(added)))
            queue.append(added[-1], step)
        elif step and len(queue):
            taken.append(queue.popleft())
        elif len(queue):
            found = list(queue)[-1]
            queue.remove(found)
            added.remove(found)
        assert len(queue) == len(list(queue)) == len(added) - len(taken)
    taken += queue.take_all()
    assert len(queue) == 0
    assert sorted(taken) == sorted(added)
    for owner in "abc":
        assert [item for item in taken if item[0] == owner] == [item for item in added if item[0] == owner]


def test_who_has_much_to_do_does_not_keep_the_threads_from_others() -> None:
    threads = LeafThreads(max_threads=1)
    go_on, order = threading.Event(), list[str]()

    def submit(owner: str, name: str) -> None:
        with WorkScope(caller=owner).entered():
            threads.submit(lambda: order.append(name))

    threads.submit(lambda: go_on.wait(WALL))
    for index in range(3):
        submit("greedy", f"greedy {index}")
    submit("modest", "modest")
    go_on.set()
    asyncio.run(asyncio.wait_for(threads.run(lambda: None), WALL))
    threads.submit(lambda: None).result(WALL)
    assert order[:2] == ["greedy 0", "modest"]
    threads.close()
