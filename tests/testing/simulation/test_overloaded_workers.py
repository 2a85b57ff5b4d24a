"""Workers that stand still as long as they have too much to do."""

import asyncio

from programs import MEANS, call

import fedstack
from fedstack.testing import SimulatedCluster
from fedstack.testing.simulation.simulated_worker import SimulatedWorker

CALLS = 300
MOST_AT_ONCE = 20


async def strain(worker: SimulatedWorker) -> None:
    """Lets a worker stand still while it has more calls than it can serve."""
    while True:
        await asyncio.sleep(0.001)
        if worker.incarnation is not None and len(worker.incarnation._tasks) > MOST_AT_ONCE:
            worker.stall()
        else:
            worker.resume()


def test_callers_who_have_overloaded_a_worker_use_it_one_after_the_other_then() -> None:
    """If each tried again by itself, all would be there again at the same time, until they have tried often enough."""

    async def program(cluster: SimulatedCluster) -> None:
        straining = asyncio.ensure_future(strain(cluster.workers[0]))
        context = fedstack.contexts.AsyncExecutionContext(fedstack.remote_executor_factory(cluster.stubs()))
        try:
            found = await asyncio.gather(*(call(context, 0) for _ in range(CALLS)))
        finally:
            straining.cancel()
            context.close()
        assert found == [MEANS[0]] * CALLS

    cluster = SimulatedCluster(1)
    cluster.run(program)
    phases = sum("RunPhase" in line and line.endswith("sent") for line in cluster.trace.splitlines())
    assert phases < 3 * CALLS
