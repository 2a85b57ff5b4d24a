"""A stub of any service: typed calls, parcels, and an eye on whether the peer is alive. Nothing here runs anything."""

import asyncio

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, StringValue

from fedstack.errors import DeadlineExceededError, InvalidValueError, WorkerUnavailableError
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.methods import DownloadMethod, ExchangeMethod, Service, UnaryMethod, UploadMethod
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.frames import Heartbeat
from fedstack.transport.wire.parcels import Parcel

NAME = "fedstack.test.Names"


class NameService(Service):
    """Counts and repeats names."""

    def __init__(self):
        self.held = asyncio.Event()

    @property
    def methods(self):
        kinds = {
            "Count": UnaryMethod(self.count),
            "Hold": UnaryMethod(self.hold),
            "Stammer": UnaryMethod(self.stammer),
            "Put": UploadMethod(self.put),
            "Get": DownloadMethod(self.get),
            "Swap": ExchangeMethod(self.swap),
        }
        return {NAME: kinds}

    async def count(self, content):
        return Int64Value(value=len(StringValue.FromString(content).value)).SerializeToString()

    async def hold(self, content):
        await self.held.wait()
        return content

    async def stammer(self, content):
        return b"\xff\xff"

    async def put(self, incoming):
        buffer = bytearray(Int64Value.FromString(await incoming.header()).value)
        await incoming.read_into([memoryview(buffer)])
        return BytesValue(value=bytes(buffer)).SerializeToString()

    async def get(self, content):
        yield Heartbeat(done=1)
        await self.held.wait()
        size = Int64Value.FromString(content).value
        yield Parcel(content, [memoryview(bytes(size))])

    async def swap(self, incoming):
        content = BytesValue.FromString(await self.put(incoming)).value
        yield Parcel(Int64Value(value=len(content)).SerializeToString(), [memoryview(content[::-1])])


class NameStub(ServiceStub):
    """As long as a stub of another service needs to be."""

    _PEER = "the name server"

    async def count(self, name):
        return (await self.call(f"/{NAME}/Count", StringValue(value=name), Int64Value)).value

    async def hold(self):
        return await self.call_while_alive(f"/{NAME}/Hold", StringValue(value="held"), StringValue)

    async def put(self, content):
        size = Int64Value(value=len(content))
        return (await self.upload(f"/{NAME}/Put", size, [memoryview(content)], BytesValue)).value

    def get(self, size, heartbeat_seconds, on_heartbeat=lambda beat: None):
        return self.download(f"/{NAME}/Get", Int64Value(value=size), heartbeat_seconds, on_heartbeat)

    def swap(self, content):
        return self.exchange(f"/{NAME}/Swap", Int64Value(value=len(content)), [memoryview(content)], 1.0)


class AskedConnection(InMemoryConnection):
    """A connection whose peer can be asked whether it is alive, until it says nothing."""

    error = None
    alive = True

    def __init__(self, service, address):
        super().__init__(service, address)
        self.asked = 0
        self.asked_often = asyncio.Event()

    async def check_alive(self, seconds):
        self.asked += 1
        if self.asked == 3 or not self.alive:
            self.asked_often.set()
        if self.error is not None:
            raise self.error
        return self.alive


@pytest.fixture
async def service():
    return NameService()


@pytest.fixture
async def connection(service):
    return AskedConnection(service, "names:1")


@pytest.fixture
async def stub(connection):
    return NameStub(connection, control_seconds=0.01)


async def received(answer):
    async with answer as incoming:
        buffer = bytearray(Int64Value.FromString(await incoming.header()).value)
        await incoming.read_into([memoryview(buffer)])
        return bytes(buffer)


async def test_calls_of_every_kind_are_typed(stub, service):
    service.held.set()
    beats = []
    assert await stub.count("abc") == 3
    assert await stub.put(b"abc") == b"abc"
    assert await received(stub.get(3, 1.0, beats.append)) == bytes(3)
    assert await received(stub.swap(b"abc")) == b"cba"
    assert beats == [Heartbeat(done=1)]
    assert repr(stub) == "<NameStub of names:1>"


async def test_an_answer_that_is_something_else_names_the_peer_and_the_method(stub):
    with pytest.raises(InvalidValueError, match=r"Expected a StringValue from names:1 in response to /fedstack.test"):
        await stub.call(f"/{NAME}/Stammer", StringValue(), StringValue)


async def test_a_call_goes_on_while_the_peer_is_alive(stub, service, connection):
    holding = asyncio.ensure_future(stub.hold())
    await connection.asked_often.wait()
    service.held.set()
    assert (await holding).value == "held"


async def test_a_call_of_a_peer_that_says_nothing_any_more_fails(stub, connection):
    connection.error = DeadlineExceededError("nothing was said")
    with pytest.raises(DeadlineExceededError, match="nothing was said"):
        await stub.hold()


async def test_a_peer_that_cannot_be_asked_is_asked_once(stub, service, connection):
    connection.alive = False
    holding = asyncio.ensure_future(stub.hold())
    await connection.asked_often.wait()
    await asyncio.sleep(0.05)  # it would be asked again
    service.held.set()
    await holding
    assert connection.asked == 1


async def test_a_peer_that_is_silent_in_a_stream_is_not_waited_out(stub):
    with pytest.raises(
        DeadlineExceededError, match="the name server at names:1 sent no message or heartbeat within 0.4"
    ):
        await received(stub.get(3, 0.0))


@pytest.mark.parametrize(("comes_back", "is_gone"), [(True, False), (False, True)])
async def test_a_peer_is_gone_when_its_connection_says_so_for_good(stub, connection, comes_back, is_gone):
    assert (stub.loss(), stub.is_gone) == (None, False)
    loss = WorkerUnavailableError("it has ended")
    loss.comes_back = comes_back
    connection.loss = lambda: loss
    assert (stub.loss(), stub.is_gone) == (loss, is_gone)


async def test_closing_waits_for_goodbyes_and_closes_the_connection(stub):
    said = []

    async def goodbye():
        await asyncio.sleep(0)
        said.append(await stub.count("goodbye"))

    stub.before_closing(asyncio.ensure_future(goodbye()))
    await stub.close()
    assert said == [7]
    assert not await stub.connection.look(1.0)
