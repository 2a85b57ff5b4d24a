"""The router runs calls of any transport: here of one without a network, whose messages are in lists."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from echo_service import ECHO, EchoService

from fedstack.errors import InvalidValueError
from fedstack.service.host.calls.call_router import CallRouter, Refusal
from fedstack.service.host.calls.call_table import NOBODY
from fedstack.service.host.calls.incoming_call import IncomingCall, Route, end_answers
from fedstack.service.host.limits import ServerLimits
from fedstack.service.host.standard_services import HEALTH_SERVICE, HealthService
from fedstack.transport.peers.methods import Answers
from fedstack.transport.wire.frames import Data, Header
from fedstack.transport.wire.parcels import Parcel, Piece
from fedstack.transport.wire.status import Code, error_from_status

PEER = "ipv4:10.0.0.1:50000"
CHECK = f"/{HEALTH_SERVICE}/Check"
ANNOUNCED = b"5"


class HungUp(Exception):
    """What this transport raises when the client is gone."""


class ListedCall(IncomingCall):
    """A call whose messages are in a list: a parcel is its header, then its data. `None` is a client that is gone."""

    disconnected = (HungUp,)

    def __init__(self, route: Route, messages: list[bytes | None]) -> None:
        super().__init__(route, cast("asyncio.Task[object]", asyncio.current_task()), PEER)
        self.messages = messages
        self.sent: list[object] = []
        self.status: tuple[Code, str, bytes | None] | None = None

    async def send_parcels(self, answers: Answers) -> None:
        try:
            async for answer in answers:
                self.sent.append(answer)
        finally:
            await end_answers(answers)

    async def fail(self, code: Code, message: str, details: bytes | None = None) -> None:
        self.status = code, message, details

    async def _read(self) -> bytes | None:
        if not self.messages:
            return None
        message = self.messages.pop(0)
        if message is None:
            raise HungUp
        self.bytes_received += len(message)
        return message

    async def _write(self, message: bytes) -> None:
        self.bytes_sent += len(message)
        self.sent.append(message)

    async def _pieces(self) -> AsyncIterator[Piece]:
        yield Header(await anext(self))
        async for message in self:
            yield Data(memoryview(message))


def router_of(service: EchoService, is_allowed: Callable[[str | None], bool] = lambda token: True) -> CallRouter:
    health = HealthService([ECHO])
    return CallRouter(
        [service],
        is_allowed=is_allowed,
        limits=ServerLimits(),
        caller=lambda peer, token: token or NOBODY,
        background=[health],
        public=[health],
    )


def route_to(router: CallRouter, method: str) -> Route:
    found = router.find(f"/{ECHO}/{method}", None)
    assert isinstance(found, Route)
    return found


async def called(router: CallRouter, method: str, *messages: bytes | None) -> tuple[bytes | None, ListedCall]:
    """Makes a call in a task of its own, and returns its answer and the call."""

    async def work() -> tuple[bytes | None, ListedCall]:
        route = route_to(router, method)
        call = ListedCall(route, list(messages))
        return await router.run(route, call, router.caller(PEER, None)), call

    return await asyncio.create_task(work())


async def test_a_method_of_each_kind_answers_a_call_and_the_call_is_counted() -> None:
    router = router_of(EchoService())
    assert (await called(router, "Unary", b"x"))[0] == b"x"
    assert (await called(router, "Upload", ANNOUNCED, b"abc", b"de"))[0] == b"abcde"
    answer, call = await called(router, "Stream", b"x", b"y")
    assert (answer, call.sent, call.bytes_received, call.bytes_sent) == (None, [b"x", b"y"], 2, 2)
    for method, messages in (("Download", [b"abcde"]), ("Exchange", [ANNOUNCED, b"abcde"])):
        answer, call = await called(router, method, *messages)
        parcel = call.sent[-1]
        assert isinstance(parcel, Parcel)
        assert (answer, parcel.header, bytes(cast("Any", parcel.segments[0]))) == (None, b"5", b"abcde")
    methods = ["Download", "Exchange", "Stream", "Unary", "Upload"]
    assert list(router.counts) == [(f"{ECHO}/{method}", "OK", 1) for method in methods]
    await router.wait_idle()
    assert router.running == 0


@pytest.mark.parametrize(
    ("error", "code"), [(InvalidValueError("Expected another"), Code.INVALID_ARGUMENT), (OSError("x"), Code.INTERNAL)]
)
async def test_an_error_ends_the_call_with_a_status_and_its_details(error: Exception, code: Code) -> None:
    router = router_of(EchoService(lambda: error))
    answer, call = await called(router, "Fail", b"x")
    assert answer is None
    assert call.status is not None
    found, message, details = call.status
    assert found == code
    if code == Code.INVALID_ARGUMENT:
        assert isinstance(error_from_status(found, message, details, PEER), InvalidValueError)
    assert list(router.counts) == [(f"{ECHO}/Fail", code.name, 1)]


async def test_a_client_that_is_gone_is_left_to_the_transport_and_counted_as_cancelled() -> None:
    router = router_of(EchoService())
    with pytest.raises(HungUp):
        await called(router, "Unary", None)
    assert list(router.counts) == [(f"{ECHO}/Unary", "CANCELLED", 1)]
    await router.wait_idle()
    assert router.running == 0


async def test_permission_is_asked_for_before_the_method_is_looked_up_except_for_public_services(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = router_of(EchoService(), lambda token: token == "right")
    for path in (f"/{ECHO}/Unary", "/no.such/Method"):
        for token in (None, "wrong"):
            refusal = router.find(path, token)
            assert isinstance(refusal, Refusal)
            assert (refusal.code, refusal.had_token) == (Code.UNAUTHENTICATED, token is not None)
    assert isinstance(router.find(f"/{ECHO}/Unary", "right"), Route)
    assert isinstance(router.find(CHECK, None), Route)
    router.refuse(Refusal(Code.UNAUTHENTICATED, "", is_logged=True), PEER)
    assert list(router.counts) == [("(other)", "UNAUTHENTICATED", 1)]
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "Refused a call from ipv4:10.0.0.1 with no token"
    ]


async def test_an_unknown_method_is_refused_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    router = router_of(EchoService())
    refusal = router.find(f"/{ECHO}/Other", None)
    assert isinstance(refusal, Refusal)
    assert refusal.code == Code.UNIMPLEMENTED
    assert refusal.message == (
        f"Expected a method of this server, found /{ECHO}/Other; its services are {ECHO}, {HEALTH_SERVICE}"
    )
    router.refuse(refusal, PEER)
    assert list(router.counts) == [("(other)", "UNIMPLEMENTED", 1)]
    assert caplog.records == []


async def test_a_route_of_one_transport_is_found_by_this_transport_only_and_needs_permission() -> None:
    async def answer(request: bytes, call: IncomingCall) -> bytes:
        return request + call.peer.encode()

    router = router_of(EchoService(), lambda token: token == "right")
    own = {"/own/Method": router.unary_route("own/Method", answer)}
    assert router.find("/own/Method", "right", own) is own["/own/Method"]
    for refused in (router.find("/own/Method", "right"), router.find("/own/Method", None, own)):
        assert isinstance(refused, Refusal)


async def test_calls_that_run_when_the_server_ends_can_be_tried_elsewhere() -> None:
    echo = EchoService()
    router = router_of(echo)
    call = asyncio.ensure_future(called(router, "Hold", b"x"))
    await echo.entered.wait()
    assert router.running == 1
    await router.end_calls()
    answer, ended = await call
    late, refused = await called(router, "Unary", b"x")
    assert (answer, late, echo.ended) == (None, None, ["cancelled"])
    for found in (ended, refused):
        assert found.status is not None
        assert found.status[0] == Code.UNAVAILABLE
    await router.wait_idle()
