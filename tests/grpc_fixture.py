"""Starts what a process needs for gRPC before the first test does, or the check for leaks would find it."""

from collections.abc import Iterator

import grpc.aio
import pytest

from fedstack.transport.peers.io_loop import io_loop


@pytest.fixture(scope="session", autouse=True)
def grpc_is_up() -> Iterator[None]:
    async def start() -> grpc.aio.Channel:
        # gRPC's threads and pollers are there as long as there is a channel. It is never used.
        return grpc.aio.insecure_channel("unix:/nowhere")

    channel = io_loop.run_sync(start())
    yield
    io_loop.run_sync(channel.close())
