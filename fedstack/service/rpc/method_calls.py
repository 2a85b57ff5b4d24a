"""Calls a server's methods on the transport's event loop: connects, lists the methods, sends calls, reads results."""

import asyncio
import functools
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.payload_sizes import is_quick
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.types.language import RetryableError
from fedstack.computations.types.type_structure import is_nothing
from fedstack.computations.values.containers import to_result
from fedstack.errors import (
    ClosedError,
    DeadlineExceededError,
    FedstackError,
    InvalidValueError,
    RemoteError,
    WorkerUnavailableError,
)
from fedstack.executors.concurrency.coroutines import run_at_once
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.executors.remote.remote_transfers import check_size, receive
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.segments import Segment, joined
from fedstack.membership.reaching import answered, reach
from fedstack.proto.methods_pb2 import InvokeRequest, InvokeResponse, MethodDescription
from fedstack.service.rpc.method_table import unknown_method
from fedstack.service.rpc.signatures import Signature, read_signature
from fedstack.transport.peers.executor_stub import Answer
from fedstack.transport.peers.method_stub import MethodStub
from fedstack.transport.wire.connection_errors import never_arrived
from fedstack.transport.wire.parcels import WHOLE_BYTES, Parcel
from fedstack.transport.wire.status import Code

_T = TypeVar("_T")
# How long a client without `wait_for_ready` tries to reach its server.
_READY_SECONDS = 0.25
_LEAST_SECONDS = 0.001


@attrs.frozen(eq=False)
class Arguments:
    """The name of a method and the arguments of a call.

    Attributes:
      name: The name of the method.
      args: Arguments by position.
      kwargs: Arguments by name.
      output_specs: The expected type of the result; `None` if the caller specified no type.
    """

    name: str
    args: Sequence[object]
    kwargs: Mapping[str, object]
    output_specs: object = None


@attrs.frozen(eq=False)
class Prepared:
    """A call whose arguments have been checked and encoded according to a signature.

    Attributes:
      signature: The parameters and the result of the method.
      request: The request message.
      segments: The segments to send with the message.
    """

    signature: Signature
    request: InvokeRequest
    segments: Sequence[Segment]


def prepare(signature: Signature, arguments: Arguments) -> Prepared:
    """Checks and encodes a call for sending. Arrays of up to about 1 MiB in total are copied; larger ones are not.

    Raises:
      TypeMismatchError: If the arguments do not match the parameters, or if the result type is not the expected type.
    """
    if arguments.output_specs is not None:
        signature.check_specs(arguments.output_specs)
    request = InvokeRequest(method=signature.name, signature=signature.digest)
    packer = Packer()
    payload = signature.payload(arguments.args, arguments.kwargs)
    if signature.function.parameter is not None:
        packer.pack(request.argument, payload, signature.function.parameter)
    segments = packer.segments
    if segments and packer.segment_bytes <= WHOLE_BYTES:
        segments = [memoryview(joined(segments))]
    return Prepared(signature, request, segments)


