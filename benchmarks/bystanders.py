"""Keeps a worker busy with what one client sends, and times the longest wait of another one meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import federated_language as fl
import numpy as np

from benchmarks.harness import Effort, Measurement
from fedstack.computations.codec.value_messages import value_to_proto
from fedstack.executors.remote.worker_stubs import make_stubs
from fedstack.proto import executor_pb2 as messages
from fedstack.service.pool.worker_pool import local_worker_pool
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

_MEMBERS = 900
_PAUSE_SECONDS = 0.02


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures the waits beside a flood of small structs, and beside wide structs that are computed."""
    with local_worker_pool(1) as pool:
        (busy,), (bystander,) = make_stubs(pool, None), make_stubs(pool, None)
        executor = io_loop.run_sync(busy.get_executor(messages.GetExecutorRequest())).executor
        floods = effort.pick(3, 500, 500)
        for name, work in (
            (f"beside {floods} structs of {_MEMBERS}", lambda: _flood(busy, executor, floods)),
            ("beside a struct of tensors, doubled", lambda: _wide(busy, executor, effort.pick(4, 15, 15))),
        ):
            yield Measurement(
                f"longest wait {name}", io_loop.run_sync(_longest_wait(bystander, work), 300), None, None, ""
            )
        for stub in (busy, bystander):
            io_loop.run_sync(stub.close())


async def _flood(stub: ExecutorStub, executor: messages.ExecutorId, count: int) -> None:
    struct = fl.StructType([(f"x{i}", np.float32) for i in range(_MEMBERS)])
    value = value_to_proto(tuple(np.float32(i) for i in range(_MEMBERS)), struct)
    request = messages.CreateValueRequest(executor=executor, value=value)
    await asyncio.gather(*(stub.create_value(request) for _ in range(count)), return_exceptions=True)


async def _wide(stub: ExecutorStub, executor: messages.ExecutorId, levels: int) -> None:
    value = value_to_proto(np.int32(1), fl.TensorType(np.int32))
    ref = (await stub.create_value(messages.CreateValueRequest(executor=executor, value=value))).value_ref
    for _ in range(levels):
        element = messages.CreateStructRequest.Element(value_ref=ref)
        request = messages.CreateStructRequest(executor=executor, element=[element, element])
        ref = (await stub.create_struct(request)).value_ref
    await stub.compute(messages.ComputeRequest(executor=executor, value_ref=ref))


async def _longest_wait(bystander: ExecutorStub, work: Callable[[], Awaitable[None]]) -> float:
    """Returns the longest that an answer to a question took while the work was done, in seconds."""
    working = asyncio.ensure_future(work())
    longest = 0.0
    while not working.done():
        begin = time.perf_counter()
        await bystander.get_status()
        longest = max(longest, time.perf_counter() - begin)
        await asyncio.sleep(_PAUSE_SECONDS)
    await working
    return longest
