"""Small creations are kept back until something is computed of them: most computations are one call then."""

import asyncio
import gc
import random
import threading

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstack
from fedstack.errors import LeafError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.remote import extended_session
from fedstack.executors.remote.pending_creations import Creation, PendingCreations
from fedstack.transport.peers.io_loop import io_loop

WALL = 20.0
INT = fl.TensorType(np.int32)


@fedstack.python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


@fedstack.python_computation([np.int32], np.int32)
def broken(x):
    raise ValueError("no luck")


def ids(creations):
    return [creation.id for creation in creations]


def pending(**needs):
    """Makes pending creations by name, each with the names of what it needs."""
    made = PendingCreations()
    for name, needed in needs.items():
        made.add(Creation(id=name), list(needed))
    return made


def test_what_a_value_needs_comes_before_it_and_nothing_else_does():
    made = pending(a="", b="a", c="", d="ab", e="cd")
    assert ids(made.needed_for(["b"])) == ["a", "b"]
    assert sorted(ids(made.needed_for(["d"]))) == ["a", "b", "d"]
    assert ids(made.needed_for(["c", "x"])) == ["c"]
    # What is being sent already goes along with what uses it, for it may come there later.
    assert ids(made.everything_unsent()) == ["a", "b", "d", "c", "e"]


def test_several_who_send_everything_at_once_do_not_send_the_same():
    made = pending(a="", b="a")
    first = made.everything_unsent()
    assert (ids(first), made.unsent, made.unsent_bytes) == (["a", "b"], 0, 0)
    made.add(Creation(id="c"))
    assert (made.unsent, made.unsent_bytes) == (1, Creation(id="c").ByteSize())
    assert ids(made.everything_unsent()) == ["c"]
    assert made.everything_unsent() == []
    made.arrived(first, created=False)
    assert (made.unsent, len(made)) == (2, 3)
    assert ids(made.everything_unsent()) == ["a", "b"]


def test_what_the_peer_has_is_not_sent_again():
    made = pending(a="", b="a")
    made.arrived(made.needed_for(["a"]), created=True)
    assert len(made) == 1
    assert ids(made.needed_for(["b"])) == ["b"]


def test_what_failed_on_its_way_is_sent_again():
    made = pending(a="", b="a")
    made.arrived(made.needed_for(["b"]), created=False)
    assert ids(made.needed_for(["b"])) == ["a", "b"]


def test_bytes_are_counted():
    made = PendingCreations()
    creations = [Creation(id="a"), Creation(id="b" * 100)]
    for creation in creations:
        made.add(creation)
    assert made.bytes == sum(creation.ByteSize() for creation in creations)
    made.drop(["a"])
    assert made.bytes == creations[1].ByteSize()
    made.arrived(made.everything_unsent(), created=True)
    assert (made.bytes, len(made)) == (0, 0)


def test_there_is_room_for_so_many_that_nobody_is_sending():
    made = PendingCreations(most=2)
    assert [made.add_if_room(Creation(id=name)) for name in "abc"] == [True, True, False]
    assert len(made) == 2
    made.needed_for(["a"])
    assert made.add_if_room(Creation(id="c"))


def test_there_is_room_for_so_many_bytes():
    made = PendingCreations(most_bytes=2 * Creation(id="a").ByteSize())
    assert [made.add_if_room(Creation(id=name)) for name in "abc"] == [True, True, False]
    made.drop(["a"])
    assert made.add_if_room(Creation(id="c"))


def test_what_nobody_needs_is_forgotten_here_and_never_spoken_of():
    made = pending(a="", b="")
    assert made.drop(["a"]) == ([], [])
    assert ids(made.everything_unsent()) == ["b"]


def test_what_is_on_its_way_or_needed_waits():
    made = pending(a="", b="a", c="")
    sent = made.needed_for(["c"])
    assert made.drop(["a", "c", "x"]) == (["x"], ["a", "c"])
    made.arrived(sent, created=True)
    assert made.drop(["b"]) == ([], [])
    assert made.drop(["a", "c"]) == (["c"], [])


def test_what_may_have_come_there_before_an_error_is_disposed_of():
    made = pending(a="", b="")
    made.arrived(made.needed_for(["a"]), created=False)
    assert made.drop(["a", "b"]) == (["a"], [])
    assert (len(made), made.bytes) == (0, 0)


