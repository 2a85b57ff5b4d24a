"""Scheduled calls that are cancelled at each step of the loop on their way to a worker."""

import asyncio

import numpy as np
import pytest
from programs import third

from fedstack.service.coordinator import AsyncClusterCoordinator
from fedstack.testing import SimulatedCluster


@pytest.mark.parametrize("steps", range(12))
def test_a_call_that_is_cancelled_on_its_way_is_waited_for_no_longer(steps):
    async def program(cluster):
        coordinator = AsyncClusterCoordinator(cluster.stubs())
        await coordinator.schedule(third, [np.float32(1)])
        await coordinator.join(60)
        values = [await coordinator.schedule(third, [np.float32(number)]) for number in range(40)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for value in values:
            value.cancel()
        await coordinator.join(60)
        coordinator.close()

    SimulatedCluster(2).run(program)
