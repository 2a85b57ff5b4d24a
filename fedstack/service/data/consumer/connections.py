"""Connects to a dispatcher and its workers, and repeats calls to the dispatcher while it is unavailable."""

import functools
import logging
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import attrs

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import Type
from fedstack.errors import CarrierError, FedstackError
from fedstack.membership.reaching import answered
from fedstack.proto.data_service_pb2 import (
    Commit,
    DatasetDescription,
    OpenPassRequest,
    OpenPassResponse,
    ReleasePassRequest,
    SplitRange,
    TakeRequest,
    TakeResponse,
)
from fedstack.service.data.consumer.acknowledgements import Position
from fedstack.service.data.consumer.pass_plan import Take, TakenRange
from fedstack.service.data.reading.readers import Reader, is_here, reader_at
from fedstack.service.host.listening import connect
from fedstack.transport.grpc.channels import Channel
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Transport
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.io_loop import IoLoop, start_apart
from fedstack.transport.wire.addresses import Target


class Connections:
    """The connections to one dispatcher and its workers. They are closed when this object is garbage-collected.

    Args:
      service: The dispatcher's address, or a channel to it.
      credentials: The certificates and the token for calls to the dispatcher and the workers.
      only_local: Whether to use only workers in this process.
      transport: How to reach the dispatcher and the workers: `"stream"`, `"grpc"`, or `"auto"` for streams where they
        can be reached.

    Attributes:
      dispatcher: The stub that calls the dispatcher.

    Raises:
      InvalidValueError: If the address is invalid, or if there is no such transport.
    """

    def __init__(
        self,
        service: str | Target | Channel,
        credentials: ClientCredentials | None = None,
        only_local: bool = False,
        transport: Transport = "auto",
    ) -> None:
        self.dispatcher = DispatcherStub(connect(service, credentials, transport=transport))
        self._transport: Transport = transport
        self._service = service
        self._credentials = credentials
        self._only_local = only_local
        self._readers: dict[str, tuple[bytes, Reader]] = {}
        weakref.finalize(self, _drop, self.dispatcher, self._readers).atexit = False

    @property
    def io(self) -> IoLoop:
        """The event loop that runs all connections."""
        return self.dispatcher.io

    def may_ask(self, worker: bytes, address: str) -> bool:
        """Returns whether this consumer may read from a worker."""
        return not self._only_local or is_here(address, worker)

    def reader(self, worker: bytes, address: str) -> Reader:
        """Returns the reader for a worker. Call it on the loop."""
        known, reader = self._readers.get(address, (b"", None))
        if reader is None or known != worker:
            if reader is not None:  # another worker has taken over the address
                start_apart(reader.close())
            reader = reader_at(address, self._credentials, worker, self.dispatcher.address, self._transport)
            self._readers[address] = worker, reader
        return reader

    def __reduce__(
        self,
    ) -> tuple[Callable[[str | Target, bool, Transport], "Connections"], tuple[str | Target, bool, Transport]]:
        """Supports pickling, because functions may carry a dataset to other processes.

        Raises:
          CarrierError: If the dispatcher was specified as a channel.
        """
        if not isinstance(self._service, (str, Target)):
            raise CarrierError(
                "Expected the address of a dispatcher in a dataset that is sent to another process, found a channel; "
                "pass the address to distribute, or send a function that creates the dataset in the other process"
            )
        return _connected_there, (self._service, self._only_local, self._transport)

    def __repr__(self) -> str:
        return f"<Connections to {self.dispatcher.address} and {len(self._readers)} workers>"


def _connected_there(service: str | Target, only_local: bool, transport: Transport) -> Connections:
    """Connects from the unpickling process, with its server's credentials. Keys and tokens are not pickled."""
    return Connections(service, current_scope().client_credentials, only_local, transport)


def _drop(dispatcher: DispatcherStub, readers: dict[str, tuple[bytes, Reader]]) -> None:
    """Closes the connections of an object that was garbage-collected. Used as a finalizer."""

    async def close() -> None:
        await dispatcher.close()
        for _, reader in readers.values():
            await reader.close()

    dispatcher.io.call_soon(lambda: start_apart(close()))


_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
# How long to try to report the end of a pass to an unavailable dispatcher. After that, the pass's lease expires.
_GOODBYE_SECONDS = 5.0
# The number of requests per lease with which a consumer renews the lease.
_SIGNS_IN_A_LEASE = 3
_LEAST_SECONDS = 0.1


