"""Starts what tests of faults share, before the check for leaks looks."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator

import grpc.aio
import pytest
from fault_stacks import WALL, Background, Door
from processes import Fleet, ProcessForker
from tcp_proxy import Proxies

from fedstack.membership import waits
from fedstack.transport.peers.io_loop import io_loop

if not hasattr(os, "fork"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def grpc_is_up() -> Iterator[None]:
    """Keeps a channel whose connection broke: gRPC's threads and pollers, of which it then has more, stay with it.

    Its connection is its own: a later server may have the same port, and who dials that one need not wait.
    """

    async def start(target: str) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/no/Method")(b"", timeout=WALL)
        return channel

    with socket.create_server(("127.0.0.1", 0)) as listener:
        started = Background(lambda: io_loop.run_sync(start(f"127.0.0.1:{listener.getsockname()[1]}")))
        connection, _ = listener.accept()
        connection.close()
        channel = started.result()
    yield
    io_loop.run_sync(channel.close())


@pytest.fixture(autouse=True)
def rounds_begin_with_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a worker that a busy machine keeps from answering within a second has no part in the first round."""
    monkeypatch.setattr(waits, "_SETTLE_SECONDS", WALL)


@pytest.fixture(scope="session")
def forker() -> Iterator[ProcessForker]:
    made = ProcessForker()
    yield made
    made.close()


@pytest.fixture
def fleet(forker: ProcessForker) -> Iterator[Fleet]:
    made = Fleet(forker)
    yield made
    made.close()


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    made = Proxies()
    yield made
    made.close()


@pytest.fixture
def doors() -> Iterator[Callable[[], Door]]:
    """Makes further doors."""
    with contextlib.ExitStack() as stack:

        def make() -> Door:
            made = Door()
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def door(doors: Callable[[], Door]) -> Door:
    return doors()
