"""Contributions that are handed in early: together with the rest, they have the bits of the whole."""

import asyncio
import itertools
import math
import threading
from collections.abc import Sequence

import attrs
import federated_language as fl
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fedstack
from fedstack.computations.plan.schedule import schedule
from fedstack.computations.plan.tasks import Phase, PhaseTask
from fedstack.computations.plan.trace import trace
from fedstack.computations.values.columns import Column, ListColumn, ScalarColumn, StructColumn
from fedstack.executors import FederatingExecutor, LeafExecutor, SequenceExecutor
from fedstack.executors.base import hand_ins
from fedstack.executors.base.hand_ins import HandIn, HandInSink, Headway, Leave, kept_until
from fedstack.executors.base.phase_sink import PhaseResult, PhaseSink
from fedstack.executors.composing_executor import Contributions
from fedstack.executors.folds.aggregate_state import AggregateState
from fedstack.executors.folds.aggregations import FoldArgument, tree_state

FLOAT, VECTOR = fl.TensorType(np.float32), fl.TensorType(np.float32, [3])


@fedstack.python_computation([FLOAT, VECTOR], (FLOAT, VECTOR))
def same(number, vector):
    return number, vector


@fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS), fl.FederatedType(VECTOR, fl.CLIENTS))
def folds(numbers, vectors):
    found = fl.federated_map(same, (numbers, vectors))
    weighted = fl.federated_mean(found[1], found[0])
    return fl.federated_sum(found), fl.federated_mean(found[0]), weighted, fl.federated_max(found[0]), found


def phase_of(computation) -> Phase:
    tasks = schedule(trace(computation.to_proto())).tasks
    (task,) = (task for task in tasks if isinstance(task, PhaseTask))
    return task.phase


PHASE = phase_of(folds)
ARGUMENTS = [FoldArgument([], []) for _ in PHASE.folds]


def values(clients: range) -> list[Column]:
    rng = np.random.default_rng(7)
    numbers, vectors = rng.standard_normal(200, np.float32), rng.standard_normal((200, 3), np.float32)
    chosen = slice(clients.start, clients.stop)

    def column(member) -> Column:
        if isinstance(member, fl.StructType):
            return StructColumn(tuple(column(one) for _, one in member.items()), len(clients))
        return ListColumn(list(vectors[chosen])) if member.shape else ScalarColumn(numbers[chosen])

    return [column(result) for result in PHASE.result_types]


def states():
    return [tree_state(fold, argument) for fold, argument in zip(PHASE.folds, ARGUMENTS)]


def shown(totals: Sequence[object], columns: Sequence[Column]) -> list[bytes]:
    def flat(value: object) -> list[bytes]:
        return (
            [one for part in value for one in flat(part)] if isinstance(value, tuple) else [np.asarray(value).tobytes()]
        )

    return [one for value in [*totals, *(tuple(column.items()) for column in columns)] for one in flat(value)]


def whole(clients: range) -> list[bytes]:
    sink = PhaseSink(PHASE, states())
    sink.feed(clients.start, values(clients))
    return shown([state.result() for state in sink.states], sink.columns())


def sink_of(clients: range, handed: list[tuple[range, PhaseResult]]) -> HandInSink:
    hand_in = HandIn(lambda part, result: handed.append((part, result)), 0.0)
    sink = HandInSink(PHASE, states(), clients, hand_in)
    return sink


class _Engine:
    """No fold of these phases has functions, so nothing is asked of it."""


async def merged(clients: range, sink: HandInSink, handed: list[tuple[range, PhaseResult]]) -> list[bytes]:
    contributions = Contributions(_Engine(), PHASE, ARGUMENTS, clients)  # type: ignore[arg-type]
    for part, result in [*handed, sink.finish()]:
        contributions.add(part, result)
    folded = await contributions.folded()
    return shown([state.result() for state in folded.states], folded.columns)


