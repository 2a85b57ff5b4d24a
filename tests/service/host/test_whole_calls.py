"""Exchanges in one message: the answer of what is quick and small is one too, all others go on and are joined."""

import asyncio

import pytest
from await_until import await_until
from google.protobuf.empty_pb2 import Empty

from fedstack.errors import DeadlineExceededError, InvalidValueError, ResourceLimitError, WorkerUnavailableError
from fedstack.proto.extensions_pb2 import JoinRequest, Whole
from fedstack.service.host.doors import whole_calls
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServerLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.methods import ExchangeMethod, Service
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.frames import Heartbeat
from fedstack.transport.wire.parcels import Incoming, Parcel, incoming_of

WALL = 30.0
NAME = "fedstack.test.Wholes"


async def nothing():
    pass


@pytest.fixture(scope="module", autouse=True)
def started_loop():
    """The thread of the loop stays, as it is for the whole process."""
    io_loop.run_sync(nothing(), WALL)


class Echo(Service):
    """Sends back what it gets, after heartbeats and when it may, if the header says so."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def methods(self):
        return {NAME: {"Echo": ExchangeMethod(self.echo), "Hang": ExchangeMethod(self.hang)}}

    async def hang(self, incoming):
        try:
            await asyncio.Event().wait()
            yield Parcel(b"")
        finally:
            self.ended.set()

    async def echo(self, incoming):
        try:
            what, size = (await incoming.header()).split()
            content = bytearray(int(size))
            await incoming.read_into([memoryview(content)])
            self.begun.set()
            if what in (b"slow", b"wrong"):
                yield Heartbeat(done=1)
                await self.go_on.wait()
                yield Heartbeat(done=2)
            if what == b"hang":
                await asyncio.Event().wait()
            if what in (b"refuse", b"wrong"):
                raise InvalidValueError("Expected another header, found this one")
            yield Parcel(what, [memoryview(content)] * (3 if what == b"large" else 1))
        finally:
            self.ended.set()


@pytest.fixture
def limits():
    return ServerLimits()


@pytest.fixture
def way(limits):
    """A service, its server and a connection."""

    async def new_service():
        return Echo()

    service = run(new_service())
    server = GrpcServer([service], limits=limits)
    with ServerThread(server) as thread:

        async def dial():
            return GrpcConnection(parse_target(thread.target))

        connection = run(dial())
        yield service, server, connection
        run(connection.close())


def run(work):
    return io_loop.run_sync(work, WALL)


async def asked(connection, what, size=10, timeout=WALL, heard=None):
    """Returns what came back, the heartbeats before, and whether it came in one message."""
    beats = []

    def note(beat):
        beats.append(beat)
        if heard is not None:
            heard.set()

    parcel = Parcel(b"%s %d" % (what, size), [memoryview(bytes(size))])
    answer = await connection.ask(f"/{NAME}/Echo", parcel, timeout, "the peer")
    is_whole = isinstance(answer, Parcel)
    incoming = incoming_of(answer) if isinstance(answer, Parcel) else Incoming(answer, on_heartbeat=note)
    header = await incoming.header()
    content = bytearray((3 if header == b"large" else 1) * size)
    await incoming.read_into([memoryview(content)])
    assert not any(content)
    return header, beats, is_whole


def await_counted(server, status, calls):
    """Returns when the server has counted so many calls; an answer may be here before its call is counted."""
    await_until(lambda: list(server.call_counts) == [(f"{NAME}/Echo", status, calls)])


@pytest.mark.parametrize("size", [0, 10, 1 << 20])
def test_what_is_quick_and_small_is_one_message_each_way(way, size):
    service, server, connection = way
    assert run(asked(connection, b"quick", size)) == (b"quick", [], True)
    assert service.ended.is_set()
    await_counted(server, "OK", 1)


def test_a_large_parcel_goes_in_a_stream_and_a_large_answer_comes_in_one(way):
    _, server, connection = way
    assert run(asked(connection, b"quick", 2 << 20)) == (b"quick", [], False)
    assert run(asked(connection, b"large", 1 << 20)) == (b"large", [], False)
    await_counted(server, "OK", 2)


def test_what_takes_long_goes_on_and_its_heartbeats_are_heard(way):
    service, server, connection = way

    async def work():
        asking = asyncio.ensure_future(asked(connection, b"slow"))
        await service.begun.wait()
        service.go_on.set()
        return await asking

    assert run(work()) == (b"slow", [Heartbeat(done=1), Heartbeat(done=2)], False)
    await_counted(server, "OK", 1)


@pytest.mark.parametrize("what", [b"refuse", b"wrong"])
def test_an_error_reaches_the_client_early_or_late(way, what):
    service, server, connection = way
    io_loop.call_soon(service.go_on.set)
    with pytest.raises(InvalidValueError, match="Expected another header"):
        run(asked(connection, what))
    await_counted(server, "INVALID_ARGUMENT", 1)


@pytest.mark.parametrize("what", [b"hang", b"slow"])
def test_a_client_that_is_cancelled_ends_the_method(way, what):
    service, _, connection = way

    async def work():
        heard = asyncio.Event()
        asking = asyncio.ensure_future(asked(connection, what, heard=heard))
        await (heard if what == b"slow" else service.begun).wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        await service.ended.wait()

    run(work())


def test_a_peer_that_says_nothing_is_found_out_in_time(way):
    service, _, connection = way
    with pytest.raises(DeadlineExceededError):
        run(asked(connection, b"hang", timeout=0.2))
    run(service.ended.wait())


def test_silence_is_said_of_the_peer_as_the_stub_calls_it(way):
    service, _, connection = way

    async def work():
        async with ServiceStub(connection).exchange(f"/{NAME}/Hang", Empty(), [], 0.1) as incoming:
            await incoming.header()

    with pytest.raises(DeadlineExceededError, match="the server at .* sent no message or heartbeat within 0.4 seconds"):
        run(work())
    run(service.ended.wait())


def test_a_call_that_nobody_joins_ends_after_a_while(way, monkeypatch):
    monkeypatch.setattr(whole_calls, "_JOIN_SECONDS", 0.05)
    service, server, connection = way

    async def work():
        request = Whole(header=b"slow 0").SerializeToString()
        answer = Whole.FromString(await connection.unary(f"/{NAME}/EchoWhole", request, WALL))
        assert answer.goes_on
        await service.ended.wait()
        await server._router.wait_idle()
        late = connection.download(f"/{NAME}/Join", JoinRequest(call=answer.goes_on).SerializeToString())
        with pytest.raises(WorkerUnavailableError, match="This server runs no call with the given id"):
            await anext(late)

    run(work())


@pytest.mark.parametrize("request_bytes", [Whole(goes_on="x").SerializeToString(), b"\xff"])
def test_what_is_no_parcel_is_refused(way, request_bytes):
    _, _, connection = way
    with pytest.raises(InvalidValueError, match="Expected a (header|request)"):
        run(connection.unary(f"/{NAME}/EchoWhole", request_bytes, WALL))


@pytest.mark.parametrize("limits", [ServerLimits(max_calls=1)])
def test_a_call_that_goes_on_keeps_its_place_and_takes_no_other(way):
    service, server, connection = way

    async def work():
        asking = asyncio.ensure_future(asked(connection, b"slow"))
        await service.begun.wait()
        with pytest.raises(ResourceLimitError):
            await asked(connection, b"quick")
        assert server._router.running == 1
        service.go_on.set()
        assert (await asking)[0] == b"slow"
        await server._router.wait_idle()
        return await asked(connection, b"quick")

    assert run(work())[0] == b"quick"


def test_a_server_that_stops_lets_a_call_that_goes_on_come_to_its_end(way):
    service, server, connection = way

    async def work():
        asking = asyncio.ensure_future(asked(connection, b"slow"))
        await service.begun.wait()
        stopping = asyncio.ensure_future(server.stop(WALL))
        await asyncio.sleep(0)
        service.go_on.set()
        assert (await asking)[0] == b"slow"
        await stopping

    run(work())