def test_what_two_calls_bring_along_waits_for_both():
    made = pending(a="")
    first, second = made.needed_for(["a"]), made.needed_for(["a"])
    made.arrived(first, created=True)
    assert made.drop(["a"]) == ([], ["a"])
    made.arrived(second, created=False)
    assert made.drop(["a"]) == (["a"], [])


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32))
def test_in_any_order_of_events_each_value_is_created_after_what_it_needs_and_ends_as_it_should(seed):
    choose = random.Random(seed)
    made, known, there, wanted, flying = PendingCreations(), {}, set(), set(), []
    for number in range(60):
        what = choose.choice(["add", "add", "need", "everything", "answer", "drop"])
        if what == "add":
            needs = choose.sample(sorted(wanted), min(len(wanted), choose.randint(0, 2)))
            made.add(Creation(id=str(number)), needs)
            known[str(number)] = needs
            wanted.add(str(number))
        elif what == "need" and wanted:
            flying.append(made.needed_for([choose.choice(sorted(wanted))]))
        elif what == "everything":
            flying.append(made.everything_unsent())
            assert (made.unsent, made.unsent_bytes) == (0, 0)
        elif what == "answer" and flying:
            sent = flying.pop(choose.randrange(len(flying)))
            created = choose.random() < 0.7
            reached = sent if created else sent[: choose.randint(0, len(sent))]
            for creation in reached:
                # What is there already is left as it is.
                assert creation.id in there or set(known[creation.id]) <= there
                there.add(creation.id)
            made.arrived(sent, created)
        elif what == "drop" and wanted:
            value = choose.choice(sorted(wanted))
            gone, waiting = made.drop([value])
            assert set(gone) | set(waiting) <= {value}
            if not waiting:
                there -= set(gone)
                wanted.discard(value)
    for sent in flying:
        made.arrived(sent, created=False)
    dropped = sorted(wanted)
    while dropped:
        gone, dropped = made.drop(dropped)
        there -= set(gone)
    assert not there
    assert (len(made), made.bytes, made.unsent, made.unsent_bytes) == (0, 0, 0, 0)


async def sum_of(executor, x, y):
    function = await executor.create_value(add)
    argument = await executor.create_value((x, y), fl.StructType([INT, INT]))
    return await executor.create_call(function, argument)


async def test_value_and_call_and_compute_are_one_call_to_the_peer(executor, connection):
    called = await sum_of(executor, 1, 2)
    assert connection.methods == ["OpenSession", "Evaluate"]  # the function, which may be large or not allowed
    assert await called.compute() == 3
    assert connection.methods == ["OpenSession", "Evaluate", "Evaluate"]
    _, compute = connection.of("Evaluate")
    assert [creation.WhichOneof("kind") for creation in compute.request.creation] == ["value", "call"]


async def test_structs_and_selections_are_kept_back_too(executor, connection):
    one = await executor.create_value(1, INT)
    struct = await executor.create_struct({"a": one, "b": one})
    member = await executor.create_selection(struct, 1)
    assert await member.compute() == 1
    assert connection.methods == ["OpenSession", "Evaluate"]
    kinds = [creation.WhichOneof("kind") for creation in connection.of("Evaluate")[0].request.creation]
    assert kinds == ["value", "struct", "selection"]


async def test_what_is_kept_back_does_not_wait_for_the_transport(executor, connection):
    function = await executor.create_value(add)
    held, go_on = threading.Event(), threading.Event()
    io_loop.call_soon(lambda: held.set() or go_on.wait(WALL))
    assert await asyncio.to_thread(held.wait, WALL)
    try:
        pair = await executor.create_struct([await executor.create_value(number, INT) for number in (1, 2)])
        called = await executor.create_call(function, pair)
        summed = await executor.create_struct({"pair": pair, "sum": called})
        member = await executor.create_selection(summed, 1)
    finally:
        go_on.set()
    assert await member.compute() == 3
    assert connection.methods == ["OpenSession", "Evaluate", "Evaluate"]


async def test_what_nobody_computes_is_never_sent(executor, connection):
    unused = [await executor.create_value(number, INT) for number in range(10)]
    assert await (await sum_of(executor, 1, 2)).compute() == 3
    assert len(connection.of("Evaluate")[1].request.creation) == 2
    del unused


async def test_what_has_been_created_is_not_sent_again(executor, connection):
    called = await sum_of(executor, 1, 2)
    assert await called.compute() == await called.compute() == 3
    assert len(connection.of("Evaluate")[2].request.creation) == 0


async def test_dropped_values_are_disposed_of_if_the_peer_has_them_and_forgotten_if_not(
    make_remote, connection, service, eventually
):
    executor = make_remote(dispose_batch_size=1)
    kept = await executor.create_value(1, INT)
    called = await sum_of(executor, 1, 2)
    assert await called.compute() == 3
    never_sent = await executor.create_value(7, INT)
    assert service.status().values == 3
    del called, never_sent
    gc.collect()
    await eventually(lambda: service.status().values == 0)
    disposed = [ref.id for call in connection.of("Dispose") for ref in call.request.value_ref]
    created = [c.id for call in connection.of("Evaluate") for c in call.request.creation]
    assert sorted(disposed) == sorted(created)
    assert await kept.compute() == 1


