"""What the tests of backends have in common."""

import asyncio

import pytest

from fedstack.transport.peers.io_loop import io_loop


@pytest.fixture(scope="session", autouse=True)
def transport_is_up() -> None:
    """Starts the transport's thread before the first test does, or the check for leaks would find it."""
    io_loop.run_sync(asyncio.sleep(0))
