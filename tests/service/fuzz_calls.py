"""Sends requests of a fuzzer over a connection, and takes note of the answers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from calling import on_loop
from fuzz_requests import Request

from fedstack.errors import FedstackError, LeafError
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.status import Code, code_of

WALL = 30.0
# A bug answers INTERNAL; a service that hangs or dies, the others. UNKNOWN is for what a leaf function raised.
BUGS = {Code.INTERNAL, Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.CANCELLED, Code.DATA_LOSS}


class Fuzzer:
    """Sends requests over one connection, and takes note of the answers."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection
        self.codes: Counter[tuple[str, str]] = Counter()
        self.bugs: list[str] = []
        self.sessions: set[str] = set()

    async def send(self, request: Request) -> list[bytes] | None:
        """Returns the answer, or `None` if the request was refused."""
        try:
            answers = await asyncio.wait_for(self._answers(request), WALL)
        except (FedstackError, asyncio.TimeoutError) as error:
            code = Code.DEADLINE_EXCEEDED if isinstance(error, asyncio.TimeoutError) else code_of(error)
            self.codes[request.method, code.name] += 1
            is_leafs_own = isinstance(error, LeafError) and "a leaf of the fuzzer's own" in str(error)
            if code in BUGS and not is_leafs_own:
                self.bugs.append(f"{code.name}: {error}\n  in answer to {request}")
            return None
        self.codes[request.method, "OK"] += 1
        if request.method == "GetExecutor":
            self.sessions.add(plain.GetExecutorResponse.FromString(answers[0]).executor.id)
        elif request.method == "OpenSession":
            self.sessions.add(extended.OpenSessionResponse.FromString(answers[0]).executor.id)
        return answers

    async def _answers(self, request: Request) -> list[bytes]:
        if request.kind == "unary":
            return [await self._connection.unary(request.path, request.frames[0], WALL)]
        return [answer async for answer in self._connection.stream(request.path, request.frames)]


def over_connection(target: str, work: Callable[[Fuzzer], Awaitable[None]]) -> Fuzzer:
    """Runs a coroutine function of a fuzzer."""

    async def run() -> Fuzzer:
        connection = GrpcConnection(parse_target(target))
        try:
            fuzzer = Fuzzer(connection)
            await work(fuzzer)
            return fuzzer
        finally:
            await connection.close()

    return on_loop(run, 3600)
