"""What clients in processes of their own do, before a test does something to them."""

import asyncio
import json
import logging
import os
import signal
import socket
from typing import Any

import federated_language as fl
import numpy as np
from data_functions import slowly
from fault_leaves import FLOATS, mean_visit, mean_wobble, visit

import fedstack
from fedstack.computations.types.language import CLIENTS
from fedstack.executors import RemoteExecutor
from fedstack.service.cluster.server import Server
from fedstack.service.data import Dataset, distribute, from_dataset_id
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.stream.found_connection import FoundConnection
from fedstack.transport.wire.addresses import parse_target


async def open_executor(target: str) -> RemoteExecutor:
    executor = RemoteExecutor(ExecutorStub(FoundConnection(parse_target(target))))
    executor.set_cardinalities({CLIENTS: 0})
    return executor


def tell(lifeline: socket.socket, what: object) -> None:
    lifeline.sendall(json.dumps({"told": what}).encode() + b"\n")


def compute_for_ever(lifeline: socket.socket, target: str, port: int) -> None:
    """Puts values on a worker and waits there for a function that waits at a door."""

    async def work() -> None:
        executor = await open_executor(target)
        held: list[Any] = [await executor.create_value(np.ones(500_000, np.float32), FLOATS) for _ in range(5)]
        function = await executor.create_value(visit)
        pair = fl.StructType([np.int32, np.float32])
        held.append(await executor.create_value((port, 1.0), pair))
        await (await executor.create_call(function, held[-1])).compute()

    asyncio.run(work())


def pause(lifeline: socket.socket, target: str) -> str:
    """Puts a value on a worker; when told to go on, says what has become of it."""

    async def work() -> str:
        executor = await open_executor(target)
        value = await executor.create_value(np.ones(100_000, np.float32), FLOATS)
        tell(lifeline, "there")
        lifeline.recv(1)
        try:
            await value.compute()
        except fedstack.FedstackError as error:
            outcome = type(error).__name__
        else:
            return "still there"
        again = await executor.create_value(np.float32(2), np.float32)
        return f"{outcome}, and then {await again.compute()}"

    return asyncio.run(work())


def messages_logged() -> list[str]:
    """Returns a list to which all warnings and errors that are logged from now on are added."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    return said


def run_one_round(lifeline: socket.socket, target: str, port: int) -> list[object]:
    """Runs a round whose functions wait at a door; says what came of it, and what was logged."""
    said = messages_logged()
    context = fedstack.create_sync_remote_execution_context(target)
    with fedstack.use_context(context):
        return [float(mean_visit([(port, 1.0), (port, 2.0)])), said]


def run_rounds(lifeline: socket.socket, target: str) -> None:
    """Runs rounds until it is killed."""
    context = fedstack.create_sync_remote_execution_context(target)
    with fedstack.use_context(context):
        while os.getppid():
            mean_wobble([0.1, 0.2, 0.3])
            tell(lifeline, "round")


def fork_after_rounds(lifeline: socket.socket, target: str) -> list[Any]:
    """Runs a round on a worker and one here, and forks; says what comes of rounds in the child, and then in itself."""
    numbers = [0.1, 0.2, 0.3]
    remote = fedstack.create_sync_remote_execution_context(target)
    local = fedstack.create_sync_local_execution_context()
    local_async = fedstack.create_async_local_execution_context()

    async def overlapping() -> list[Any]:
        with fedstack.use_context(local_async):
            return await asyncio.gather(*(mean_wobble(numbers) for _ in range(3)))

    def outcomes() -> list[Any]:
        found: list[Any] = []
        made = [remote, fedstack.create_sync_remote_execution_context(target), local]
        for context in made:
            try:
                with fedstack.use_context(context):
                    found.append(float(mean_wobble(numbers)))
            except fedstack.FedstackError as error:
                found.append(f"{type(error).__name__}: {error}")
        made[1].close()
        return [*found, *map(float, asyncio.run(overlapping()))]

    outcomes()
    ours, childs = socket.socketpair()
    if os.fork() == 0:
        try:
            found = outcomes()
            remote.close()
            local.close()
            childs.sendall(json.dumps(found).encode() + b"\n")
        finally:
            os._exit(0)
    childs.close()
    ours.settimeout(20.0)
    with ours, ours.makefile() as answers:
        return [json.loads(answers.readline()), outcomes()]


def consume(
    lifeline: socket.socket,
    target: str,
    stop_at: int = -1,
    dataset_id: str = "",
    cursor_at: int = -1,
    size: int = 6000,
    **options: Any,
) -> dict[str, Any]:
    """Reads a dataset; says when it has had some elements, as with 0 before the first. Ctrl-C ends it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if dataset_id:
        dataset = from_dataset_id("distributed_epoch", target, dataset_id, **options)
    else:
        dataset = Dataset.range(size).map(slowly).apply(distribute("distributed_epoch", target, **options))
    elements = iter(dataset)
    found: list[int] = []
    cursor = b""
    try:
        if stop_at == 0:
            tell(lifeline, "it begins")
        for element in elements:
            found.append(int(element))
            if len(found) == cursor_at:
                cursor = elements.cursor()
            if len(found) == stop_at:
                tell(lifeline, {"found": found, "cursor": cursor.hex()})
    except KeyboardInterrupt:
        return {"interrupted": True}
    return {"found": found, "missing": elements.missing}


def be_interrupted(lifeline: socket.socket, target: str, port: int) -> list[str]:
    """Runs a round whose functions wait at a door, until Ctrl-C ends it; returns what was logged."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said = messages_logged()
    try:
        with fedstack.create_sync_remote_execution_context(target):
            mean_visit([(port, 1.0), (port, 2.0)])
    except KeyboardInterrupt:
        return said
    raise AssertionError("was not interrupted")


def fork_beside_server(lifeline: socket.socket) -> list[str]:
    """Forks inside the block of a server; says what comes of the block's end in the child, and of the server here."""
    with Server({"worker": ["127.0.0.1:0"]}) as server:
        ours, childs = socket.socketpair()
        if os.fork() == 0:
            try:
                server.stop()
                childs.sendall(f"{server!r}\n".encode())
            finally:
                os._exit(0)
        childs.close()
        ours.settimeout(20.0)
        with ours, ours.makefile() as answers:
            child = answers.readline().strip()
        with fedstack.create_sync_remote_execution_context(server.target):
            return [child, f"{server!r}", str(float(mean_wobble([0.1, 0.2, 0.3])))]


def fork_before_rounds(lifeline: socket.socket, target: str) -> list[Any]:
    """Forks before anything is dialled, and runs a round on a worker in the child."""
    ours, childs = socket.socketpair()
    local = fedstack.create_sync_local_execution_context()
    with fedstack.use_context(local):
        found = [float(mean_wobble([0.1, 0.2, 0.3]))]
    if os.fork() == 0:
        try:
            with fedstack.use_context(fedstack.create_sync_remote_execution_context(target)):
                childs.sendall(json.dumps(float(mean_wobble([0.1, 0.2, 0.3]))).encode() + b"\n")
        finally:
            os._exit(0)
    childs.close()
    ours.settimeout(20.0)
    with ours, ours.makefile() as answers:
        return [*found, json.loads(answers.readline())]
