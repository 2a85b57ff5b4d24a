"""What has so much time is cancelled after it, and a cancellation from outside always arrives."""

import asyncio
import concurrent.futures
import gc
import itertools
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedstack.foundations.deadline import Deadline

PACKAGE = Path(__file__).resolve().parents[2] / "fedstack"
WALL = 20.0


async def _waits(ended: list[str]) -> None:
    """Waits until it is cancelled, and takes one more step of the loop to end."""
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append("ended")


def test_what_is_in_time_is_returned_and_its_errors_are_raised() -> None:
    async def fails() -> None:
        raise ValueError("no")

    async def work() -> None:
        assert await Deadline(WALL).wait(asyncio.sleep(0, "here")) == "here"
        assert await Deadline(None).wait(asyncio.sleep(0, "here")) == "here"
        with pytest.raises(ValueError, match="no"):
            await Deadline(WALL).wait(fails())

    asyncio.run(work())


@pytest.mark.parametrize("seconds", [0.01, 0.0, -1.0])
def test_what_takes_longer_is_cancelled_and_has_ended_then(seconds: float) -> None:
    ended: list[str] = []

    async def work() -> None:
        begun = asyncio.ensure_future(_waits(ended))
        await asyncio.sleep(0)
        with pytest.raises(asyncio.TimeoutError):
            await Deadline(seconds).wait(begun)
        assert ended == ["ended"]

    asyncio.run(work())


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_what_is_given_no_time_begins_nevertheless(seconds: float) -> None:
    """Else a coroutine that it would have awaited is never awaited, and Python warns of that."""

    async def awaits(other: Coroutine[Any, Any, None]) -> None:
        await other

    async def work() -> None:
        ended: list[str] = []
        with pytest.raises(asyncio.TimeoutError):
            await Deadline(seconds).wait(awaits(_waits(ended)))
        assert ended == ["ended"]

    asyncio.run(work())


@pytest.mark.parametrize("steps", range(8))
def test_a_cancellation_is_not_lost_in_whatever_step_the_result_comes(steps: int) -> None:
    async def work() -> None:
        result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(Deadline(WALL).wait(result))
        for _ in range(3):
            await asyncio.sleep(0)
        result.set_result("here")
        for _ in range(steps):
            await asyncio.sleep(0)
        if waiting.cancel():  # else it has returned the result already
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            assert waiting.result() == "here"

    asyncio.run(work())


def test_who_is_cancelled_waits_until_the_work_has_ended() -> None:
    ended: list[str] = []

    async def work() -> None:
        waiting = asyncio.ensure_future(Deadline(WALL).wait(_waits(ended)))
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ended == ["ended"]

    asyncio.run(work())


@pytest.mark.parametrize("is_done", [True, False], ids=["at the same time", "as it is cancelled"])
def test_nobody_is_told_of_an_error_that_a_cancelled_caller_does_not_want(is_done: bool) -> None:
    told: list[object] = []

    async def fails(result: "asyncio.Future[None]") -> None:
        try:
            await result
        except asyncio.CancelledError:
            raise ValueError("no") from None

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        result: asyncio.Future[None] = loop.create_future()
        waiting = asyncio.ensure_future(Deadline(WALL).wait(fails(result)))
        for _ in range(3):
            await asyncio.sleep(0)
        if is_done:
            result.set_exception(ValueError("no"))
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        del waiting, result
        gc.collect()

    asyncio.run(work())
    assert told == []


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_deadline_does_not_move() -> None:
    clock = Clock()
    deadline = Deadline(5.0, clock)
    clock.now += 4.0
    assert (deadline.left, deadline.is_over) == (1.0, False)
    clock.now += 4.0
    assert (deadline.left, deadline.is_over) == (0.0, True)


@pytest.mark.parametrize("seconds", [None, float("inf")])
def test_any_time_is_never_over(seconds: float | None) -> None:
    deadline = Deadline(seconds)
    assert (deadline.left, deadline.is_over) == (None, False)
    assert deadline.wait_blocking(lambda left: left) is None


async def test_the_error_for_what_is_late_is_the_callers() -> None:
    with pytest.raises(KeyError):
        await Deadline(0.001).wait(asyncio.Event().wait(), KeyError)
    with pytest.raises(KeyError):
        Deadline(0.001).wait_blocking(concurrent.futures.Future[None]().result, KeyError)


async def test_a_timeout_of_the_work_is_raised_as_it_is() -> None:
    async def fails() -> None:
        raise asyncio.TimeoutError("of the work")

    with pytest.raises(asyncio.TimeoutError, match="of the work"):
        await Deadline(WALL).wait(fails(), KeyError)
    failed: concurrent.futures.Future[None] = concurrent.futures.Future()
    failed.set_exception(asyncio.TimeoutError("of the work"))
    with pytest.raises(asyncio.TimeoutError, match="of the work"):
        Deadline(WALL).wait_blocking(failed.result, KeyError)


async def test_late_work_that_ends_with_another_error_is_late() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("of the work") from None

    with pytest.raises(asyncio.TimeoutError):
        await Deadline(0.001).wait(work())


async def test_a_caller_goes_on_after_work_that_was_late() -> None:
    with pytest.raises(asyncio.TimeoutError):
        await Deadline(0.001).wait(asyncio.Event().wait())
    assert await Deadline(WALL).wait(asyncio.sleep(0.001, "goes on")) == "goes on"


async def test_a_caller_that_is_being_cancelled_may_still_wait_with_a_deadline() -> None:
    found: list[str] = []

    async def ends_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await Deadline(0.001).wait(asyncio.Event().wait())
            except asyncio.TimeoutError:
                found.append("late")

    task = asyncio.ensure_future(ends_slowly())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert found == ["late"]


async def test_futures_that_have_not_ended_in_time_are_left_alone() -> None:
    here, late = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    here.set_result(None)
    assert await Deadline(0.0).has_ended(here)
    assert not await Deadline(0.001).has_ended(here, late)
    assert not late.done()
    late.set_result(None)
    assert await Deadline(None).has_ended(here, late)


async def test_attempts_end_with_their_pauses_or_the_time() -> None:
    assert [number async for number in Deadline(None).attempts([0.0, 0.0])] == [0, 1, 2]
    assert list(Deadline(None).attempts_blocking([0.0, 0.0])) == [0, 1, 2]
    assert [number async for number in Deadline(0.0).attempts(itertools.repeat(0.0))] == [0]
    assert list(Deadline(0.0).attempts_blocking(itertools.repeat(0.0))) == [0]
    assert [number async for number in Deadline(0.001).attempts(itertools.repeat(WALL))] == [0, 1]


def test_nothing_in_the_package_uses_what_may_lose_a_cancellation() -> None:
    users = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"asyncio\.wait_for\(", path.read_text("utf-8"))]
    assert users == []