@pytest.fixture(autouse=True)
def handing_in_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contributions are handed in as often as they can be."""
    monkeypatch.setattr(hand_ins, "_MOST_COST", float("inf"))


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(data=st.data())
async def test_what_is_handed_in_and_the_rest_have_the_bits_of_the_whole(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 20))
    clients = range(start, start + data.draw(st.integers(1, 100)))
    bounds = sorted({clients.start, clients.stop, *data.draw(st.lists(st.sampled_from(clients), max_size=20))})
    blocks = [range(*pair) for pair in itertools.pairwise(bounds)]
    handed: list[tuple[range, PhaseResult]] = []
    sink, waiting, running = sink_of(clients, handed), list(blocks), []
    while waiting or running:
        if waiting and (not running or data.draw(st.booleans())):
            running.append(waiting.pop(0))
            continue
        block = running.pop(data.draw(st.integers(0, len(running) - 1)))
        sink.feed(block.start, values(block))
        ahead = [one.start for one in running] + [one.start for one in waiting[:1]]
        sink.reached(min(ahead, default=clients.stop))
    parts = [part for part, _ in handed]
    assert [part.start for part in parts] == [clients.start, *(part.stop for part in parts)][: len(parts)]
    assert not parts or parts[-1].stop < clients.stop, "the last contribution is the answer"
    assert await merged(clients, sink, handed) == whole(clients)


async def test_threads_that_add_blocks_side_by_side_hand_in_each_client_once() -> None:
    clients, handed = range(200), list[tuple[range, PhaseResult]]()
    sink, lock = sink_of(clients, handed), threading.Lock()
    next_client, working = 0, set[int]()

    def work() -> None:
        nonlocal next_client
        while True:
            with lock:
                start = next_client
                if start >= clients.stop:
                    return
                next_client = min(start + 1 + start % 3, clients.stop)
                block = range(start, next_client)
                working.add(start)
            sink.feed(block.start, values(block))
            with lock:
                working.remove(start)
                reached = min(working, default=next_client)
            sink.reached(reached)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handed
    assert await merged(clients, sink, handed) == whole(clients)


async def test_nothing_is_handed_in_behind_a_client_that_failed() -> None:
    clients, handed = range(16), list[tuple[range, PhaseResult]]()
    sink = sink_of(clients, handed)
    sink.feed(0, values(range(4)))
    sink.reached(4)
    sink.feed(8, values(range(8, 12)))  # 4 to 7 have failed
    sink.reached(12)
    assert [part for part, _ in handed] == [range(4)]
    sink.feed(4, values(range(4, 8)))
    sink.feed(12, values(range(12, 16)))
    assert await merged(clients, sink, handed) == whole(clients)


async def test_nothing_is_handed_in_before_its_time_or_while_the_last_waits_to_be_sent() -> None:
    handed: list[tuple[range, PhaseResult]] = []
    hand_in = HandIn(lambda part, result: handed.append((part, result)), 60.0)
    early = HandInSink(PHASE, states(), range(16), hand_in)
    early.feed(0, values(range(8)))
    early.reached(8)
    busy = HandInSink(PHASE, states(), range(16), HandIn(hand_in.take, 0.0, lambda: False))
    busy.feed(0, values(range(8)))
    busy.reached(8)
    assert not handed


async def test_an_error_of_handing_in_is_raised_at_the_end() -> None:
    def take(clients: range, result: PhaseResult) -> None:
        raise OSError("disk full")

    sink = HandInSink(PHASE, states(), range(16), HandIn(take, 0.0))
    sink.feed(0, values(range(8)))
    sink.reached(8)
    sink.feed(8, values(range(8, 16)))
    sink.reached(16)
    with pytest.raises(OSError, match="disk full"):
        sink.finish()


async def test_a_block_beyond_a_gap_is_not_taken_for_what_is_missing() -> None:
    handed: list[tuple[range, PhaseResult]] = []
    sink = sink_of(range(32), handed)
    sink.feed(0, values(range(4)))
    sink.feed(8, values(range(8, 16)))
    sink.reached(16)  # as nobody should say
    assert not handed
    sink.feed(4, values(range(4, 8)))
    sink.reached(16)
    assert [part for part, _ in handed] == [range(16)]
    sink.feed(16, values(range(16, 32)))
    assert await merged(range(32), sink, handed) == whole(range(32))


async def test_a_worker_leaves_what_it_has_not_begun_and_the_rest_has_its_bits() -> None:
    handed: list[tuple[range, PhaseResult]] = []
    sink = sink_of(range(64), handed)
    assert sink.claim(8) == 8
    sink.feed(0, values(range(8)))
    sink.reached(8)
    assert sink.claim(12) == 12
    assert await sink.leave(math.inf) == Headway(12, 8)
    assert sink.claim(20) == 12, "nothing more begins"
    sink.feed(8, values(range(8, 12)))
    sink.reached(12)
    last, _ = contribution = sink.finish()
    assert last.stop == 12
    rest = sink_of(range(12, 64), [])
    rest.feed(12, values(range(12, 64)))
    contributions = Contributions(_Engine(), PHASE, ARGUMENTS, range(64))  # type: ignore[arg-type]
    for part, result in [*handed, contribution, rest.finish()]:
        contributions.add(part, result)
    folded = await contributions.folded()
    assert shown([state.result() for state in folded.states], folded.columns) == whole(range(64))


async def test_a_worker_that_has_handed_in_all_that_it_has_begun_ends_with_nothing() -> None:
    handed: list[tuple[range, PhaseResult]] = []
    sink = sink_of(range(64), handed)
    sink.claim(8)
    sink.feed(0, values(range(8)))
    sink.reached(8)
    assert [part for part, _ in handed] == [range(8)]
    assert await sink.leave(math.inf) == Headway(8, 8)
    last, result = sink.finish()
    assert (last, [len(column) for column in result.columns]) == (range(8, 8), [0] * len(PHASE.held))


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
async def test_a_worker_that_is_asked_at_no_rate_keeps_all(rate: float) -> None:
    sink = sink_of(range(64), [])
    assert await sink.leave(rate) == Headway(64, 0)


@pytest.mark.parametrize(
    ("left", "running", "own", "rate", "kept"),
    [
        (range(0, 100), 1, 10.0, 10.0, 56),  # half, at a multiple of a power of two
        (range(0, 100), 1, 10.0, 30.0, 32),
        (range(0, 100), 1, 10.0, math.inf, 0),
        (range(0, 100), 1, 10000.0, 10000.0, 100),  # it would save ten milliseconds
        (range(90, 100), 1, 1.0, 10.0, 90),  # it would begin the first of these too late
        (range(99, 100), 1, 1.0, 0.01, 100),
        (range(0, 96), 32, 40.0, 480.0, 0),
    ],
)
def test_both_workers_end_at_about_the_same_time(left: range, running: int, own: float, rate: float, kept: int) -> None:
    assert kept_until(left, running, own, rate) == kept


async def test_what_could_not_be_handed_in_whole_goes_back_to_its_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[tuple[range, PhaseResult]] = []
    sink = sink_of(range(32), handed)
    sink.feed(0, values(range(16)))
    with monkeypatch.context() as patched:
        patched.setattr(sink.states[2], "take", lambda clients, without: None)  # another thread is combining its nodes
        sink.reached(16)
    assert not handed
    sink.feed(16, values(range(16, 32)))
    assert await merged(range(32), sink, handed) == whole(range(32))


async def test_blocks_that_were_left_to_others_do_not_begin() -> None:
    ran: list[int] = []
    leaves: list[Leave] = []
    loop = asyncio.get_running_loop()

    @fedstack.python_computation(np.int32, np.int32)
    def runs(client):
        ran.append(int(client))
        if client == 3:
            asyncio.run_coroutine_threadsafe(leaves[0](math.inf), loop).result(20)
        return client

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total(clients):
        return fl.federated_sum(fl.federated_map(runs, clients))

    clients = range(10_000)
    executor = FederatingExecutor(SequenceExecutor(LeafExecutor(max_concurrent_clients=1)), len(clients))
    hand_in = HandIn(lambda part, result: None, 60.0, begun=leaves.append)
    inputs = [ScalarColumn(np.arange(10_000, dtype=np.int32))]
    last, _ = await executor.phases.run_in_parts(phase_of(total), inputs, [FoldArgument([], [])], clients, hand_in)
    executor.close()
    assert 3 < last.stop < 10_000
    assert ran == list(range(last.stop))


@pytest.mark.parametrize(
    "accumulator", [b"text", (np.float64(1), np.int64(2)), ((b"a",), np.zeros(3)), np.float32(1)], ids=type
)
async def test_accumulators_of_any_kind_are_handed_in(accumulator: object) -> None:
    state = AggregateState(accumulator, lambda total, value, client: total, lambda left, right: left)
    fold = attrs.evolve(PHASE.folds[0], uri="federated_aggregate", results=(0,))
    handed: list[tuple[range, PhaseResult]] = []
    hand_in = HandIn(lambda part, result: handed.append((part, result)), 0.0)
    sink = HandInSink(attrs.evolve(PHASE, folds=(fold,), held=()), [state], range(3, 40), hand_in)
    sink.feed(3, [ListColumn([accumulator] * 21)])
    sink.reached(24)
    sink.feed(24, [ListColumn([accumulator] * 16)])
    sink.finish()
    assert handed