@pytest.mark.parametrize("error", [WorkerUnavailableError("gone"), StaleSessionError("restarted")])
async def test_creations_are_sent_again_after_a_call_that_failed_on_its_way(executor, connection, error):
    called = await sum_of(executor, 1, 2)
    connection.fail["Evaluate"] = [error]
    with pytest.raises(type(error)):
        await called.compute()
    if isinstance(error, StaleSessionError):
        called = await sum_of(executor, 1, 2)
    assert await called.compute() == 3
    computed = [call for call in connection.of("Evaluate") if call.request.HasField("value_ref")]
    assert [len(call.request.creation) for call in computed] == [2, 2]


async def test_creations_whose_answer_was_lost_may_come_twice(executor, connection, service):
    called = await sum_of(executor, 1, 2)
    connection.lose["Evaluate"] = [WorkerUnavailableError("lost")]
    with pytest.raises(WorkerUnavailableError):
        await called.compute()
    assert await called.compute() == 3
    assert service.status().values == 3


async def test_a_call_that_fails_at_the_peer_leaves_nothing_there_when_it_is_dropped(
    make_remote, service, connection, eventually
):
    executor = make_remote(dispose_batch_size=1)
    function = await executor.create_value(broken)

    async def fail():
        called = await executor.create_call(function, await executor.create_value(1, INT))
        with pytest.raises(LeafError):
            await called.compute()

    for _ in range(10):
        await fail()

    def is_nearly_empty():
        gc.collect()
        return service.status().values <= 3  # the function, and what the last error's traceback refers to

    await eventually(is_nearly_empty)
    assert connection.of("Dispose")  # on a slow machine, some of it before the last call


async def test_functions_are_sent_again_if_they_get_lost_on_their_way(executor, connection):
    connection.fail["Evaluate"] = [WorkerUnavailableError("gone")]
    connection.lose["Evaluate"] = [WorkerUnavailableError("lost")]
    assert await (await sum_of(executor, 1, 2)).compute() == 3
    requests = [call.request.SerializeToString(deterministic=True) for call in connection.of("Evaluate")[:-1]]
    assert len(requests) == 3
    assert len(set(requests)) == 1


async def test_large_values_are_sent_again_if_they_get_lost_on_their_way(executor, connection, service):
    connection.fail["Evaluate"] = [WorkerUnavailableError("gone")]
    connection.lose["Evaluate"] = [WorkerUnavailableError("lost")]
    array = np.arange(1_000_000, dtype=np.float32)
    value = await executor.create_value(array, fl.TensorType(np.float32, [1_000_000]))
    uploads = connection.of("Evaluate")
    assert len(uploads) == 3
    assert len({creation.id for call in uploads for creation in call.request.creation}) == 1
    assert np.array_equal(await value.compute(), array)
    assert service.status().values == 1


async def test_what_is_kept_back_is_bounded_in_number(executor, connection, service, monkeypatch):
    monkeypatch.setattr(extended_session, "_MAX_PENDING", 5)
    values = [await executor.create_value(number, INT) for number in range(14)]
    assert [len(call.request.creation) for call in connection.of("Evaluate")] == [6, 6]
    assert service.status().values == 12
    assert [await value.compute() for value in values] == list(range(14))


async def test_many_who_find_the_backlog_full_at_once_send_it_together(executor, connection, monkeypatch):
    monkeypatch.setattr(extended_session, "_MAX_PENDING", 5)
    await executor.create_value(0, INT)
    values = await asyncio.gather(*(executor.create_value(number, INT) for number in range(1, 20)))
    assert [len(call.request.creation) for call in connection.of("Evaluate")] == [6, 6, 6]
    assert await asyncio.gather(*(value.compute() for value in values)) == list(range(1, 20))


async def test_what_is_kept_back_is_bounded_in_bytes(executor, connection):
    array = np.zeros(2000, np.float32)  # just too small to travel beside its message
    # What nobody refers to any more is never sent.
    values = [await executor.create_value(array, fl.TensorType(np.float32, [2000])) for _ in range(1200)]
    sizes = [sum(creation.ByteSize() for creation in call.request.creation) for call in connection.of("Evaluate")]
    assert len(values) * array.nbytes // (5 << 20) <= len(sizes) > 0
    assert all(4 << 20 <= size <= (4 << 20) + 10_000 for size in sizes)


async def test_what_is_kept_back_is_as_it_was_when_it_was_created(executor, connection):
    array = np.zeros(50_000, np.float32)
    value = await executor.create_value(array, fl.TensorType(np.float32, [50_000]))
    array[:] = 1
    assert connection.methods == ["OpenSession"]
    assert not np.any(await value.compute())
    assert connection.methods == ["OpenSession", "Evaluate"]


async def test_values_that_are_not_small_are_sent_at_once(executor, connection, service):
    many = [np.float32(1)] * 3
    large = fl.StructType([fl.TensorType(np.float32, [3000])] * 100)
    payload = [np.zeros(3000, np.float32)] * 100
    await executor.create_value(many, fl.FederatedType(np.float32, fl.CLIENTS))
    value = await executor.create_value(payload, large)
    assert connection.methods == ["OpenSession", "Evaluate"]
    assert service.status().values == 1
    assert len(await value.compute()) == 100
