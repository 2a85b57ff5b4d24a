"""Knows which workers are ready: asks those it knows nothing of, and looks again after those that have failed."""

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence

from fedstack.computations.types.language import RetryableError
from fedstack.computations.values.number_checks import check_number
from fedstack.errors import AuthenticationError, ClosedError, FedstackError, InvalidValueError, NoWorkersError
from fedstack.transport.peers.executor_stub import ISOLATE, ExecutorStub
from fedstack.transport.peers.io_loop import io_loop, start_apart
from fedstack.transport.wire.connection_errors import listed

_logger = logging.getLogger(__name__)
# How long the first who is ready waits for the others, so that a fleet that comes up together is used together.
_SETTLE_SECONDS = 1.0
# How long each wait is that follows one in vain.
_AGAIN_SECONDS = 0.25
# How long it may take to find out whether one that was away listens now, and then to hear from it.
_REDIAL_SECONDS = 0.5
_ANSWER_SECONDS = 2.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Worker:
    """One worker.

    Attributes:
      stub: Calls it.
      ready: Whether it is known to be there.
      cause: Why it is not; `None` if nobody has asked it yet.
      probe: Tries to reach it.
      runs_phases: Whether it runs whole client phases, as it said when it was last asked.
      searches: Whether it looks for clients that end its process, in processes of its own.
      redialled: Whether it was found to listen again, and has not been heard of since.
    """

    def __init__(self, stub: ExecutorStub) -> None:
        self.stub = stub
        self.ready = False
        self.cause: Exception | None = None
        self.probe: asyncio.Task[None] | None = None
        self.runs_phases = False
        self.searches = False
        self.redialled = False

    @property
    def address(self) -> str:
        """Its address."""
        return self.stub.address

    @property
    def is_hopeless(self) -> bool:
        """Whether it does not help to wait: it is no more, or what is wrong will not become right by itself."""
        return self.cause is not None and (not isinstance(self.cause, RetryableError) or self.stub.is_gone)

    def cause_after(self, seconds: float) -> str:
        """Returns why it is not there, in a line, for who has waited so long for it."""
        if self.cause is None:
            return f"no answer within {seconds:g} s"
        return self.line_of(self.cause)

    def line_of(self, error: Exception) -> str:
        """Returns what an error of this worker says, in a line."""
        known = error.causes.get(self.address) if isinstance(error, FedstackError) else None
        found = str(error).removeprefix(f"Expected an answer from {self.address}, found ")
        return known or found.partition("\n")[0]

    def __repr__(self) -> str:
        return f"<Worker {self.address} {self._state()}>"

    def _state(self) -> str:
        if self.ready:
            return "ready"
        return "not asked yet" if self.cause is None else f"away: {self.cause}"


