"""Room for large messages: which go on, which wait, which give up."""

import asyncio

import pytest

from fedstack.foundations.message_room import MessageRoom

MIB = 1 << 20
pytestmark = pytest.mark.asyncio


async def asked(room: MessageRoom, *sizes: int) -> list["asyncio.Task[bool]"]:
    tasks = [asyncio.ensure_future(room.take(size)) for size in sizes]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def states(tasks: list["asyncio.Task[bool]"]) -> list[bool | None]:
    return [task.result() if task.done() else None for task in tasks]


async def test_messages_wait_in_their_order_until_others_are_done() -> None:
    room = MessageRoom(10 * MIB, 20.0, 10 * MIB)
    tasks = await asked(room, 6 * MIB, 4 * MIB, 3 * MIB, MIB)
    assert states(tasks) == [True, True, None, None]
    room.give_back(4 * MIB)
    await asyncio.gather(*tasks)
    assert states(tasks) == [True] * 4


async def test_of_messages_that_wait_the_lowest_number_is_next() -> None:
    room = MessageRoom(10 * MIB, 20.0)
    assert await room.take(10 * MIB)
    tasks = [asyncio.ensure_future(room.take(10 * MIB, order)) for order in (30, 10, 20, 10)]
    ended: list[int] = []
    for index, task in enumerate(tasks):
        task.add_done_callback(lambda _, index=index: ended.append(index))
    for _ in range(5):
        await asyncio.sleep(0)
        room.give_back(10 * MIB)
        await asyncio.sleep(0)
    assert await asyncio.gather(*tasks) == [True] * 4
    await asyncio.sleep(0)
    assert ended == [1, 3, 2, 0]


async def test_a_message_larger_than_all_room_goes_alone() -> None:
    room = MessageRoom(10 * MIB, 20.0, 10 * MIB)
    tasks = await asked(room, MIB, 50 * MIB)
    assert states(tasks) == [True, None]
    room.give_back(MIB)
    assert await tasks[1]
    [behind] = await asked(room, MIB)
    assert states([behind]) == [None]
    room.give_back(50 * MIB)
    assert await behind


async def test_small_messages_never_wait() -> None:
    room = MessageRoom(MIB, 20.0, MIB)
    tasks = await asked(room, MIB, MIB, *[1000] * 5000)
    assert states(tasks) == [True, None, *[True] * 5000]
    room.give_back(1000)
    assert states(tasks[1:2]) == [None]
    tasks[1].cancel()


async def test_a_message_gives_up_after_a_while_and_lets_those_behind_it_go() -> None:
    room = MessageRoom(10 * MIB, 0.05, 10 * MIB)
    assert await room.take(6 * MIB)
    tasks = await asked(room, 8 * MIB, 2 * MIB)
    assert await asyncio.gather(*tasks) == [False, True]
    room.give_back(6 * MIB)
    room.give_back(2 * MIB)
    assert await room.take(10 * MIB)


async def test_what_waits_has_no_more_room_than_what_goes_on() -> None:
    room = MessageRoom(10 * MIB, 20.0, 10 * MIB)
    tasks = await asked(room, 10 * MIB, 6 * MIB, 4 * MIB, MIB)
    assert states(tasks) == [True, None, None, False]
    room.give_back(10 * MIB)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("granted_first", [False, True])
async def test_one_that_is_cancelled_while_it_waits_takes_nothing(granted_first: bool) -> None:
    room = MessageRoom(10 * MIB, 20.0, 10 * MIB)
    assert await room.take(10 * MIB)
    [task] = await asked(room, 5 * MIB)
    if granted_first:
        room.give_back(10 * MIB)
    task.cancel()
    await asyncio.wait([task])
    if not granted_first:
        room.give_back(10 * MIB)
    assert repr(room) == f"<MessageRoom: 0 of {10 * MIB} bytes taken, 0 messages wait>"
