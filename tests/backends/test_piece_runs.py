"""Series of pieces: how many clients each has, what travels while others run, and which error counts."""

import asyncio
import itertools
import random

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fedstack.backends.piece_runs import ClientPieces, PieceRun, pieces_of_inputs
from fedstack.backends.task_pace import TaskPace
from fedstack.computations.values.columns import ConstantColumn, ListColumn, ScalarColumn, StructColumn
from fedstack.errors import LeafError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.base.hand_ins import END, HandIn, Headway
from fedstack.executors.base.phase_sink import PhaseResult

COST = 0.002


def measured(seconds: float, at_once: int = 1) -> TaskPace:
    pace = TaskPace()
    pace.note(100, 100 * seconds, at_once)
    return pace


class Engine:
    """An engine whose tasks end when the test says so."""

    def __init__(self) -> None:
        self.tasks: dict[range, asyncio.Future[PhaseResult]] = {}

    async def __call__(self, clients: range) -> PhaseResult:
        self.tasks[clients] = asyncio.get_running_loop().create_future()
        return await self.tasks[clients]

    async def ends(self, clients: range, error: Exception | None = None) -> None:
        if error is None:
            self.tasks.pop(clients).set_result(PhaseResult([clients], []))
        else:
            self.tasks.pop(clients).set_exception(error)
        await settled()


def series(engine: Engine, pace: TaskPace, clients: range, hand_in: HandIn) -> PieceRun:
    async def run(some: range, _: HandIn) -> tuple[range, PhaseResult]:
        return some, await engine(some)

    return PieceRun(run, ClientPieces(lambda left: pace.clients_per_task(len(left), COST)), clients, hand_in)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("pace", "left", "clients"),
    [
        (TaskPace(), 1000, 8),  # nothing is known
        (TaskPace(), 15, 15),
        (measured(0.001), 1000, 100),  # a tenth of a second
        (measured(0.001), 199, 199),  # two tasks would be too short
        (measured(10.0), 40, 4),
        (measured(0.01, at_once=32), 1000, 128),  # fewer clients would not run side by side
        (measured(1e-9), 10**6, 10**6),
    ],
)
def test_a_task_takes_fifty_times_as_long_as_it_costs(pace: TaskPace, left: int, clients: int) -> None:
    assert pace.clients_per_task(left, COST) == clients


def test_a_large_result_makes_tasks_longer() -> None:
    pace = measured(0.1)
    pace.result_bytes = 10**8
    assert 100 < pace.clients_per_task(10**4, COST) < 103


async def test_two_tasks_are_queued_and_all_but_the_last_are_handed_in() -> None:
    engine, handed, reached = Engine(), list[range](), list[int]()
    hand_in = HandIn(lambda clients, _: handed.append(clients), 0.5, reached=reached.append)
    running = asyncio.ensure_future(series(engine, measured(0.025), range(3, 15), hand_in).run())
    await settled()
    assert list(engine.tasks) == [range(3, 7), range(7, 11)]
    await engine.ends(range(7, 11))
    assert (handed, reached) == ([range(7, 11)], [7, 11, 15])
    await engine.ends(range(11, 15))
    await engine.ends(range(3, 7))
    assert (await running)[0] == range(3, 7)
    assert handed == [range(7, 11), range(11, 15)]


async def test_clients_whose_tasks_are_not_queued_can_be_left_to_others() -> None:
    engine, leaves = Engine(), []
    hand_in = HandIn(lambda *_: None, 0.5, begun=leaves.append)
    running = asyncio.ensure_future(series(engine, measured(0.025), range(40), hand_in).run())
    await settled()
    assert await leaves[0](float("inf")) == Headway(8, 0)
    await engine.ends(range(4))
    await engine.ends(range(4, 8))
    assert (await running)[0] == range(4, 8)
    assert not engine.tasks


async def test_the_error_of_the_first_client_counts_whichever_task_fails_first() -> None:
    engine = Engine()
    running = asyncio.ensure_future(series(engine, measured(0.025), range(40), HandIn(print, 0.5)).run())
    await settled()
    await engine.ends(range(4, 8), LeafError("at client 5"))
    assert not running.done()
    await engine.ends(range(4), LeafError("at client 2"))
    with pytest.raises(LeafError, match="at client 2"):
        await running