class MethodCalls:
    """Calls the methods of one server.

    Args:
      stub: The stub that sends calls to the server. It is closed together with this object.
      wait_for_ready: Whether calls wait for a server that is unreachable.

    Attributes:
      address: The server's address.
      io: The event loop that runs the calls.
      signatures: The signatures of the known methods, by name.
    """

    def __init__(self, stub: MethodStub, wait_for_ready: bool = True) -> None:
        self.stub = stub
        self._patience = None if wait_for_ready else _READY_SECONDS
        self.address = stub.address
        self.io = stub.io
        self.signatures: Mapping[str, Signature] = {}
        self._closed = False
        self._heartbeat_seconds = 0.0
        self._max_value_bytes = 0
        self._listing: asyncio.Task[None] | None = None
        self._running = 0
        self._idle = asyncio.Event()

    async def learn(self, seconds: float) -> None:
        """Requests the list of the server's methods.

        Raises:
          DeadlineExceededError: If the server does not answer in time.
          WorkerUnavailableError: If the server is still unreachable when the time limit has passed.
        """
        await self._in_time("a list of its methods", self._learn(), seconds, self._deadline(seconds))

    def _deadline(self, seconds: float) -> Deadline:
        """Returns the deadline of a call that starts now. 0 seconds means no limit."""
        return Deadline(seconds or None, self.io.time)

    async def _in_time(self, what: str, work: Coroutine[Any, Any, _T], seconds: float, deadline: Deadline) -> _T:
        """Awaits work until its deadline, `seconds` seconds after its start. 0 seconds means no limit."""
        if not seconds:
            return await work
        try:
            return await deadline.wait(work, lambda: self._late(what, seconds))
        except DeadlineExceededError:  # the server may have enforced its own time limit first
            if not deadline.is_over:
                raise
            raise await self._why_late(what, seconds) from None

    async def call(
        self,
        arguments: Arguments,
        prepared: Prepared | None,
        seconds: float,
        deadline: Deadline | None = None,
        answer: Answer | None = None,
    ) -> object:
        """Calls a method and returns its result.

        Args:
          arguments: The name and the arguments.
          prepared: The same call, prepared for a known signature; `None` if no signature is known.
          seconds: The time limit of the call; 0 for no limit.
          deadline: The deadline of a call that has already been started; by default the time limit starts now.
          answer: The source of the answer, for a call that has already been sent.
        """
        if self._closed:
            raise self._closed_error()
        self._running += 1
        try:
            deadline = deadline or self._deadline(seconds)
            work = self._call(arguments, prepared, deadline, answer)
            return await self._in_time(_answer_of(arguments.name), work, seconds, deadline)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    def call_blocking(self, arguments: Arguments, prepared: Prepared | None, seconds: float) -> object:
        """Calls a method like `call`, and blocks until the result is available. Small calls use the caller's thread.

        The arguments and errors are the same as those of `call`.
        """
        deadline = self._deadline(seconds)
        answer = None
        if prepared is not None and self.stub.is_reached:
            answer = self._asked(prepared, seconds)
            if isinstance(answer, Parcel):  # the answer has arrived in one message
                found = run_at_once(self._result_of(prepared, answer))
                if not isinstance(found, MethodDescription):
                    return found
                answer = None  # the server was restarted and now has a different method under this name
        return self.io.run_sync(self.call(arguments, prepared, seconds, deadline, answer))

    def _asked(self, prepared: Prepared, seconds: float) -> Parcel | Answer | None:
        try:
            request = self._checked(prepared, seconds)
            return self.stub.invoke_blocking(request, prepared.segments, self._heartbeat_seconds, seconds)
        except WorkerUnavailableError:
            self.stub.is_reached = False
            raise
        except DeadlineExceededError:
            if 0.0 < seconds <= self.stub.soon_seconds:  # the caller's own time limit has passed
                raise self._late(_answer_of(prepared.request.method), seconds) from None
            raise

    async def _why_late(self, what: str, seconds: float) -> FedstackError:
        """Returns the error of a call whose time limit has passed: the server is either unreachable or slow."""
        if not self.stub.is_reached:
            try:
                await self.stub.connection.wait_ready(_READY_SECONDS)
            except FedstackError as error:
                if never_arrived(error) or not isinstance(error, RetryableError):
                    return error
        return self._late(what, seconds)

    def _late(self, what: str, seconds: float) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"Expected {what} from {self.address} within {seconds:.3g} seconds, found none; increase the timeout, or "
            "check why the server is busy"
        )

    async def _call(
        self, arguments: Arguments, prepared: Prepared | None, deadline: Deadline, answer: Answer | None
    ) -> object:
        signature = self.signatures.get(arguments.name) if prepared is None else prepared.signature
        if signature is None:
            await self._learn()  # the method may have been registered recently
            signature = self.signatures.get(arguments.name)
        if signature is None:
            raise RemoteError(unknown_method(arguments.name, self.signatures), code=Code.NOT_FOUND.name)
        while True:
            if prepared is None or prepared.signature is not signature:
                prepared = await off_loop(functools.partial(prepare, signature, arguments))
            if not self.stub.is_reached:
                await self._reach()
            try:
                result = await self._result_of(prepared, answer or await self._sent(prepared, deadline))
            except WorkerUnavailableError as error:
                self.stub.is_reached = False
                if not never_arrived(error):
                    raise
                continue
            answer = None
            if not isinstance(result, MethodDescription):
                return result
            # The server was restarted and now has a different method under this name.
            signature = read_signature(result)
            self.signatures = {**self.signatures, arguments.name: signature}

    async def _sent(self, prepared: Prepared, deadline: Deadline) -> Parcel | Answer:
        left = deadline.left
        request = self._checked(prepared, 0.0 if left is None else max(_LEAST_SECONDS, left))
        return await self.stub.invoke(request, prepared.segments, self._heartbeat_seconds)

    def _checked(self, prepared: Prepared, seconds: float) -> InvokeRequest:
        """Checks the size of a call, and returns its message with the timeout. 0 seconds means no limit."""
        request = prepared.request
        if prepared.segments:
            size = sum(map(len, prepared.segments))
            check_size(size, self._max_value_bytes, lambda: f"a call of {request.method!r}", self.stub)
        if seconds:
            request.timeout_seconds = seconds
        return request

    async def _result_of(self, prepared: Prepared, answer: Parcel | Answer) -> object:
        """Returns the result of a call, or the description of the new method if the server's method has changed."""
        result = prepared.signature.function.result
        unpacker = Unpacker(for_results=True)

        def read(header: InvokeResponse) -> object:
            return header.other if header.HasField("other") else unpacker.unpack(header.value, result, "result")

        payload = await receive(answer, InvokeResponse, read, unpacker)
        if isinstance(payload, MethodDescription):
            return payload
        if is_nothing(result):
            return None
        make = functools.partial(to_result, payload, result)
        quick = is_quick(payload, result)
        del payload  # a payload without other references is returned without a copy
        return make() if quick else await off_loop(make)

    async def _learn(self) -> None:
        if self._closed:
            raise self._closed_error()
        if self._listing is None or self._listing.done():
            self._listing = asyncio.ensure_future(self._list())
        listing = self._listing
        try:
            await asyncio.shield(listing)
        except asyncio.CancelledError:
            if listing.cancelled():  # `close` has cancelled the listing, not the task that waits here
                raise self._closed_error() from None
            raise

    async def _list(self) -> None:
        await self._reach()
        response = await answered(self.stub, self.stub.list, self._patience)
        self._heartbeat_seconds, self._max_value_bytes = response.heartbeat_seconds, response.max_value_bytes
        self.signatures = {method.name: read_signature(method) for method in response.method}

    async def _reach(self) -> None:
        """Waits until the server is reachable; with `wait_for_ready`, without a time limit.

        Raises:
          WorkerUnavailableError: If the server is unreachable and calls do not wait for it.
        """
        try:
            await reach(self.stub, self._patience)
        except ClosedError:
            raise self._closed_error() from None

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"The client of {self.address} is closed; create a new client")

    async def end(self) -> None:
        """Waits for running calls, then closes the connection. Used for a client that is no longer referenced."""
        while self._running:
            self._idle.clear()
            await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """Cancels running calls and closes the connection. Idempotent."""
        self._closed = True
        if self._listing is not None:
            self._listing.cancel()
        await self.stub.close()


def _answer_of(name: str) -> str:
    return f"an answer to a call of {name!r}"


def check_method_name(name: object) -> str:
    """Checks that the name of a method to call is a string, and returns it.

    Raises:
      InvalidValueError: If the name is not a string.
    """
    if not isinstance(name, str):
        raise InvalidValueError(f"Expected the name of a method as a string, found {name!r}")
    return name
