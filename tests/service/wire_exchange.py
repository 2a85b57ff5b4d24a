"""Records what really goes over the wire while a mean over some clients is computed, in each of the ways."""

import importlib.util
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import federated_language as fl
import numpy as np
from wire_text import ShortIds, message_text

import fedstack
from fedstack.computations.codec.arrays import dtype_of_number
from fedstack.contexts import SyncExecutionContext
from fedstack.executors import RemoteExecutor
from fedstack.proto import executor_pb2, extensions_pb2
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.methods import UnaryMethod
from fedstack.transport.wire.frames import Header
from fedstack.transport.wire.parcels import Parcel, Piece

RAW_CLIENT = Path(__file__).resolve().parents[2] / "examples" / "raw_client.py"
READINGS = [1.5, 2.5, 3.5, 4.5, 5.5]


def raw_client() -> ModuleType:
    """Imports the example."""
    spec = importlib.util.spec_from_file_location("raw_client", RAW_CLIENT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain_exchange() -> str:
    """Returns the messages of examples/raw_client.py and the answers to them."""
    service = ExecutorService(fedstack.local_executor_factory())
    methods = service.methods[EXECUTOR_GROUP]
    lines: list[str] = []

    def call(method: str, **fields: Any) -> Any:
        request = getattr(executor_pb2, f"{method}Request")(**fields)
        found = methods[method]
        assert isinstance(found, UnaryMethod)
        content = io_loop.run_sync(found.handle(request.SerializeToString()))
        response = getattr(executor_pb2, f"{method}Response").FromString(content)
        for message in (request, response):
            lines.extend([f"# {message.DESCRIPTOR.name}", *message_text(message).splitlines(), ""])
        return response

    assert raw_client().mean(call, READINGS) == 3.5
    io_loop.run_sync(service.close())
    return ShortIds(["e1", "v1", "v2", "v3"]).shorten("\n".join(lines).strip())


class RecordingConnection(InMemoryConnection):
    """A connection that remembers the headers of what creates and computes values, and of phases."""

    def __init__(self, service: ExecutorService) -> None:
        super().__init__(service)
        self.evaluated: list[tuple[extensions_pb2.EvaluateRequest, extensions_pb2.EvaluateResponse]] = []
        self.phases: list[tuple[extensions_pb2.PhaseRequest, extensions_pb2.PhaseResponse]] = []

    async def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        received: list[Piece] = []
        async for piece in super().exchange(path, parcel):
            received.append(piece)
            yield piece
        if path.endswith("/Evaluate"):
            request = extensions_pb2.EvaluateRequest.FromString(parcel.header)
            self.evaluated.append((request, extensions_pb2.EvaluateResponse.FromString(_header(received))))
        else:
            request = extensions_pb2.PhaseRequest.FromString(parcel.header)
            self.phases.append((request, extensions_pb2.PhaseResponse.FromString(_header(received))))


def _header(pieces: Iterable[Piece]) -> bytes:
    return next(piece.content for piece in pieces if isinstance(piece, Header))


def evaluate_exchange() -> str:
    """Returns how our own client creates a function and a value, calls the one with the other, and computes that."""
    service = ExecutorService(fedstack.local_executor_factory())
    connection = RecordingConnection(service)
    executor = RemoteExecutor(ExecutorStub(connection))
    executor.set_cardinalities({fl.CLIENTS: 2})

    async def work() -> object:
        function = await executor.create_value(raw_client().mean_function().computation)
        argument = await executor.create_value([1.5, 2.5], fl.FederatedType(np.float32, fl.CLIENTS))
        return await (await executor.create_call(function, argument)).compute()

    assert io_loop.run_sync(work()) == 2.0
    executor.close()
    io_loop.run_sync(service.close())
    lines: list[str] = []
    for exchange in connection.evaluated:
        for message in exchange:
            lines += [f"# {message.DESCRIPTOR.name}", *message_text(message).splitlines(), ""]
    return ShortIds(["e1", "v1", "v2", "v3"]).shorten("\n".join(lines).strip())


Phases = list[tuple[extensions_pb2.PhaseRequest, extensions_pb2.PhaseResponse]]


def record_phases(computation: Any, *arguments: object, workers: int = 1) -> tuple[object, list[Phases]]:
    """Runs a computation over services in this process; returns its result, and what each of them got and gave."""
    service = ExecutorService(fedstack.local_executor_factory())
    connections = [RecordingConnection(service) for _ in range(workers)]
    context = SyncExecutionContext(fedstack.remote_executor_factory(list(map(ExecutorStub, connections))))
    with fedstack.use_context(context):
        result = computation(*arguments)
    context.close()
    io_loop.run_sync(service.close())
    return result, [connection.phases for connection in connections]


def phase_exchange() -> str:
    """Returns the phases that make a mean over two workers."""

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def mean(readings: Any) -> Any:
        return fl.federated_mean(readings)

    result, workers = record_phases(mean, list(map(np.float32, READINGS)), workers=2)
    assert result == 3.5
    lines: list[str] = []
    for number, [(request, response)] in enumerate(workers, start=1):
        if number > 1:  # it is the same again
            request.ClearField("program")
        lines.append(f"# PhaseRequest to worker {number}{', whose program is the same' if number > 1 else ''}")
        lines += [*message_text(request).splitlines(), ""]
        lines += [f"# PhaseResponse of worker {number}", *message_text(response).splitlines(), ""]
    return ShortIds(["e1", "p1", "e2", "p2"]).shorten("\n".join(lines).strip())


def fold_dtype_table() -> Iterator[str]:
    """Yields the rows of a table of the dtypes in which means are folded."""
    kinds = (np.int32, np.float16, np.float32, np.float64)
    yield f"| mean of | no weights | {' | '.join(f'{np.dtype(kind)} weights' for kind in kinds)} |"
    yield f"| --- |{' --- |' * (1 + len(kinds))}"
    for dtype in (np.float16, np.float32, np.float64, np.complex64, np.complex128):
        found = [_fold_dtypes(dtype, weight)[0] for weight in (None, *kinds)]
        yield f"| {np.dtype(dtype)} | {' | '.join(found)} |"
    yield f"| the weights themselves | | {' | '.join(_fold_dtypes(np.float32, kind)[1] for kind in kinds)} |"


def _fold_dtypes(dtype: Any, weight: Any) -> tuple[str, str]:
    """Returns the dtypes of the partial results of a mean, and of its weights."""
    value_type = fl.FederatedType(dtype, fl.CLIENTS)
    if weight is None:
        mean = fl.federated_computation(lambda values: fl.federated_mean(values), value_type)
        _, [[(_, response)]] = record_phases(mean, [dtype(1)])
    else:
        weight_type = fl.FederatedType(weight, fl.CLIENTS)
        mean = fl.federated_computation(lambda v, w: fl.federated_mean(v, weight=w), value_type, weight_type)
        _, [[(_, response)]] = record_phases(mean, [dtype(1)], [weight(1)])
    [fold] = response.fold
    trees = [fold.tree[0], fold.weights]
    names = [str(dtype_of_number(tree.partial[0].value.array.dtype)) if tree.partial else "" for tree in trees]
    return names[0], names[1]
