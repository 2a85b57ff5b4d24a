"""A client of any release: `python release_client.py TARGET` does what clients do, and checks what comes back.

It uses only what all releases have. It writes the release that it is, `at the door` when the worker is to be killed,
and `done` at the end; what goes wrong is an exception.
"""

import asyncio
import collections
import socket
import sys
import threading
import time

import federated_language as fl
import numpy as np
from release_leaves import MODEL, refuse_two, train, wait_at_door

import fedstack
from fedstack.errors import LeafError, WorkerUnavailableError
from fedstack.executors import RemoteExecutor
from fedstack.executors.stacks.remote_factory import make_stubs

WALL = 60.0
INTS = fl.FederatedType(np.int32, fl.CLIENTS)
# The sizes at which something else happens: a segment of its own, a frame, several of them.
SIZES = [0, 1, 1 << 10, (16 << 10) - 4, 16 << 10, 64 << 10, (1 << 20) - 4, 1 << 20, (1 << 20) + 4, 5 << 20]
# Longer than it takes until a worker says that a call goes on.
SLOW_SECONDS = 1.5


def values():
    for size in SIZES:
        count = size // 4
        yield np.arange(count, dtype=np.float32), fl.TensorType(np.float32, [count])
    pair = fl.StructWithPythonType([("a", np.int64), ("b", fl.TensorType(np.float64, [5000]))], collections.OrderedDict)
    yield collections.OrderedDict(a=3, b=np.arange(5000.0)), pair
    yield b"\xff\0", np.str_
    yield [np.full(3000, n, np.float64) for n in range(3)], fl.FederatedType((np.float64, [3000]), fl.CLIENTS)
    yield [1, 2, 3], INTS
    yield [[1, 2], [3], []], fl.FederatedType(fl.SequenceType(np.int32), fl.CLIENTS)


def same(found, sent):
    if isinstance(sent, dict):
        return all(same(getattr(found, name), member) for name, member in sent.items())
    if isinstance(sent, list):
        return len(found) == len(sent) and all(map(same, found, sent))
    return np.array_equal(found, sent)


async def check_values(target):
    (stub,) = make_stubs([target], None)
    executor = RemoteExecutor(stub)
    executor.set_cardinalities({fl.CLIENTS: 3})

    async def there_and_back(value, type_spec):
        held = await executor.create_value(value, type_spec)
        for _ in range(2):
            assert same(await held.compute(), value), type_spec

    try:
        for value, type_spec in values():
            await there_and_back(value, type_spec)
        await asyncio.gather(*(there_and_back(value, type_spec) for value, type_spec in values()))
        model = await executor.create_value(np.zeros(MODEL.shape, np.float32), MODEL)
        step = await executor.create_value(np.float32(2), np.float32)
        function = await executor.create_value(train)
        trained = await executor.create_call(function, await executor.create_struct([model, step]))
        assert same(await trained.compute(), np.full(MODEL.shape, 2, np.float32))
    finally:
        executor.close()
        await stub_closed(stub)


async def stub_closed(stub):
    from fedstack.transport.peers.io_loop import io_loop

    await io_loop.run(stub.close())


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(np.float32, fl.CLIENTS))
def round_of(model, steps):
    return fl.federated_mean(fl.federated_map(train, (fl.federated_broadcast(model), steps)))


@fl.federated_computation(INTS)
def refused(numbers):
    return fl.federated_sum(fl.federated_map(refuse_two, numbers))


@fl.federated_computation(np.int32, INTS)
def waiting(port, numbers):
    ports = fl.federated_broadcast(fl.federated_value(port, fl.SERVER))
    return fl.federated_sum(fl.federated_map(wait_at_door, (ports, numbers)))


class Door:
    """Where functions of the worker wait.

    Args:
      on_visitor: Called with each connection.
    """

    def __init__(self, on_visitor):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._on_visitor = on_visitor
        threading.Thread(target=self._open, daemon=True).start()

    def _open(self):
        while True:
            visitor, _ = self._listener.accept()
            self._on_visitor(visitor)


def keep_for_a_while(visitor):
    time.sleep(SLOW_SECONDS)
    visitor.close()


def main(target):
    print(fedstack.__file__, flush=True)
    asyncio.run(check_values(target))
    context = fedstack.create_sync_remote_execution_context([target], retry_policy=fedstack.RetryPolicy(attempts=1))
    with fedstack.use_context(context):
        model = np.zeros(MODEL.shape, np.float32)
        for _ in range(3):
            model = round_of(model, [1.0, 2.0, 3.0])
        assert same(model, np.full(MODEL.shape, 6, np.float32))
        try:
            refused([1, 2, 3])
        except LeafError as error:
            assert "not two" in str(error), error
            assert "client 1" in str(error), error
        else:
            raise AssertionError("no error")
        assert waiting(Door(keep_for_a_while).port, [1]) == 1
        guests = []

        def tell(visitor):
            guests.append(visitor)
            print("at the door", flush=True)

        try:
            waiting(Door(tell).port, [1])
        except WorkerUnavailableError:
            print("done", flush=True)
    context.close()


if __name__ == "__main__":
    main(sys.argv[1])
