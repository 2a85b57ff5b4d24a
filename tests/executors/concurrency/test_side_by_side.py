"""Parts that are awaited side by side raise what running them one after the other would."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedstack.executors.concurrency.coroutines import all_in_order, end_all
from fedstack.testing.simulation.virtual_loop import VirtualLoop

WELL, WRONG, LOST, ENDED = "well", "wrong", "lost", "ended"
HOWS = (WELL, WRONG, LOST, ENDED)
All = Callable[..., Coroutine[Any, Any, list[int]]]


class Lost(Exception):
    """A part was lost."""


async def walked(parts: Sequence[Coroutine[Any, Any, int]], losses: tuple[type[Exception], ...]) -> list[int]:
    """What `all_in_order` means: looks at all parts whenever one has ended."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    wanted = tasks
    try:
        while running := [task for task in wanted if not task.done()]:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for position, task in enumerate(wanted):
                if not task.done():
                    continue
                if task.cancelled() or isinstance(task.exception(), losses):
                    if still := [other for other in tasks if not other.done()]:
                        await asyncio.wait(still, timeout=0.1)
                    return [task.result()]
                if task.exception() is not None:
                    for later in wanted[position + 1 :]:
                        later.cancel()
                    wanted = wanted[: position + 1]
                    break
        return [task.result() for task in wanted]
    except BaseException as error:
        await end_all(tasks, error)
        raise


@attrs.define
class Parts:
    """What becomes of parts: each takes some time and ends in some way.

    Attributes:
      ends: Which have ended when, and how.
    """

    plan: Sequence[tuple[float, str]]
    ends: list[tuple[float, int, str]] = attrs.field(factory=list)

    async def part(self, index: int) -> int:
        seconds, how = self.plan[index]
        said = "cancelled"
        try:
            if seconds:
                await asyncio.sleep(seconds)
            said = how
            if how == ENDED:
                raise asyncio.CancelledError
            if how in (WRONG, LOST):
                raise (Lost if how == LOST else ValueError)(index)
            return index
        finally:
            self.ends.append((asyncio.get_running_loop().time(), index, said))

    async def run(self, all_of: All, cancelled_after: float | None) -> tuple[object, float]:
        """Returns what comes of it, and when."""
        task = asyncio.ensure_future(all_of(list(map(self.part, range(len(self.plan)))), (Lost,)))
        loop = asyncio.get_running_loop()
        if cancelled_after is not None:
            loop.call_later(cancelled_after, task.cancel)
        try:
            return await task, loop.time()
        except (asyncio.CancelledError, Exception) as error:
            return repr(error), loop.time()


def outcome(all_of: All, plan: Sequence[tuple[float, str]], cancelled_after: float | None = None) -> object:
    loop = VirtualLoop()
    try:
        parts = Parts(plan)
        return loop.run_until_complete(parts.run(all_of, cancelled_after)), parts.ends
    finally:
        loop.close()


SECONDS = st.sampled_from([0.0, 0.03, 0.06, 0.09, 1.0, 1.05, 2.0, 3.0])


@given(
    st.lists(st.tuples(SECONDS, st.sampled_from((*HOWS, WELL, WELL))), max_size=12),
    st.none() | st.sampled_from([0.05, 1.02, 2.5]),
)
@example([(3.0, WRONG), (2.0, WRONG), (1.0, WRONG)], None)
@example([(1.0, WELL), (2.0, WRONG), (1.0, LOST)], None)
@example([(3.0, LOST), (2.0, WELL), (1.0, WRONG), (2.0, LOST)], None)
def test_what_comes_of_parts_is_what_a_walk_over_all_of_them_finds(plan, cancelled_after):
    assert outcome(all_in_order, plan, cancelled_after) == outcome(walked, plan, cancelled_after)


def test_the_first_part_that_fails_is_seen_even_if_a_later_one_fails_sooner():
    (error, when), ends = outcome(all_in_order, [(1.0, WELL), (3.0, WRONG), (2.0, WRONG), (9.0, WELL)])
    assert (error, when) == ("ValueError(1)", 3.0)
    assert ends == [(1.0, 0, WELL), (2.0, 2, WRONG), (2.0, 3, "cancelled"), (3.0, 1, WRONG)]


def test_a_loss_is_raised_almost_at_once():
    (error, when), _ = outcome(all_in_order, [(9.0, WELL), (1.0, LOST), (9.0, WELL)])
    assert (error, when) == ("Lost(1)", pytest.approx(1.1))


def test_a_part_is_looked_at_as_often_as_it_ends_however_many_there_are():
    looks = 0

    class Counting(asyncio.Task):
        def done(self):
            nonlocal looks
            looks += 1
            return super().done()

    loop = VirtualLoop()
    loop.set_task_factory(lambda loop, work, **options: Counting(work, loop=loop, **options))
    parts = Parts([(1.0 + 0.01 * index, WELL) for index in range(1000)])
    try:
        assert loop.run_until_complete(all_in_order(list(map(parts.part, range(1000))))) == list(range(1000))
    finally:
        loop.close()
    assert looks < 10 * 1000
