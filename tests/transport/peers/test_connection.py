"""Calls that go on: they have arrived, whatever happens to the way to their peer."""

from collections.abc import AsyncGenerator

import pytest

from fedstack.errors import WorkerUnavailableError
from fedstack.transport.peers.local_connection import LocalConnection
from fedstack.transport.wire.connection_errors import BROKEN_OFF, NOT_LISTENING, never_arrived
from fedstack.transport.wire.parcels import Parcel, Piece, write_goes_on


class _GoesAway(LocalConnection):
    """Says that a call goes on, and is not there any more when that is asked for."""

    sends_wholes = True

    async def unary_soon(self, path: str, request: bytes, seconds: float, who: str) -> bytes:
        return write_goes_on("a call")

    async def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        error = WorkerUnavailableError("no server is listening")
        error.causes = {self.address: NOT_LISTENING.found}
        raise error
        yield


async def test_a_call_that_goes_on_is_not_taken_for_one_that_never_arrived():
    connection = _GoesAway(dict, "the peer")
    answer = await connection.ask("/a.B/C", Parcel(b"request"), 1.0, "the peer")
    assert not isinstance(answer, Parcel)
    with pytest.raises(WorkerUnavailableError) as raised:
        await anext(answer)
    assert raised.value.causes == {"the peer": BROKEN_OFF.found}
    assert not never_arrived(raised.value)