def taken_range(message: SplitRange) -> TakenRange:
    """Converts a range in a message to the form that plans use."""
    return TakenRange(message.id, message.first, message.last, message.whole, message.worker, message.shard)


@attrs.frozen(eq=False)
class Opening:
    """The parameters of a pass.

    Attributes:
      request: The request that opens the pass.
      num_splits: The number of splits of the dataset.
      element: The type of the elements that workers send.
      position: The position to continue from, for a pass that resumes.
      timeout: How long the dispatcher may be unavailable, in seconds.
      ahead: The number of blocks of a range that are requested at a time.
    """

    request: OpenPassRequest
    num_splits: int
    element: Type
    position: Position
    timeout: float
    ahead: int


class PassClient:
    """Calls the dispatcher on behalf of one consumer in one pass. The coroutines run on the stub's loop.

    Args:
      stub: The stub that calls the dispatcher.
      opening: The parameters of the pass.
      register: Registers the dataset with the dispatcher if necessary.

    Attributes:
      commit: The latest commit of the dispatcher that this consumer has received; its number is 0 before the pass has
        begun.
    """

    def __init__(
        self, stub: DispatcherStub, opening: Opening, register: Callable[[], Coroutine[Any, Any, DatasetDescription]]
    ) -> None:
        self.commit = Commit()
        self._stub = stub
        self._opening = opening
        self._register = register
        self._pass = OpenPassResponse()
        self._workers_version = 0

    async def open(self) -> OpenPassResponse:
        """Registers the dataset if necessary, opens the pass, and returns the dispatcher's response."""
        request = self._opening.request
        if not request.HasField("commit"):
            request.commit.CopyFrom((await self._answered(self._register)).commit)
        self._pass = await self._answered(functools.partial(self._stub.open_pass, request))
        self._hear(self._pass.commit)
        if self._pass.is_over:
            _logger.warning(
                "Pass %d of the job %r has ended, because other consumers have read all of its elements; iterate "
                "again for the next pass, or choose another job_name",
                request.repetition,
                request.job_name,
            )
        return self._pass

    @property
    def pass_id(self) -> bytes:
        """The id of the pass; empty before the pass has begun."""
        return self._pass.pass_id

    @property
    def renewal_seconds(self) -> float:
        """The maximum interval between requests to the dispatcher, in seconds."""
        return max(_LEAST_SECONDS, self._pass.lease_seconds / _SIGNS_IN_A_LEASE)

    async def take(self, take: Take) -> TakeResponse:
        """Reports the consumer's progress and requests ranges. The response lists workers only if they have changed."""
        response = await self.tell(take)
        if response.workers_version == self._workers_version:
            response.workers_version = 0
        else:
            self._workers_version = response.workers_version
        return response

    async def tell(self, take: Take) -> TakeResponse:
        """Reports the consumer's progress, and returns the dispatcher's response unchanged."""
        request = TakeRequest(
            commit=self.commit,
            pass_id=self._pass.pass_id,
            consumer=self._opening.request.consumer,
            number=take.number,
            want=take.want,
            wait_seconds=self.renewal_seconds if take.want else 0.0,
            finished=take.finished,
            given_back=take.given_back,
            workers_version=self._workers_version,
            waits=take.waits,
        )
        response = await self._answered(functools.partial(self._stub.take, request))
        self._hear(response.commit)
        return response

    def _hear(self, commit: Commit) -> None:
        if commit.number >= self.commit.number:  # answers may arrive out of order
            self.commit = commit

    async def leave(self, last: Take, may_resume: bool) -> None:
        """Leaves the pass. Never raises.

        Args:
          last: The last request to the dispatcher.
          may_resume: Whether this consumer may return later; the dispatcher then keeps its ranges.
        """
        if not self._pass.pass_id:
            return
        request = ReleasePassRequest(
            commit=self.commit,
            pass_id=self._pass.pass_id,
            consumer=self._opening.request.consumer,
            finished=last.finished,
            given_back=last.given_back,
            may_resume=may_resume,
        )
        try:
            # Failures are not logged as warnings, because a dispatcher is often stopped right after its last consumer.
            await answered(self._stub, functools.partial(self._stub.release, request), _GOODBYE_SECONDS)
        except FedstackError as error:
            _logger.info("Could not report the end of a pass to the dispatcher: %s", error)

    async def _answered(self, ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        return await answered(self._stub, ask, self._opening.timeout)
