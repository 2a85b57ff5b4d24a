"""Silence is noticed, and nothing is left running then."""

import asyncio
import contextlib
import gc
import time

import grpc
import grpc.aio
import pytest

from fedstack.errors import DeadlineExceededError
from fedstack.transport.wire import heartbeat
from fedstack.transport.wire.heartbeat import answered, watch

LONG = 60.0
SHORT = 0.02


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def others() -> set[asyncio.Task]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def items_of(*items, then=None):
    for item in items:
        yield item
    if then is not None:
        await then()


async def test_the_items_of_a_stream_pass_and_so_does_its_end():
    assert [item async for item in watch(items_of(1, None, 3), LONG)] == [1, None, 3]
    assert [item async for item in watch(items_of(), LONG)] == []


async def test_a_silent_stream_is_ended():
    ended = asyncio.Event()

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    received = []
    with pytest.raises(DeadlineExceededError, match="worker:1 sent no message or heartbeat within 0.02 seconds"):
        async for item in watch(items_of(1, 2, then=hang), SHORT, who="worker:1"):
            received.append(item)
    assert received == [1, 2]
    assert ended.is_set()
    assert not others()


async def test_a_silent_stream_may_take_its_time_to_end():
    ended = asyncio.Event()

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3 * SHORT)
            ended.set()

    with pytest.raises(DeadlineExceededError):
        async for _ in watch(items_of(then=hang), SHORT):
            pass
    assert ended.is_set()


async def test_the_time_that_the_consumer_takes_does_not_count():
    reached = asyncio.Event()
    async for _ in watch(items_of(1, 2), SHORT):
        asyncio.get_running_loop().call_later(3 * SHORT, reached.set)
        await reached.wait()


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("its own"), DeadlineExceededError("further down")])
async def test_an_error_of_the_stream_passes(error):
    async def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        async for _ in watch(items_of(1, then=fail), LONG):
            pass
    assert caught.value is error


async def test_a_cancelled_consumer_ends_the_stream_it_waits_for():
    waiting, ended = asyncio.Event(), asyncio.Event()

    async def hang():
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def consume():
        async for _ in watch(items_of(1, then=hang), LONG):
            pass

    consumer = asyncio.create_task(consume())
    await waiting.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert ended.is_set()
    assert not others()


async def test_a_stream_that_fails_when_it_is_cancelled_is_of_no_interest():
    async def fail_late():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("too late") from None

    with pytest.raises(DeadlineExceededError):
        async for _ in watch(items_of(then=fail_late), SHORT):
            pass


async def test_an_error_that_comes_as_the_consumer_is_cancelled_is_not_reported_as_unexpected():
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    failure = asyncio.get_running_loop().create_future()

    async def fail():
        await failure

    async def consume():
        async for _ in watch(items_of(1, then=fail), LONG):
            pass

    consumer = asyncio.create_task(consume())
    await asyncio.sleep(0)
    failure.set_exception(ValueError("at the same time"))
    consumer.cancel()
    await asyncio.wait([consumer])
    assert consumer.cancelled()
    gc.collect()  # asyncio reports once nobody can ask any more
    assert reported == []


async def test_a_consumer_that_stops_leaves_the_stream_to_its_owner():
    stream = items_of(1, 2, 3)
    watched = watch(stream, LONG)
    assert await anext(watched) == 1
    await watched.aclose()
    assert not others()
    assert [item async for item in stream] == [2, 3]


@contextlib.asynccontextmanager
async def call_that_falls_silent():
    """Yields a call that brings two messages and hangs then, and an event: the server noticed its end."""
    ended = asyncio.Event()

    async def beat_twice(request, context):
        try:
            for _ in range(2):
                await context.write(request)
            await asyncio.Event().wait()
        finally:
            ended.set()

    server = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(beat_twice)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Beat", {"Beat": handler}),))
    port = server.add_insecure_port("localhost:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:
        yield channel.unary_stream("/test.Beat/Beat")(b"beat"), ended
    await server.stop(None)


async def test_a_call_of_grpc_that_falls_silent_is_ended():
    async with call_that_falls_silent() as (call, ended):
        received = []
        with pytest.raises(DeadlineExceededError):
            async for message in watch(call, 0.5):
                received.append(message)
        assert received == [b"beat", b"beat"]
        assert call.cancelled()
        await asyncio.wait_for(ended.wait(), LONG)


async def test_a_call_of_grpc_that_is_left_early_is_for_its_owner_to_end():
    async with call_that_falls_silent() as (call, ended):
        async for _ in watch(call, LONG):
            break
        assert not call.done()
        call.cancel()
        await asyncio.wait_for(ended.wait(), LONG)


async def test_the_answer_of_a_call_passes_and_so_does_its_error():
    call = asyncio.get_running_loop().create_future()
    call.set_result(b"answer")
    assert await answered(call, LONG) == b"answer"
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await answered(failed, LONG)


async def test_a_call_that_does_not_answer_is_ended():
    call = asyncio.get_running_loop().create_future()
    with pytest.raises(DeadlineExceededError, match="worker:1 sent no message or heartbeat within 0.02 seconds"):
        await answered(call, SHORT, who="worker:1")
    assert call.cancelled()


async def test_a_caller_that_is_cancelled_is_not_told_of_silence():
    call = asyncio.get_running_loop().create_future()
    asking = asyncio.ensure_future(answered(call, LONG))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert call.cancelled()


async def test_an_answer_that_comes_while_this_process_is_held_up_is_taken(monkeypatch):
    monkeypatch.setattr(heartbeat, "_HELD_UP_SECONDS", 0.05)
    loop = asyncio.get_running_loop()
    call = loop.create_future()
    loop.call_later(2 * SHORT, call.set_result, b"answer")
    loop.call_soon(time.sleep, 10 * SHORT)
    assert await answered(call, SHORT) == b"answer"