async def test_a_loss_ends_the_series_at_once() -> None:
    engine, handed = Engine(), list[range]()
    hand_in = HandIn(lambda clients, _: handed.append(clients), 0.5)
    running = asyncio.ensure_future(series(engine, measured(0.025), range(40), hand_in).run())
    await settled()
    await engine.ends(range(4))
    await engine.ends(range(8, 12), WorkerUnavailableError("lost"))
    with pytest.raises(WorkerUnavailableError, match="lost"):
        await running
    assert handed == [range(4)]
    assert engine.tasks[range(4, 8)].cancelled()


@hypothesis.given(
    clients=st.integers(1, 100),
    seconds=st.floats(1e-3, 1.0),
    seed=st.integers(0, 2**32),
    leaves_at=st.integers(0, 10),
)
async def test_every_client_is_in_one_task_unless_it_is_left_to_others(clients, seconds, seed, leaves_at) -> None:
    order = random.Random(seed)
    engine, handed, leaves = Engine(), list[range](), []
    hand_in = HandIn(lambda part, _: handed.append(part), 0.5, begun=leaves.append)
    running = asyncio.ensure_future(series(engine, measured(seconds), range(clients), hand_in).run())
    stop = clients
    for step in itertools.count():
        await settled()
        if running.done():
            break
        if step == leaves_at:
            stop = (await leaves[0](order.choice([0.0, 1.0, 1e6, float("inf")]))).stop
        await engine.ends(order.choice(list(engine.tasks)))
    done = sorted(client for part in [*handed, (await running)[0]] for client in part)
    assert done == list(range(stop))


def arrays(clients: int, megabytes: float) -> ListColumn:
    return ListColumn([np.zeros(int(megabytes * 2**20), np.int8)] * clients)


@pytest.mark.parametrize(
    ("column", "threads", "sizes"),
    [
        (arrays(7, 4), 4, None),  # small together
        (ScalarColumn(np.zeros(10**6)), 4, None),
        (arrays(50, 4), 4, [8, 8, 8, 8, 8, 8, 2]),  # at most 32 MB
        (arrays(20, 40), 4, [1] * 20),
        (arrays(400, 0.5), 4, [32] * 12 + [16]),  # at least 16 MB
        (arrays(400, 0.5), None, [64] * 6 + [16]),  # enough clients for all threads
        (StructColumn([arrays(50, 3), arrays(50, 1)], 50), 4, [8, 8, 8, 8, 8, 8, 2]),
    ],
)
def test_large_inputs_travel_in_pieces(column, threads, sizes) -> None:
    clients = len(column)
    found = pieces_of_inputs([column], clients, threads)
    assert (found is None) is (sizes is None)
    if found is not None:
        divided, left = [], range(clients)
        while left:
            divided.append(found.size(left))
            left = left[divided[-1] :]
        assert divided == sizes
        assert found.most * divided[0] >= (threads or 32) + 2 * divided[0]


def test_pieces_are_large_if_all_clients_share_a_large_value() -> None:
    model = ConstantColumn(np.zeros(100 << 20, np.int8), 50)
    assert pieces_of_inputs([arrays(50, 4), model], 50, 4) is None
    assert pieces_of_inputs([arrays(500, 4), model], 500, 4).size(range(500)) == 128


def test_pieces_begin_and_end_where_nodes_of_the_tree_do() -> None:
    found = pieces_of_inputs([arrays(50, 4)], 50, 4)
    assert [found.size(range(start, 63)) for start in (13, 16, 24, 56)] == [3, 8, 8, 7]


