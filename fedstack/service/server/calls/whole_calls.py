"""Answers exchanges that come in one message: in one message too, if the answer is soon there and small.

What sends a heartbeat first takes long; a large answer, or several, fit into no message. Such a call goes on without
the stream that it came by: its client is given an id, and joins it by another. It is one call all the same, with one
place among those that the server takes; when nobody joins for a while, it ends as if it had been cancelled.
"""

import asyncio
import uuid
from collections.abc import Callable

import attrs

from fedstack.errors import InvalidValueError, WorkerUnavailableError
from fedstack.executors.concurrency.off_loop import LOOP_COPY_BYTES, sized
from fedstack.proto.extensions_pb2 import JoinRequest
from fedstack.service.server.calls.call_stream import CallStream, Task, end_answers
from fedstack.transport.peers.methods import Answers, ExchangeMethod
from fedstack.transport.wire.frames import Heartbeat
from fedstack.transport.wire.parcels import Parcel, incoming_of
from fedstack.transport.wire.wholes import fits_whole, read_whole, write_goes_on, write_whole

_JOIN_SECONDS = 10.0


@attrs.frozen(eq=False)
class _Kept:
    """A call that goes on: what it has said first, and what it says after that."""

    method: str | None
    begun: float
    first: Heartbeat | Parcel
    answers: Answers
    ended: "asyncio.Future[None]"


async def _copied(size: int, work: Callable[[], None]) -> None:
    await sized(size, work, LOOP_COPY_BYTES)


class WholeCalls:
    """The exchanges that came in one message, and those of them that go on.

    Args:
      hand_over: Gives the place of a call to the task that goes on with it.
    """

    def __init__(self, hand_over: Callable[[Task, Task], None]) -> None:
        self._hand_over = hand_over
        self._kept: dict[str, _Kept] = {}

    async def answer(self, method: ExchangeMethod, request: bytes, call: CallStream) -> bytes:
        """Runs a method, and returns its answer, or that it goes on."""
        parcel = read_whole(request)
        if not isinstance(parcel, Parcel):
            raise InvalidValueError("Expected a header in one message, found the id of a call; join it instead")
        del request
        answers = method.handle(incoming_of(parcel, _copied))
        del parcel
        try:
            first = await anext(answers)
            if isinstance(first, Parcel) and first.is_last and fits_whole(first):
                content = write_whole(first)
                del first
                await anext(answers, None)  # what the method does at its end
                return content
        except BaseException:
            await end_answers(answers)
            raise
        kept = _Kept(call.method, call.begun, first, answers, asyncio.get_running_loop().create_future())
        name = uuid.uuid4().hex
        self._kept[name] = kept
        self._hand_over(call.task, asyncio.ensure_future(self._keep(name, kept)))
        call.method = None
        return write_goes_on(name)

    async def _keep(self, name: str, kept: _Kept) -> None:
        """Returns when a call that goes on has ended, and ends one that nobody joins."""
        try:
            await asyncio.wait([kept.ended], timeout=_JOIN_SECONDS)
            if name not in self._kept:
                await asyncio.wait([kept.ended])
        finally:
            if self._kept.pop(name, None) is not None:
                await end_answers(kept.answers)

    async def join(self, request: bytes, call: CallStream) -> Answers:
        """Yields the answers of a call that goes on.

        Raises:
          WorkerUnavailableError: If there is none of that id.
        """
        kept = self._kept.pop(JoinRequest.FromString(request).call, None)
        if kept is None:
            raise WorkerUnavailableError(
                "Expected the id of a call that goes on, found none that this server knows; it has ended, or was made "
                "at another server; make the call again"
            )
        call.method, call.begun = kept.method, kept.begun
        try:
            yield kept.first
            async for answer in kept.answers:
                yield answer
        finally:
            await end_answers(kept.answers)
            kept.ended.set_result(None)

    def __repr__(self) -> str:
        return f"<WholeCalls, {len(self._kept)} wait to be joined>"
