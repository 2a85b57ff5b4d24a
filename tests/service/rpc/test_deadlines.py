"""Tests what gives work so many seconds."""

import asyncio

import pytest

from fedstack.errors import DeadlineExceededError
from fedstack.service.rpc.deadlines import within


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
