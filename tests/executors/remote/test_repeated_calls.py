"""Calls of a session that are made again where they fail on their way."""

import types

import pytest

from fedstack.errors import WorkerUnavailableError
from fedstack.executors.remote.extended_session import ExtendedSession
from fedstack.transport.peers.retry import RetryPolicy
from fedstack.transport.wire.connection_errors import BROKEN_OFF, NOT_LISTENING

QUICK = types.SimpleNamespace(_retry=RetryPolicy(attempts=3, first_pause=0.001))


def call_that_fails(*reasons):
    errors = [reason.error_at("localhost:1") for reason in reasons]
    left = iter(errors)

    async def call():
        error = next(left, None)
        if error is not None:
            raise error
        return "done"

    return call, errors


async def test_a_call_that_fails_on_its_way_is_made_again():
    call, _ = call_that_fails(BROKEN_OFF, NOT_LISTENING)
    assert await ExtendedSession._repeated(QUICK, call) == "done"


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ((NOT_LISTENING, NOT_LISTENING, NOT_LISTENING), 0),
        ((BROKEN_OFF, NOT_LISTENING, NOT_LISTENING), 0),
        ((NOT_LISTENING, BROKEN_OFF, NOT_LISTENING), 1),
        ((BROKEN_OFF, NOT_LISTENING, BROKEN_OFF), 2),
    ],
)
async def test_an_attempt_that_may_have_ended_the_worker_is_told_rather_than_that_it_is_gone(reasons, told):
    call, errors = call_that_fails(*reasons)
    with pytest.raises(WorkerUnavailableError) as raised:
        await ExtendedSession._repeated(QUICK, call)
    assert raised.value is errors[told]