class Worker:
    """A worker whose pieces go on when the test says so."""

    def __init__(self, most: int = 3) -> None:
        self.pieces: dict[range, tuple[HandIn, asyncio.Future]] = {}
        self.handed: list[range] = []
        self.leaves: list = []
        self.answers: dict[range, Headway | None] = {}
        self.asked: list[tuple[range, float]] = []
        pieces = ClientPieces(lambda left: min(4, len(left)), most, in_turn=True)
        hand_in = HandIn(lambda clients, _: self.handed.append(clients), 0.5, begun=self.leaves.append)
        self.running = asyncio.ensure_future(PieceRun(self._run, pieces, range(16), hand_in).run())

    async def _run(self, clients: range, hand_in: HandIn) -> tuple[range, PhaseResult]:
        self.pieces[clients] = hand_in, asyncio.get_running_loop().create_future()

        async def leave(rate: float) -> Headway | None:
            self.asked.append((clients, rate))
            return self.answers.get(clients)

        hand_in.begun(leave)
        return await self.pieces[clients][1]

    async def sent(self, clients: range) -> None:
        self.pieces[clients][0].sent()
        await settled()

    async def ends(self, clients: range, done: range | None = None) -> None:
        self.pieces.pop(clients)[1].set_result((done or clients, PhaseResult([], [])))
        await settled()

    async def fails(self, clients: range, error: Exception) -> None:
        self.pieces.pop(clients)[1].set_exception(error)
        await settled()


async def test_inputs_travel_one_piece_after_the_other() -> None:
    worker = Worker(most=3)
    await settled()
    assert list(worker.pieces) == [range(4)]
    await worker.sent(range(4))
    assert list(worker.pieces) == [range(4), range(4, 8)]
    await worker.sent(range(4, 8))
    await worker.sent(range(8, 12))
    assert list(worker.pieces) == [range(4), range(4, 8), range(8, 12)]
    ids = [hand_in.call_id for hand_in, _ in worker.pieces.values()]
    assert [hand_in.after for hand_in, _ in worker.pieces.values()] == ["", *ids[:2]]
    for clients in (range(4), range(4, 8), range(8, 12)):
        await worker.ends(clients)
    await worker.ends(range(12, 16))
    assert (await worker.running)[0] == range(12, 16)
    assert worker.handed == [range(4), range(4, 8), range(8, 12)]


async def test_clients_of_the_last_piece_are_left_to_others_once_no_other_piece_waits() -> None:
    worker = Worker(most=4)
    for clients in (range(4), range(4, 8), range(8, 12), range(12, 16)):
        await settled()
        await worker.sent(clients)
    worker.answers[range(12, 16)] = Headway(13, 0)
    assert await worker.leaves[0](1e6) == Headway(13, 0)
    assert worker.asked == [(range(12, 16), 1e6)]
    for clients in (range(4), range(4, 8), range(8, 12)):
        await worker.ends(clients)
    await worker.ends(range(12, 16), done=range(12, 13))
    assert (await worker.running)[0] == range(12, 13)


async def test_all_pieces_are_asked_to_end_and_no_other_one_begins() -> None:
    worker = Worker(most=3)
    await settled()
    await worker.sent(range(4))
    worker.answers = {range(4): Headway(4, 0), range(4, 8): Headway(8, 0)}
    assert await worker.leaves[0](END) == Headway(8, 0)
    assert worker.asked == [(range(4), END), (range(4, 8), END)]
    await worker.ends(range(4))
    await worker.ends(range(4, 8))
    assert (await worker.running)[0] == range(4, 8)
    assert worker.handed == [range(4)]


async def test_a_piece_that_cannot_end_early_says_so() -> None:
    worker = Worker()
    await settled()
    assert await worker.leaves[0](END) is None
    worker.running.cancel()
    await asyncio.wait([worker.running])


async def test_a_piece_that_a_busy_worker_refuses_runs_later() -> None:
    worker = Worker(most=3)
    await settled()
    await worker.sent(range(4))
    await worker.fails(range(4, 8), ResourceLimitError("one call at a time"))
    assert list(worker.pieces) == [range(4)]
    for clients in (range(4), range(4, 8), range(8, 12)):
        await worker.sent(clients)
        assert list(worker.pieces) == [clients]
        await worker.ends(clients)
    await worker.ends(range(12, 16))
    assert (await worker.running)[0] == range(12, 16)


async def test_a_piece_that_is_refused_alone_fails() -> None:
    worker = Worker()
    await settled()
    await worker.fails(range(4), ResourceLimitError("too large"))
    with pytest.raises(ResourceLimitError, match="too large"):
        await worker.running
