"""The methods of a server in tests."""

import threading
import time
from collections.abc import Callable

import federated_language as fl
import numpy as np

import fedstack
from fedstack.proto.methods_pb2 import MethodCalls
from fedstack.service import rpc
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.method_stub import MethodStub
from fedstack.transport.stream.found_connection import FoundConnection
from fedstack.transport.wire.addresses import parse_target

WALL = 30.0


@fedstack.python_computation({"x": np.int32, "y": np.int32})
def add(x, y):
    """Adds two numbers."""
    return x + y


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def mean(values):
    return fl.federated_mean(values)


class Gate:
    """Holds calls until it is opened."""

    def __init__(self) -> None:
        self.come = threading.Semaphore(0)
        self.opened = threading.Event()
        self.left = 0

    def wait(self, number):
        self.come.release()
        assert self.opened.wait(WALL)
        self.left += 1
        return number


def register_all(server: rpc.Server, gate: Gate) -> None:
    server.register("add", add)
    server.register("add_inline", add, inline=True)
    server.register("mean", mean)
    server.register("wait", gate.wait, parameter_types=[np.int32], result_type=np.int32)
    server.register("double", lambda a: a * 2, parameter_types=[(np.float32, [None])])
    server.register("nothing", lambda: None, parameter_types=[], result_type=())
    server.register("odd name", lambda: 7, result_type=np.int32)
    server.register("fail", fail, parameter_types=[np.int32], result_type=np.int32)


def fail(number):
    raise ValueError(f"{number} is no good")


def within_wall(condition: Callable[[], bool], what: str) -> None:
    due = time.monotonic() + WALL
    while not condition():
        assert time.monotonic() < due, what
        time.sleep(0.01)


def calls_of(server: rpc.Server) -> dict[str, MethodCalls]:
    """Returns what a server tells of the calls of its methods."""

    async def ask() -> dict[str, MethodCalls]:
        stub = MethodStub(FoundConnection(parse_target(server.target)))
        try:
            response = await stub.list(with_calls=True)
        finally:
            await stub.close()
        return {method.name: method.calls for method in response.method}

    return io_loop.run_sync(ask(), WALL)
