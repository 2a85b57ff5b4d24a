"""Speaks to a dispatcher and knows its workers, however often either is away."""

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
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.io_loop import IoLoop, start_apart
from fedstack.transport.wire.addresses import Target


class Connections:
    """The ways to one dispatcher and to its workers. They are closed when nothing refers to this any more.

    Args:
      service: The dispatcher's address, or a channel to it.
      credentials: Certificates and the token.
      only_local: Whether only workers in this process are for us.

    Attributes:
      dispatcher: Calls the dispatcher.

    Raises:
      InvalidValueError: If the address is none.
    """

    def __init__(
        self, service: str | Target | Channel, credentials: ClientCredentials | None = None, only_local: bool = False
    ) -> None:
        self.dispatcher = DispatcherStub(connect(service, credentials))
        self._service = service
        self._credentials = credentials
        self._only_local = only_local
        self._readers: dict[str, tuple[bytes, Reader]] = {}
        weakref.finalize(self, _drop, self.dispatcher, self._readers).atexit = False

    @property
    def io(self) -> IoLoop:
        """The loop on which all of them are used."""
        return self.dispatcher.io

    def may_ask(self, worker: bytes, address: str) -> bool:
        """Returns whether a worker is for us."""
        return not self._only_local or is_here(address, worker)

    def reader(self, worker: bytes, address: str) -> Reader:
        """Returns what reads at a worker. Called on the loop."""
        known, reader = self._readers.get(address, (b"", None))
        if reader is None or known != worker:
            if reader is not None:  # another one is at that address now
                start_apart(reader.close())
            reader = reader_at(address, self._credentials, worker, self.dispatcher.address)
            self._readers[address] = worker, reader
        return reader

    def __reduce__(self) -> tuple[Callable[[str | Target, bool], "Connections"], tuple[str | Target, bool]]:
        """Says how to write it: functions take a dataset along to other processes.

        Raises:
          CarrierError: If it is a channel of the user's own.
        """
        if not isinstance(self._service, (str, Target)):
            raise CarrierError(
                "Expected a dispatcher's address in what is sent to another process, found a channel; give distribute "
                "the address, or give a function that makes the dataset there"
            )
        return _connected_there, (self._service, self._only_local)

    def __repr__(self) -> str:
        return f"<Connections to {self.dispatcher.address} and {len(self._readers)} workers>"


def _connected_there(service: str | Target, only_local: bool) -> Connections:
    """Returns the ways from this process. Keys and tokens do not travel: functions dial with what their server has."""
    return Connections(service, current_scope().client_credentials, only_local)


def _drop(dispatcher: DispatcherStub, readers: dict[str, tuple[bytes, Reader]]) -> None:
    """Closes connections that nobody has any more: a finalizer."""

    async def close() -> None:
        await dispatcher.close()
        for _, reader in readers.values():
            await reader.close()

    dispatcher.io.call_soon(lambda: start_apart(close()))


_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
# How long a dispatcher that is away is told that a pass has ended; later it finds out by itself.
_GOODBYE_SECONDS = 5.0
# A consumer shows so often in its lease that it is there.
_SIGNS_IN_A_LEASE = 3
_LEAST_SECONDS = 0.1


def taken_range(message: SplitRange) -> TakenRange:
    """Returns a range as plans have it."""
    return TakenRange(message.id, message.first, message.last, message.whole, message.worker, message.shard)


@attrs.frozen(eq=False)
class Opening:
    """What a pass begins with.

    Attributes:
      request: Says which pass it is.
      num_splits: How many splits the dataset has.
      element: The type of the elements that workers send.
      position: The place to go on from, for one that resumes.
      timeout: How long the dispatcher may be away, in seconds.
      ahead: How many blocks of a range are asked for at a time.
    """

    request: OpenPassRequest
    num_splits: int
    element: Type
    position: Position
    timeout: float
    ahead: int


class PassClient:
    """One consumer in one pass. Its coroutines run on the loop of the stub.

    Args:
      stub: Calls the dispatcher.
      opening: What the pass begins with.
      register: Sees to it that the dispatcher knows the dataset.

    Attributes:
      commit: The dispatcher's latest commit that this has heard of; number 0 before the pass has begun.
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
        """Begins."""
        request = self._opening.request
        if not request.HasField("commit"):
            request.commit.CopyFrom((await self._answered(self._register)).commit)
        self._pass = await self._answered(functools.partial(self._stub.open_pass, request))
        self._hear(self._pass.commit)
        if self._pass.is_over:
            _logger.warning(
                "The pass %d of the job %r is over: other consumers have read all its elements, and there are none "
                "for this one; iterate again for the next pass, or choose another job_name",
                request.repetition,
                request.job_name,
            )
        return self._pass

    @property
    def pass_id(self) -> bytes:
        """Stands for the pass; empty before it has begun."""
        return self._pass.pass_id

    @property
    def renewal_seconds(self) -> float:
        """How long the dispatcher may hear nothing."""
        return max(_LEAST_SECONDS, self._pass.lease_seconds / _SIGNS_IN_A_LEASE)

    async def take(self, take: Take) -> TakeResponse:
        """Says what has been read, and takes more; the answer has workers only if they are others than before."""
        response = await self.tell(take)
        if response.workers_version == self._workers_version:
            response.workers_version = 0
        else:
            self._workers_version = response.workers_version
        return response

    async def tell(self, take: Take) -> TakeResponse:
        """Says what has been read, and returns the answer as it is."""
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
        if commit.number >= self.commit.number:  # answers may come in another order
            self.commit = commit

    async def leave(self, last: Take, may_resume: bool) -> None:
        """Takes part no more. Never raises.

        Args:
          last: What the dispatcher is to hear.
          may_resume: Whether this may come back, and what it has taken is to be kept.
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
            # Whoever stops a dispatcher right after its last consumer need not hear that it is missed.
            await answered(self._stub, functools.partial(self._stub.release, request), _GOODBYE_SECONDS)
        except FedstackError as error:
            _logger.info("The dispatcher has not heard of the end of a pass: %s", error)

    async def _answered(self, ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        return await answered(self._stub, ask, self._opening.timeout)
