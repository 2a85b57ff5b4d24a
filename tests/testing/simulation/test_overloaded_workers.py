"""Workers that stand still as long as they have too much to do."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from programs import MEANS, call

import fedstack
from fedstack.testing import SimulatedCluster
from fedstack.testing.simulation.simulated_worker import SimulatedWorker

CALLS = 300
MOST_AT_ONCE = 20


def strain(worker: SimulatedWorker) -> None:
    """Lets a worker stand still while it has more calls than it can serve."""
    stream, running = worker.stream, 0

    async def counted(what: str, handle: Any) -> AsyncGenerator[Any, None]:
        nonlocal running
        running += 1
        if running > MOST_AT_ONCE:
            worker.stall()
        try:
            async with contextlib.aclosing(stream(what, handle)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            running -= 1
            if running <= MOST_AT_ONCE:
                worker.resume()

    worker.stream = counted  # type: ignore[method-assign]


def test_callers_who_have_overloaded_a_worker_use_it_one_after_the_other_then() -> None:
    """If each tried again by itself, all would be there again at the same time, until they have tried often enough."""

    async def program(cluster: SimulatedCluster) -> None:
        strain(cluster.workers[0])
        context = fedstack.contexts.AsyncExecutionContext(fedstack.remote_executor_factory(cluster.stubs()))
        try:
            found = await asyncio.gather(*(call(context, 0) for _ in range(CALLS)))
        finally:
            context.close()
        assert found == [MEANS[0]] * CALLS

    cluster = SimulatedCluster(1)
    cluster.run(program)
    phases = sum("RunPhase" in line and line.endswith("sent") for line in cluster.trace.splitlines())
    assert phases < 3 * CALLS
