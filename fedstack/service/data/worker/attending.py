"""Reports to a dispatcher at regular intervals that a data worker is available."""

import asyncio
import contextlib
import logging

from fedstack.errors import FedstackError, StaleSessionError, WorkerUnavailableError
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.draws import draw_id
from fedstack.foundations.traceback_filter import consume_exception, without_frames
from fedstack.membership.reaching import answered
from fedstack.proto.data_service_pb2 import AttendRequest, AttendResponse, Commit, DataWorkerAddress
from fedstack.transport.grpc.credential_files import Renewed
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.io_loop import start_apart

_logger = logging.getLogger(__name__)
# The bounds on the interval that a dispatcher may request.
_LEAST_SECONDS, _MOST_SECONDS = 0.01, 60.0
# The pause before the next attempt if the dispatcher refuses the worker.
_REFUSED_SECONDS = 1.0
_LEAVE_SECONDS = 1.0


class Attending:
    """Keeps a data worker registered with a dispatcher, and reconnects if the dispatcher was unavailable.

    An instance must be used on the event loop of its stub.

    Args:
      stub: The stub for calls to the dispatcher.
      seconds: The interval between reports in seconds; by default the interval that the dispatcher requests.
      tokens: The tokens, of which the first one authorizes the worker; `None` if the dispatcher requires no token.
    """

    def __init__(
        self, stub: DispatcherStub, seconds: float | None = None, tokens: Renewed[tuple[str, ...]] | None = None
    ) -> None:
        self._stub = stub
        self._seconds = seconds
        self._tokens = tokens
        self._worker = DataWorkerAddress(worker=draw_id())
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._commit = Commit()
        self._failure: FedstackError | None = None

    @property
    def worker(self) -> bytes:
        """The id of the worker, which does not change while the worker runs."""
        return self._worker.worker

    @property
    def attends(self) -> bool:
        """Whether the worker is registered and its last report was successful."""
        return self._first is not None and self._first.done() and self._failure is None

    def start(self, address: str) -> None:
        """Starts reporting that the worker at an address is available. Idempotent."""
        if self._task is None:
            self._worker.address = address
            self._first = asyncio.get_running_loop().create_future()
            self._task = start_apart(self._attend())

    async def wait(self, seconds: float) -> None:
        """Waits until the worker is registered.

        Raises:
          WorkerUnavailableError: If the dispatcher cannot be reached within `seconds`.
          FedstackError: If the dispatcher refuses the worker.
        """
        assert self._first is not None, "start has been called"
        await asyncio.wait([self._first], timeout=seconds)
        if self._first.done():
            return self._first.result()
        reason = self._failure or "no response; start the dispatcher, or correct dispatcher_address"
        raise WorkerUnavailableError(
            f"The dispatcher at {self._stub.address} did not register this data worker within {seconds:g} s: {reason}"
        )

    async def _attend(self) -> None:
        seconds = 0.0
        pauses = iter(lambda: min(max(self._seconds or seconds, _LEAST_SECONDS), _MOST_SECONDS), None)
        async for _ in Deadline().attempts(pauses):
            try:
                answer = await answered(self._stub, lambda: self._stub.attend(self._request()), None, self._has_lost)
            except FedstackError as error:
                self._is_refused(error)
                # If the dispatcher no longer has the commit that it sent, retry without a commit.
                is_other, self._commit = bool(self._commit.number) and isinstance(error, StaleSessionError), Commit()
                seconds = _LEAST_SECONDS if is_other else _REFUSED_SECONDS
            else:
                self._has_found(answer)
                seconds = answer.interval_seconds

    def _request(self, leaves: bool = False) -> AttendRequest:
        token = "" if self._tokens is None else self._tokens.get()[0]
        return AttendRequest(worker=self._worker, leaves=leaves, token=token, commit=self._commit)

    def _has_lost(self, error: FedstackError) -> None:
        self._failure = without_frames(error)

    def _is_refused(self, error: FedstackError) -> None:
        if self._failure is None or str(self._failure) != str(error):
            _logger.error("The dispatcher at %s refuses this data worker: %s", self._stub.address, error)
        self._failure = without_frames(error)
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
            consume_exception(self._first)

    def _has_found(self, answer: AttendResponse) -> None:
        if self._failure is not None:
            _logger.info("This data worker is registered with the dispatcher at %s again", self._stub.address)
        self._failure, self._commit = None, answer.commit
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def leave(self) -> None:
        """Starts notifying the dispatcher that the worker is about to stop. Idempotent."""
        if self._task is not None and self._leaving is None:
            self._leaving = start_apart(self._leave(self._task))

    async def _leave(self, attending: "asyncio.Task[None]") -> None:
        while not attending.done():  # a cancellation may be mistaken for the end of the connection
            attending.cancel()
            await asyncio.wait([attending], timeout=_LEAVE_SECONDS)
        await asyncio.gather(attending, return_exceptions=True)
        with contextlib.suppress(FedstackError, asyncio.TimeoutError):
            await Deadline(_LEAVE_SECONDS).wait(self._stub.attend(self._request(leaves=True)))

    async def close(self) -> None:
        """Stops the reports, notifies the dispatcher, and closes the stub. Idempotent."""
        self.leave()
        if self._leaving is not None:
            await self._leaving
        await self._stub.close()

    def __repr__(self) -> str:
        return f"<Attending at {self._stub.address}{', which is away' if self._failure else ''}>"
