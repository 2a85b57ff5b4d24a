"""Who waits for a single peer, for how long, and what is said of it; on simulated time."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import attrs
import pytest

from fedstack.errors import AuthenticationError, DeadlineExceededError, WorkerUnavailableError
from fedstack.membership.reaching import answered, back, reach
from fedstack.testing.simulation.virtual_loop import VirtualLoop
from fedstack.transport.peers.io_loop import IoLoop

AWAY = WorkerUnavailableError("no server is listening")


@attrs.define
class Peer:
    """A peer, its connection and its stub; it is there from some second on."""

    io: IoLoop
    there_from: float = 0.0
    can_look: bool = True
    error: Exception = AWAY
    is_gone: bool = False
    is_reached: bool | None = None
    who: str = "the worker at home"
    looks: int = 0
    questions: int = 0

    @property
    def connection(self) -> "Peer":
        return self

    @property
    def is_there(self) -> bool:
        return self.io.time() >= self.there_from

    async def look(self, seconds: float) -> bool:
        self.looks += 1
        return self.is_there

    async def wait_ready(self, seconds: float) -> None:
        self.questions += 1
        left = self.there_from - self.io.time()
        if left > 0 and self.can_look:
            left = float("inf")  # it dials again by itself long after
        if left > 0:
            await asyncio.sleep(min(left, seconds))
            if left > seconds:
                raise self.error

    async def ask(self) -> str:
        if not self.is_there:
            raise self.error
        return "an answer"


def run(program: Callable[[Peer], Coroutine[Any, Any, None]], **fields: Any) -> Peer:
    loop = VirtualLoop()
    try:
        peer = Peer(IoLoop(loop), **fields)
        loop.run_until_complete(program(peer))
        return peer
    finally:
        loop.close()


def test_a_peer_that_is_there_is_asked_once() -> None:
    peer = run(reach)
    assert (peer.is_reached, peer.looks, peer.questions) == (True, 0, 1)


@pytest.mark.parametrize("can_look", [True, False])
def test_a_peer_that_comes_back_is_found_a_moment_later(can_look: bool) -> None:
    async def program(peer: Peer) -> None:
        await reach(peer)
        assert 30.0 <= peer.io.time() < 30.4

    peer = run(program, there_from=30.0, can_look=can_look)
    assert peer.is_reached


def test_while_a_peer_is_away_it_is_asked_only_now_and_then_what_is_wrong() -> None:
    peer = run(reach, there_from=30.0)
    assert peer.questions <= 32
    assert peer.looks > 200


@pytest.mark.parametrize("seconds", [0.0, 0.1, 7.0])
def test_one_that_does_not_come_in_time_is_an_error(seconds: float) -> None:
    async def program(peer: Peer) -> None:
        with pytest.raises(WorkerUnavailableError, match="no server is listening"):
            await reach(peer, seconds)
        assert seconds <= peer.io.time() <= seconds + 0.6

    assert run(program, there_from=1e9).is_reached is False


def test_what_waiting_does_not_help_is_raised_at_once() -> None:
    async def program(peer: Peer) -> None:
        with pytest.raises(AuthenticationError):
            await reach(peer)
        peer.error, peer.is_gone = AWAY, True
        with pytest.raises(WorkerUnavailableError):
            await reach(peer)
        assert peer.io.time() < 1.0

    run(program, there_from=1e9, error=AuthenticationError("another token"))


def test_a_caller_that_waits_is_announced_once_and_after_a_moment(caplog: pytest.LogCaptureFixture) -> None:
    async def program(peer: Peer) -> None:
        with pytest.raises(WorkerUnavailableError):
            await reach(peer, 2.0)
        assert not caplog.records
        with pytest.raises(WorkerUnavailableError):
            await reach(peer, 60.0)

    with caplog.at_level(logging.WARNING, logger="fedstack"):
        run(program, there_from=1e9)
    (record,) = caplog.records
    assert record.getMessage() == "Waiting for the worker at home for at most 60 s: no server is listening"


def test_a_call_is_made_again_once_its_peer_is_back() -> None:
    losses: list[Exception] = []

    async def program(peer: Peer) -> None:
        assert await answered(peer, peer.ask, 60.0, losses.append) == "an answer"
        assert 30.0 <= peer.io.time() < 30.4

    run(program, there_from=30.0)
    assert losses == [AWAY]


def test_a_call_that_is_not_answered_in_time_has_the_error_of_the_loss() -> None:
    async def program(peer: Peer) -> None:
        for error in (AWAY, DeadlineExceededError("silent")):
            peer.error = error
            for seconds in (0.0, 3.0):
                with pytest.raises(type(error)):
                    await answered(peer, peer.ask, seconds)
        peer.error = AuthenticationError("another token")
        with pytest.raises(AuthenticationError):
            await answered(peer, peer.ask)

    run(program, there_from=1e9)


def test_a_peer_that_refuses_at_once_is_not_asked_without_pauses() -> None:
    async def program(peer: Peer) -> None:
        asked = 0

        async def ask() -> None:
            nonlocal asked
            asked += 1
            raise AWAY

        with pytest.raises(WorkerUnavailableError):
            await answered(peer, ask, 1.0)
        assert asked <= 21

    run(program)


def test_a_stalled_peer_is_back_once_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def program(peer: Peer) -> None:
        async def ask() -> None:  # connections are accepted all the time
            if peer.io.time() < 60.0:
                raise DeadlineExceededError("no answer")

        await back(peer, ask)
        assert 60.0 <= peer.io.time() < 60.4

    with caplog.at_level(logging.WARNING):
        assert run(program, is_reached=True).is_reached
    assert not caplog.records  # nothing waits for it: the work continues elsewhere


def test_a_peer_that_refuses_the_token_is_never_back() -> None:
    async def program(peer: Peer) -> None:
        async def ask() -> None:
            raise AuthenticationError("wrong token")

        with pytest.raises(AuthenticationError):
            await back(peer, ask)

    run(program)
