"""Calls that announce arrays which do not come are ended."""

import asyncio

import federated_language as fl
import grpc
import numpy as np
import pytest

import fedstack
from fedstack.proto import extensions_pb2, methods_pb2
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServerLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.service.rpc.method_service import MethodService
from fedstack.transport.peers.executor_stub import EXTENSIONS
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.method_stub import METHODS
from fedstack.transport.wire.frames import data_frames, header_frame

WALL = 30.0
SIZE = 1 << 20
LARGE = fl.TensorType(np.int8, [SIZE])


def announced() -> extensions_pb2.Packed:
    return extensions_pb2.Packed(raw={"dtype": 6, "dim": [SIZE]})


def evaluate(session: str) -> tuple[str, bytes]:
    typed = extensions_pb2.TypedValue(type=LARGE.to_proto(), value=announced())
    creation = extensions_pb2.Creation(id="large", value=typed)
    request = extensions_pb2.EvaluateRequest(executor={"id": session}, creation=[creation])
    return f"/{EXTENSIONS}/Evaluate", request.SerializeToString()


def update(session: str) -> tuple[str, bytes]:
    typed = extensions_pb2.TypedValue(type=LARGE.to_proto(), value=announced())
    request = extensions_pb2.UpdateRequest(executor={"id": session}, value_ref={"id": "large"}, value=typed)
    return f"/{EXTENSIONS}/Update", request.SerializeToString()


def run_phase(session: str) -> tuple[str, bytes]:
    request = extensions_pb2.PhaseRequest(executor={"id": session}, clients=1)
    identity = fl.federated_computation(lambda x: x, [fl.TensorType(np.int8, [SIZE])])
    request.program.CopyFrom(identity.to_proto())
    request.input.add(type=fl.FederatedType(LARGE, fl.CLIENTS).to_proto()).value.rows.dim.extend([1, SIZE])
    request.input[0].value.rows.dtype = 6
    return f"/{EXTENSIONS}/RunPhase", request.SerializeToString()


def invoke(session: str) -> tuple[str, bytes]:
    return f"/{METHODS}/Invoke", methods_pb2.InvokeRequest(method="size", argument=announced()).SerializeToString()


@pytest.mark.parametrize("some", [0, 3])
@pytest.mark.parametrize("request_of", [evaluate, update, run_phase, invoke])
def test_a_call_whose_announced_arrays_do_not_come_is_ended(request_of, some) -> None:
    methods = MethodService()
    methods.register("size", len, parameter_types=[LARGE], result_type=np.int32)
    services = [ExecutorService(fedstack.local_executor_factory()), methods]
    frames = list(data_frames([memoryview(bytes(SIZE // 2))], SIZE // 8))[:some]

    async def stall(target: str) -> str:
        async with grpc.aio.insecure_channel(target) as channel:
            opens = channel.unary_unary(f"/{EXTENSIONS}/OpenSession")
            opened = await opens(extensions_pb2.OpenSessionRequest(cardinalities=[]).SerializeToString())
            session = extensions_pb2.OpenSessionResponse.FromString(opened).executor.id
            path, header = request_of(session)
            call = channel.stream_stream(path)()
            for frame in [header_frame(header), *frames]:
                await call.write(frame)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return caught.value.details() or ""

    with ServerThread(GrpcServer(services, limits=ServerLimits(header_seconds=0.3))) as server:
        details = io_loop.run_sync(asyncio.wait_for(stall(server.target), WALL), WALL)
    assert "Expected the next message of the call within 0.3 seconds, found none" in details
