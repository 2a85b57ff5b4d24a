"""A stream that a server ends while it is being sent fails with what the server says of it."""

import asyncio

import pytest
from calling import on_loop

from fedstack.errors import StaleSessionError
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.methods import ExchangeMethod, Service, UploadMethod
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.parcels import Parcel

NAME = "fedstack.test.Hasty"
PARCEL = Parcel(b"", [memoryview(bytes(60_000))], chunk_bytes=1000)


class HastyService(Service):
    """Refuses every stream after its first message."""

    @property
    def methods(self):
        return {NAME: {"Upload": UploadMethod(self.upload), "Exchange": ExchangeMethod(self.exchange)}}

    async def upload(self, incoming):
        await incoming.header()
        raise StaleSessionError("there is no such session")

    async def exchange(self, incoming):
        await incoming.header()
        raise StaleSessionError("there is no such session")
        yield Parcel(b"")


@pytest.mark.long
@pytest.mark.parametrize("method", ["Upload", "Exchange"])
def test_the_status_of_the_server_is_the_one_that_counts(method):
    """gRPC makes up one of its own in a race, as an internal error that nobody would try again."""
    refused = []

    async def one(connection):
        try:
            if method == "Upload":
                await connection.upload(f"/{NAME}/Upload", PARCEL, 20.0)
            else:
                async for _ in connection.exchange(f"/{NAME}/Exchange", PARCEL):
                    pass
        except StaleSessionError:
            refused.append(connection)

    async def work():
        connection = GrpcConnection(parse_target(server.target))
        for _ in range(30):
            await asyncio.gather(*(one(connection) for _ in range(10)))
        await connection.close()

    with ServerThread(GrpcServer([HastyService()])) as server:
        on_loop(work)
    assert len(refused) == 300
