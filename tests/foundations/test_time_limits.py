"""What has so much time is cancelled after it, and a cancellation from outside always arrives."""

import asyncio
import gc
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedstack.errors import DeadlineExceededError
from fedstack.foundations.time_limits import within, within_seconds

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
        assert await within_seconds(asyncio.sleep(0, "here"), WALL) == "here"
        assert await within_seconds(asyncio.sleep(0, "here"), None) == "here"
        with pytest.raises(ValueError, match="no"):
            await within_seconds(fails(), WALL)

    asyncio.run(work())


@pytest.mark.parametrize("seconds", [0.01, 0.0, -1.0])
def test_what_takes_longer_is_cancelled_and_has_ended_then(seconds: float) -> None:
    ended: list[str] = []

    async def work() -> None:
        begun = asyncio.ensure_future(_waits(ended))
        await asyncio.sleep(0)
        with pytest.raises(asyncio.TimeoutError):
            await within_seconds(begun, seconds)
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
            await within_seconds(awaits(_waits(ended)), seconds)
        assert ended == ["ended"]

    asyncio.run(work())


@pytest.mark.parametrize("steps", range(8))
def test_a_cancellation_is_not_lost_in_whatever_step_the_result_comes(steps: int) -> None:
    async def work() -> None:
        result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(within_seconds(result, WALL))
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
        waiting = asyncio.ensure_future(within_seconds(_waits(ended), WALL))
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
        waiting = asyncio.ensure_future(within_seconds(fails(result), WALL))
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


def test_nothing_else_in_the_package_uses_what_may_lose_a_cancellation() -> None:
    users = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"asyncio\.wait_for\(", path.read_text("utf-8"))]
    assert users == ["time_limits.py"]


def _late():
    return DeadlineExceededError("late")


async def test_work_that_ends_in_time_gives_its_result():
    assert await within(60.0, asyncio.sleep(0, "done"), _late) == "done"


async def test_an_error_of_the_work_is_raised_as_it_is():
    async def fail():
        raise asyncio.TimeoutError("of the work")

    with pytest.raises(asyncio.TimeoutError, match="of the work"):
        await within(60.0, fail(), _late)


async def test_late_work_is_cancelled_and_its_caller_goes_on():
    ended = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    with pytest.raises(DeadlineExceededError):
        await within(0.001, work(), _late)
    assert ended.is_set()
    assert await asyncio.wait_for(asyncio.sleep(0, "goes on"), 60.0) == "goes on"


async def test_late_work_that_ends_with_another_error_is_late():
    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("of the work") from None

    with pytest.raises(DeadlineExceededError):
        await within(0.001, work(), _late)


async def test_a_cancelled_caller_is_cancelled_and_not_late():
    begun = asyncio.Event()

    async def work():
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(within(60.0, work(), _late))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
async def test_what_is_no_positive_number_is_any_time(seconds):
    assert await within(seconds, asyncio.sleep(0, "done"), _late) == "done"
