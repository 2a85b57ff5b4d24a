"""What is done for the plan of a pass: nothing that others wait for is left unsaid."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

from fedstack.errors import StaleSessionError
from fedstack.foundations.deadline import Deadline
from fedstack.service.data.consumer.pass_driver import PassDriver
from fedstack.service.data.consumer.pass_plan import Read, Take, TakenRange

WALL = 20.0


async def test_a_pass_ends_where_the_dispatcher_was_started_anew_and_blames_no_worker() -> None:
    async def stale() -> None:
        raise StaleSessionError("The dispatcher was started again")

    reading, failed = SimpleNamespace(next=stale), cast("list[Exception]", [])
    driver = cast(Any, SimpleNamespace(_readings={b"w": reading}, _fail=failed.append))
    await PassDriver._read(driver, Read(b"w", TakenRange(1, 0, 5), begins=False))
    assert [type(error) for error in failed] == [StaleSessionError]


async def test_news_that_come_while_others_are_told_are_told_as_well() -> None:
    news = [Take(1, 0, (1,))]
    told: list[Take] = []
    answered = asyncio.Event()

    async def take(_: Take) -> str:
        await answered.wait()
        return "answered"

    async def tell(what: Take) -> None:
        told.append(what)
        if len(told) == 1:
            news.append(Take(1, 0, (1, 2)))
            driver._wake.set()
            await asyncio.sleep(0)
        else:
            answered.set()

    driver = cast(Any, SimpleNamespace(_wake=asyncio.Event(), _arrived=threading.Lock()))
    driver._client = SimpleNamespace(take=take, tell=tell)
    driver._plan = SimpleNamespace(news_for_others=lambda: news.pop(0) if news else None)
    answering = asyncio.ensure_future(PassDriver._answer(driver, Take(1, 1)))
    await asyncio.sleep(0)
    driver._wake.set()
    assert cast(object, await Deadline(WALL).wait(answering)) == "answered"
    assert [one.finished for one in told] == [(1,), (1, 2)]
