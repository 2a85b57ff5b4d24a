"""Runs exchanges whose request was sent in one gRPC message.

If the method quickly yields a single small answer, the server also returns the answer in one message. If the method
yields a heartbeat, a large answer or several answers, the server returns an id instead. The method then continues after
the call has ended, and the client joins it by a second call with the id. Both calls count as one call, and occupy one
slot. If the client does not join within a time limit, the method ends as if it had been cancelled.
"""

import asyncio
import uuid
from collections.abc import Callable

import attrs

from fedstack.errors import InvalidValueError, WorkerUnavailableError
from fedstack.proto.extensions_pb2 import JoinRequest
from fedstack.service.host.calls.call_table import Task
from fedstack.service.host.calls.incoming_call import IncomingCall, copied, end_answers
from fedstack.transport.peers.methods import Answers, ExchangeMethod
from fedstack.transport.wire.frames import Heartbeat
from fedstack.transport.wire.parcels import Parcel, fits_whole, incoming_of, read_whole, write_goes_on, write_whole

_JOIN_SECONDS = 10.0


@attrs.frozen(eq=False)
class _KeptCall:
    """A call that continues after its first answer."""

    method: str | None
    begun: float
    first: Heartbeat | Parcel
    answers: Answers
    ended: "asyncio.Future[None]"


class WholeCalls:
    """Runs exchanges whose request was sent in one message, and keeps those that continue after their first answer.

    Args:
      hand_over: Transfers the slot of a call to the task that continues the call.
    """

    def __init__(self, hand_over: Callable[[Task, Task], None]) -> None:
        self._hand_over = hand_over
        self._kept: dict[str, _KeptCall] = {}

    async def answer(self, method: ExchangeMethod, request: bytes, call: IncomingCall) -> bytes:
        """Runs a method, and returns its answer or the id under which it continues."""
        parcel = read_whole(request)
        if not isinstance(parcel, Parcel):
            raise InvalidValueError("Expected a request, found the id of a running call; join that call instead")
        del request
        answers = method.handle(incoming_of(parcel, copied))
        del parcel
        try:
            first = await anext(answers)
            if isinstance(first, Parcel) and first.is_last and fits_whole(first):
                content = write_whole(first)
                del first
                await anext(answers, None)  # runs the method to its end
                return content
        except BaseException:
            await end_answers(answers)
            raise
        kept = _KeptCall(call.method, call.begun, first, answers, asyncio.get_running_loop().create_future())
        name = uuid.uuid4().hex
        self._kept[name] = kept
        self._hand_over(call.task, asyncio.ensure_future(self._keep(name, kept)))
        call.method = None
        return write_goes_on(name)

    async def _keep(self, name: str, kept: _KeptCall) -> None:
        """Waits for the end of a continued call, and ends the call if no client joins it in time."""
        try:
            await asyncio.wait([kept.ended], timeout=_JOIN_SECONDS)
            if name not in self._kept:
                await asyncio.wait([kept.ended])
        finally:
            if self._kept.pop(name, None) is not None:
                await end_answers(kept.answers)

    async def join(self, request: bytes, call: IncomingCall) -> Answers:
        """Yields the remaining answers of a continued call.

        Raises:
          WorkerUnavailableError: If no continued call has the requested id.
        """
        kept = self._kept.pop(JoinRequest.FromString(request).call, None)
        if kept is None:
            raise WorkerUnavailableError(
                "This server runs no call with the given id: the call has ended or was sent to another server; send "
                "the call again"
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
