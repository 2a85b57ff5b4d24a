"""Workers that stand still while they have scheduled calls."""

import asyncio
import logging

import numpy as np
import pytest
from programs import third

from fedstack.service.coordinator import AsyncClusterCoordinator
from fedstack.testing import SimulatedCluster


@pytest.mark.parametrize("was_used", [True, False])
@pytest.mark.parametrize("resumes", [True, False])
def test_a_worker_that_stands_still_is_named_long_before_it_is_lost(
    resumes: bool, was_used: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def program(cluster: SimulatedCluster) -> None:
        async with AsyncClusterCoordinator(cluster.stubs()) as coordinator:
            for number in range(40 if was_used else 1):
                await coordinator.schedule(third, [np.float32(number)])
            await coordinator.join(60)
            await asyncio.sleep(10)
            silent = cluster.workers[0]
            silent.stall()
            values = [await coordinator.schedule(third, [np.float32(number)]) for number in range(40)]
            began = cluster.time
            await asyncio.sleep(1.9)
            assert not caplog.records
            await asyncio.sleep(0.2)
            assert f"{silent.address} has not answered for 2 s; it receives no further calls" in caplog.text
            assert sum(value.done() for value in values) >= 32  # all but those that it had been given
            if resumes:
                silent.resume()
                await coordinator.join(3)
                assert cluster.time - began < 8
            assert await coordinator.fetch(values) == [np.float32(number) / 3 for number in range(40)]

    with caplog.at_level(logging.WARNING, logger="fedstack.service.coordinator"):
        SimulatedCluster(2).run(program)


def test_a_worker_that_only_takes_long_is_not_called_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def program(cluster: SimulatedCluster) -> None:
        async with AsyncClusterCoordinator(cluster.stubs()) as coordinator:
            await coordinator.schedule(third, [np.float32(1)])
            await coordinator.join(60)
            cluster.workers[0].stall()
            await coordinator.schedule(third, [np.float32(1)])
            await asyncio.sleep(1.0)
            cluster.workers[0].resume()
            await coordinator.join(60)
            await asyncio.sleep(10)

    with caplog.at_level(logging.WARNING, logger="fedstack.service.coordinator"):
        SimulatedCluster(1).run(program)
    assert not caplog.records