class Workers:
    """A set of workers. Coroutines run on the transport's loop.

    When nobody refers to it any more, nobody looks after the workers either; connections end with their stubs then.

    Args:
      stubs: Calls each of them. They are closed with this.
      connect_seconds: How long to wait for the first that is ready.
    """

    def __init__(self, stubs: Sequence[ExecutorStub], connect_seconds: float = 10.0) -> None:
        if not stubs:
            raise InvalidValueError(
                "Expected at least one worker, found none; give its address, as in 'localhost:8000'"
            )
        check_number("connect_seconds", connect_seconds, endless=True)
        self._workers = [Worker(stub) for stub in stubs]
        self._connect_seconds = connect_seconds
        self._gave_up: float | None = None  # when it was waited in vain for all of them
        self._changed: asyncio.Event | None = None
        self._closed = False
        weakref.finalize(self, _abandon, self._workers).atexit = False

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    async def ready(self) -> list[Worker]:
        """Returns the workers that are ready, one at least; waits for it if need be.

        Raises:
          NoWorkersError: If none is, within the time to connect; the message has all addresses and causes.
          FedstackError: If none will be, however long one waits: a wrong token will not become right.
        """
        return await io_loop.run(self._ready())

    async def _ready(self) -> list[Worker]:
        loop = asyncio.get_running_loop()
        self._changed = self._changed or asyncio.Event()
        for worker in self._workers:
            self._note_loss(worker)
            self._look_after(worker)
        begun = loop.time()
        patience = self._patience(begun)
        redialled = False
        while True:
            if self._closed:
                raise ClosedError("Expected open workers, found them closed; make a new context")
            ready = [worker for worker in self._workers if worker.ready]
            if len(ready) == len(self._workers):
                break
            if all(worker.is_hopeless for worker in self._workers):
                break
            fresh = any(worker.cause is None and not worker.ready for worker in self._workers)
            left = (min(_SETTLE_SECONDS, patience) if ready else patience) - (loop.time() - begun)
            if ready and (left <= 0 or not fresh):
                break
            if left <= 0:
                # What is known of the workers may be seconds old: those who listen now are not to be called away.
                if redialled or not await self._redial():
                    break
                redialled, begun, patience = True, loop.time(), _ANSWER_SECONDS
                continue
            if redialled and not any(worker.redialled for worker in self._workers):
                break
            self._changed.clear()
            try:
                # Nobody tells that a process has ended, so it is looked at in between.
                await asyncio.wait_for(self._changed.wait(), min(left, _AGAIN_SECONDS))
            except asyncio.TimeoutError:
                continue
        self._gave_up = None if ready else loop.time()
        if not ready:
            raise self._none_ready(patience)
        return ready

    def _patience(self, now: float) -> float:
        """Returns how long to wait for the first that is ready, in seconds.

        Who has waited in vain once need not do so at every attempt: the workers are looked after all the time. But
        channels of users dial more seldom the longer nobody was there, and so they are given the time since then.
        """
        if self._gave_up is None:
            return self._connect_seconds
        all_redial = all(worker.stub.connection.redials for worker in self._workers)
        again = _AGAIN_SECONDS if all_redial else max(_AGAIN_SECONDS, now - self._gave_up)
        return min(self._connect_seconds, again)

    async def _redial(self) -> bool:
        """Asks workers that were away again if they listen now; tells whether there are such."""
        away = [worker for worker in self._workers if not worker.ready and not worker.is_hopeless]
        found = await asyncio.gather(*(worker.stub.connection.redial(_REDIAL_SECONDS) for worker in away))
        for worker, listens in zip(away, found):
            if listens and not worker.ready and not worker.redialled:
                if worker.probe is not None:
                    worker.probe.cancel()  # it may be in a long pause
                worker.probe, worker.redialled = None, True
                self._look_after(worker)
        return any(found)

    def _none_ready(self, seconds: float) -> FedstackError:
        for worker in self._workers:
            self._note_loss(worker)
        causes = {worker.address: worker.cause_after(seconds) for worker in self._workers}
        is_single = len(causes) == 1  # the same address may have been given twice
        mistakes = [w.cause for w in self._workers if w.cause and not isinstance(w.cause, RetryableError)]
        if not mistakes and all(worker.stub.is_gone for worker in self._workers):
            found = f"at least one of {len(causes)} worker processes to run, found that all have ended"
            if is_single:
                found = "the worker process to run, found that it has ended"
            error = NoWorkersError(
                f"Expected {found}, likely from a client function (os._exit, a crash, too much memory); mend that, "
                "and start a new pool:"
                f"{listed(causes)}"
            )
            error.is_final = True
        elif len(mistakes) < len(self._workers):
            found = f"at least one of {len(causes)} workers to be ready, found none; start them"
            if is_single:
                found = "the worker to be ready, found that it is not; start it"
            error = NoWorkersError(
                f"Expected {found} with `fedstack serve`, and ask {'it' if is_single else 'one'} with `fedstack check`:"
                f"{listed(causes)}"
            )
        elif len(set(map(str, mistakes))) == 1 or not isinstance(mistakes[0], AuthenticationError):
            raise mistakes[0]
        else:
            error = AuthenticationError(
                f"Expected at least one of {len(causes)} workers to let us in, found none:{listed(causes)}"
            )
        error.causes = causes
        return error

    def _note_loss(self, worker: Worker) -> None:
        loss = worker.stub.loss()
        if loss is not None:
            worker.ready = False
            worker.cause = loss

    def failed(self, worker: Worker, error: Exception) -> None:
        """Takes note that a worker has failed; it is looked after until it is back."""
        worker.ready = False
        worker.cause = error
        io_loop.submit(self._look_again(worker))

    async def _look_again(self, worker: Worker) -> None:
        self._look_after(worker)

    def _look_after(self, worker: Worker) -> None:
        away = not worker.ready and not worker.stub.is_gone
        if away and not self._closed and (worker.probe is None or worker.probe.done()):
            self._changed = self._changed or asyncio.Event()
            worker.probe = start_apart(_probe(worker, self._changed, warns=len(self._workers) > 1))

    async def _close(self, users: Sequence[Callable[[], Awaitable[None]]]) -> None:
        probes = [worker.probe for worker in self._workers if worker.probe is not None]
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, *(end() for end in users), return_exceptions=True)
        for worker in self._workers:
            await worker.stub.close()

    def close(self, users: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Closes the connections. Idempotent; waits for it where that blocks no event loop.

        Args:
          users: End what uses the connections, on the transport's loop. Calls may go on: they end with their sessions,
            which the workers would keep for a while if the connections were closed first.
        """
        if not self._closed:
            self._closed = True
            io_loop.finish(self._close(users))

    def __repr__(self) -> str:
        return f"<Workers {', '.join(map(repr, self._workers))}>"


async def _probe(worker: Worker, changed: asyncio.Event, *, warns: bool) -> None:
    """Tries to reach a worker until it answers. It knows no more than that worker, and so keeps nothing else alive.

    Args:
      worker: The worker.
      changed: Set when something is known of it.
      warns: Whether to warn of what will not become right; of the only worker the caller gets it as an error.
    """
    pause = _FIRST_PAUSE
    while True:
        try:
            await worker.stub.connection.wait_ready(_LONGEST_PAUSE)
            peer = await worker.stub.handshake()
        except FedstackError as error:
            # Without its frames, which would be kept as long as the worker is away.
            worker.cause = (worker.stub.loss() or error).with_traceback(None)
            if not isinstance(error, RetryableError) and pause == _FIRST_PAUSE and warns:
                _logger.warning("Doing without the worker at %s: %s", worker.address, error)
        else:
            worker.cause, worker.ready = None, True
            worker.runs_phases = peer is not None and peer.phases
            worker.searches = peer is not None and ISOLATE in peer.features and not peer.same_process
        if worker.probe is not asyncio.current_task():
            return  # cancelled: asyncio.wait_for may swallow that where what it waits for ends at the same time
        worker.redialled = False
        changed.set()
        if worker.stub.is_gone:
            return
        if worker.ready:
            _logger.debug("The worker at %s is ready", worker.address)
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _abandon(workers: Sequence[Worker]) -> None:
    """Ends the looking after workers of a set that is gone; a finalizer."""

    def end() -> None:
        for worker in workers:
            probe, worker.probe = worker.probe, None
            if probe is not None:
                probe.cancel()

    io_loop.call_soon(end)
