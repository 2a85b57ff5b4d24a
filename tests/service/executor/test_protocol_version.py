"""Peers that speak another version of the protocol are refused by both numbers, on either side."""

import functools
from collections.abc import Iterator

import pytest
from google.protobuf.message import Message

import fedstack
from fedstack.errors import ProtocolVersionError
from fedstack.proto import data_service_pb2, extensions_pb2, methods_pb2
from fedstack.service import rpc
from fedstack.service.data.dispatcher.dispatch_service import DispatchService
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.service.rpc.method_service import MethodService
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.dispatcher_stub import DISPATCHER, DispatcherStub
from fedstack.transport.peers.executor_stub import EXTENSIONS, PROTOCOL
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.method_stub import METHODS
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.addresses import parse_target

WALL = 30.0
ANOTHER = PROTOCOL + 6


@pytest.fixture
def target() -> Iterator[str]:
    services = [ExecutorService(fedstack.local_executor_factory()), MethodService(), DispatchService()]
    with ServerThread(GrpcServer(services)) as server:
        yield server.target


async def call(target: str, path: str, request: Message, response: type[Message]) -> Message:
    stub = ServiceStub(GrpcConnection(parse_target(target)))
    try:
        return await stub.call(path, request, response)
    finally:
        await stub.close()


WORKER = data_service_pb2.DataWorkerAddress(worker=b"w", address="somewhere:1")
DESCRIBE = functools.partial(data_service_pb2.DescribeDatasetRequest, may_lack=True)
ATTEND = functools.partial(data_service_pb2.AttendRequest, worker=WORKER)
HANDSHAKES = [
    (f"/{EXTENSIONS}/Handshake", extensions_pb2.HandshakeRequest, extensions_pb2.HandshakeResponse),
    (f"/{METHODS}/List", methods_pb2.ListMethodsRequest, methods_pb2.ListMethodsResponse),
    (f"/{DISPATCHER}/Describe", DESCRIBE, data_service_pb2.DatasetDescription),
    (f"/{DISPATCHER}/Attend", ATTEND, data_service_pb2.AttendResponse),
]


@pytest.mark.parametrize(
    ("path", "request_type", "response_type"), HANDSHAKES, ids=["handshake", "list", "describe", "attend"]
)
@pytest.mark.parametrize("protocol", [0, ANOTHER])
def test_a_server_refuses_a_client_of_another_version(target, path, request_type, response_type, protocol) -> None:
    request = request_type(protocol=protocol, version="9.9")
    with pytest.raises(
        ProtocolVersionError, match=f"Expected protocol {PROTOCOL} .*found protocol {protocol} of .*9.9"
    ):
        io_loop.run_sync(call(target, path, request, response_type), WALL)
    response = io_loop.run_sync(call(target, path, request_type(protocol=PROTOCOL), response_type), WALL)
    assert response.protocol == PROTOCOL


class OtherMethods(MethodService):
    """Says that it speaks another version of the protocol."""

    async def list(self, request: methods_pb2.ListMethodsRequest) -> methods_pb2.ListMethodsResponse:
        return methods_pb2.ListMethodsResponse(protocol=ANOTHER, version="9.9")


def test_a_client_refuses_methods_of_a_server_of_another_version() -> None:
    found = f"Expected protocol {PROTOCOL} .*found protocol {ANOTHER} of .*9.9"
    with ServerThread(GrpcServer([OtherMethods()])) as server:
        with pytest.raises(ProtocolVersionError, match=found):
            rpc.Client.create("grpc", server.target, timeout_in_ms=int(1000 * WALL))


class OtherDispatcher(DispatchService):
    """Says that it speaks another version of the protocol."""

    async def describe(self, request: data_service_pb2.DescribeDatasetRequest) -> data_service_pb2.DatasetDescription:
        return data_service_pb2.DatasetDescription(protocol=ANOTHER, version="9.9")

    async def attend(self, request: data_service_pb2.AttendRequest) -> data_service_pb2.AttendResponse:
        return data_service_pb2.AttendResponse(protocol=ANOTHER, version="9.9")


async def tell(target: str, name: str, request: Message) -> None:
    stub = DispatcherStub(GrpcConnection(parse_target(target)))
    try:
        await getattr(stub, name)(request)
    finally:
        await stub.close()


@pytest.mark.parametrize(("name", "request_type"), [("describe", DESCRIBE), ("attend", ATTEND)])
def test_consumers_and_data_workers_refuse_a_dispatcher_of_another_version(name, request_type) -> None:
    found = f"Expected protocol {PROTOCOL} .*found protocol {ANOTHER} of .*9.9"
    with ServerThread(GrpcServer([OtherDispatcher()])) as server:
        with pytest.raises(ProtocolVersionError, match=found):
            io_loop.run_sync(tell(server.target, name, request_type()), WALL)
