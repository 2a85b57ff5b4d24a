"""Workers in this process that only sleep: what is left of a phase is what it costs where it is driven."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedstack._version import __version__
from fedstack.computations.codec.packing import Packer
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import TensorType
from fedstack.errors import WorkerUnavailableError
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.folds.aggregations import FoldArguments
from fedstack.executors.folds.tree_fold import Partial, aligned_blocks
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as messages
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, EXTENSIONS, PROTOCOL, process_digest
from fedstack.transport.peers.methods import ExchangeMethod, Method, Service, UnaryMethod
from fedstack.transport.wire.parcels import Incoming, Parcel

_SCALAR = TensorType(np.float32)


def _blocks(clients: range) -> list[Partial]:
    """Returns the partial sums of clients that yield one each."""
    return [Partial(level, place, np.float32(1 << level), False) for level, place in aligned_blocks(clients)]


class SleepingRunner(PhaseRunner):
    """Runs a phase with one sum of scalars by sleeping.

    Args:
      seconds: For how long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        await asyncio.sleep(self._seconds)
        return PhaseResult([[_blocks(clients)]], [])


class SleepingService(Service):
    """A worker's executor service that sleeps, and answers phases that have one sum of scalars.

    An answer is made once for each request, so that later ones cost next to nothing.

    Args:
      seconds: For how long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answers: dict[bytes, Parcel] = {}

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        return {
            EXTENSIONS: {
                "Handshake": UnaryMethod(self._handshake),
                "OpenSession": UnaryMethod(self._open_session),
                "RenewLease": UnaryMethod(_nothing),
                "RunPhase": ExchangeMethod(self._run_phase),
            },
            EXECUTOR_GROUP: {"Dispose": UnaryMethod(_nothing), "DisposeExecutor": UnaryMethod(_nothing)},
        }

    async def _handshake(self, content: bytes) -> bytes:
        request = messages.HandshakeRequest.FromString(content)
        await asyncio.sleep(self._seconds / 10)
        return messages.HandshakeResponse(
            protocol=PROTOCOL,
            version=__version__,
            same_process=request.process_digest == process_digest(request.nonce),
            phases=True,
            max_value_bytes=1 << 40,
            heartbeat_seconds=60.0,
        ).SerializeToString()

    async def _open_session(self, content: bytes) -> bytes:
        executor = plain.ExecutorId(id="1")
        return messages.OpenSessionResponse(executor=executor, lease_seconds=60.0).SerializeToString()

    async def _run_phase(self, incoming: Incoming) -> AsyncIterator[Parcel]:
        header = await incoming.header()
        await asyncio.sleep(self._seconds)
        answer = self._answers.get(header)
        if answer is None:
            answer = self._answers[header] = _answer(messages.PhaseRequest.FromString(header))
        yield answer


async def _nothing(_: bytes) -> bytes:
    return b""


def _answer(request: messages.PhaseRequest) -> Parcel:
    response, packer = messages.PhaseResponse(), Packer()
    tree = response.fold.add().tree.add()
    for partial in _blocks(range(request.first_client, request.first_client + request.clients)):
        message = tree.partial.add(level=partial.level, position=partial.position)
        packer.pack(message.value, partial.value, _SCALAR)
    return Parcel(response.SerializeToString(), packer.segments)


class LosableConnection(InMemoryConnection):
    """A way to a service that can be cut."""

    is_cut = False

    def _find(self, path: str) -> Method:
        self._check()
        return super()._find(path)

    async def wait_ready(self, seconds: float) -> None:
        self._check()

    async def exchange(self, path: str, parcel: Parcel) -> Any:
        async for piece in super().exchange(path, parcel):
            self._check()
            yield piece

    def _check(self) -> None:
        if self.is_cut:
            raise WorkerUnavailableError(f"The way to {self.address} is cut")
