"""Series of tasks: how many clients each has, what is handed in, and which error counts."""

import asyncio
import itertools
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from fedstack.backends.task_runs import TaskPace, TaskRun
from fedstack.errors import LeafError, WorkerUnavailableError
from fedstack.executors.base.hand_ins import HandIn, Headway
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


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("pace", "left", "clients"),
    [
        (TaskPace(), 1000, 1000),  # nothing is known
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
    running = asyncio.ensure_future(TaskRun(engine, measured(0.025), range(3, 15), hand_in, COST).run())
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
    running = asyncio.ensure_future(TaskRun(engine, measured(0.025), range(40), hand_in, COST).run())
    await settled()
    assert await leaves[0](float("inf")) == Headway(8, 0)
    await engine.ends(range(4))
    await engine.ends(range(4, 8))
    assert (await running)[0] == range(4, 8)
    assert not engine.tasks


async def test_the_error_of_the_first_client_counts_whichever_task_fails_first() -> None:
    engine = Engine()
    running = asyncio.ensure_future(TaskRun(engine, measured(0.025), range(40), HandIn(print, 0.5), COST).run())
    await settled()
    await engine.ends(range(4, 8), LeafError("at client 5"))
    assert not running.done()
    await engine.ends(range(4), LeafError("at client 2"))
    with pytest.raises(LeafError, match="at client 2"):
        await running


async def test_a_loss_ends_the_series_at_once() -> None:
    engine, handed = Engine(), list[range]()
    hand_in = HandIn(lambda clients, _: handed.append(clients), 0.5)
    running = asyncio.ensure_future(TaskRun(engine, measured(0.025), range(40), hand_in, COST).run())
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
    running = asyncio.ensure_future(TaskRun(engine, measured(seconds), range(clients), hand_in, COST).run())
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
