"""The session of a client of an executor service, with its executor, its values and its running work."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Generator, MutableMapping, Sequence
from typing import Any, TypeVar

import attrs

from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.computations.types.language import Executor, ExecutorValue
from fedstack.errors import InvalidValueError, StaleSessionError
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.worker.phase_pipeline import Outbox
from fedstack.observe.events import SessionClosed
from fedstack.observe.observers import observers
from fedstack.service.executor.held_values import SharedComputation
from fedstack.service.host.limits import ServiceLimits, exceeded
from fedstack.transport.wire.status import Code, StatusError

_T = TypeVar("_T")
PULL_GRACE_SECONDS = 10.0
_MAX_ID = 100


def check_new_id(value_id: str) -> None:
    """Checks an id that a client has chosen.

    Raises:
      InvalidValueError: If the id is empty or too long.
    """
    if not 0 < len(value_id) <= _MAX_ID:
        raise InvalidValueError(
            f"Expected an id of 1 to {_MAX_ID} characters for a new value, found an id of {len(value_id)} characters"
        )


@attrs.define
class Started:
    """The values that a client has started, and the counts of those that have ended.

    Attributes:
      running: The ids of running values, each with its start time on the event loop's clock.
      ended: The number of ended values.
      failed: The number of ended values that have failed.
      waiting: The number of values that wait at the client for a free worker, according to its last report.
    """

    running: dict[str, float] = attrs.field(factory=dict[str, float])
    ended: int = 0
    failed: int = 0
    waiting: int = 0


class _KeptValues(dict[str, Any]):
    """The values that functions keep between calls. These values count toward the session's limit.

    Args:
      check_room: Raises if there is no room for another value.
    """

    def __init__(self, check_room: Callable[[], None]) -> None:
        self._check_room = check_room

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self._check_room()
        return super().setdefault(key, default)


@attrs.frozen(eq=False)
class ClosureScope(SystemScope):
    """The scope of a client's scheduled functions on the worker that runs them.

    Attributes:
      worker_index: The index of this worker among the client's workers; `None` if the client does not index workers.
      kept: The values that functions keep for later calls of the same client.
    """

    worker_index: int | None
    kept: MutableMapping[str, Any]


class Session:
    """The state of one client.

    Attributes:
      id: The id of the session. It is random, so that it cannot be guessed and never repeats.
      executor: The executor that runs the session's computations.
      clients: The number of clients; if phases may have any number of clients, the number of the last phase.
      takes_any_number: Whether phases may have any number of clients, because the session was opened without a fixed
        number.
      bytes: The number of bytes of the values that the client has sent.
      closures: The scope of the client's functions.
      ended: The reason why the session ended; empty while the session is open.
      started: The values that the client has started.
      updating: The lock for replacing a value.
      caller: The name of the client that opened the session, if known.
    """

    def __init__(
        self,
        executor: Executor,
        clients: int,
        limits: ServiceLimits,
        close: Callable[[], None],
        *,
        takes_any_number: bool = False,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.executor = executor
        self.clients = clients
        self.takes_any_number = takes_any_number
        self.bytes = 0
        self.closures = ClosureScope(None, _KeptValues(lambda: self.check_room(0)))
        self.caller = current_scope().caller
        self.ended = ""
        self.started = Started()
        self.updating = asyncio.Lock()
        self._limits = limits
        self._close = close
        self._values: dict[str, tuple[ExecutorValue, int]] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}  # ordered, unlike a set
        self._pulls: dict[str, SharedComputation] = {}
        self._outboxes: dict[str, Outbox] = {}

    def __len__(self) -> int:
        return len(self._values)

    def find(self, value_id: str) -> ExecutorValue:
        """Returns the value with the given id.

        Raises:
          StatusError: If the session has no value with the given id.
        """
        found = self._values.get(value_id)
        if found is None:
            raise StatusError(
                Code.NOT_FOUND,
                f"Expected the id of a value in session {self.id[:8]}, found {value_id[:80]!r}, whose value was never "
                "created or has been disposed of; create the value again",
            )
        return found[0]

    def find_if_there(self, value_id: str) -> ExecutorValue | None:
        """Returns the value with the given id, or `None`."""
        found = self._values.get(value_id)
        return None if found is None else found[0]

    def has(self, value_id: str) -> bool:
        """Returns whether there is a value with the given id."""
        return value_id in self._values

    def add(self, value: ExecutorValue, size: int = 0, value_id: str = "") -> str:
        """Stores a value, and returns its id.

        Args:
          value: The value.
          size: The number of bytes that the client has sent for the value.
          value_id: The id; by default a random id.

        Raises:
          ResourceLimitError: If the session has too many values or too many bytes of values.
        """
        self.check_room(size)
        value_id = value_id or uuid.uuid4().hex
        self._values[value_id] = (value, size)
        self.bytes += size
        return value_id

    def replace(self, value_id: str, value: ExecutorValue) -> None:
        """Replaces a value with a new value of the same size."""
        _, size = self._values[value_id]
        self._values[value_id] = value, size
        self._pulls.pop(value_id, None)

    def check_room(self, size: int) -> None:
        """Checks that the session has room for another value of the given size.

        Raises:
          ResourceLimitError: If the session has too many values or too many bytes of values.
        """
        if len(self._values) + len(self.closures.kept) >= self._limits.max_values:
            raise exceeded(self._limits, "max_values", advice="dispose of some values")
        if self.bytes + size > self._limits.max_session_bytes:
            raise exceeded(self._limits, "max_session_bytes", self.bytes + size, "dispose of some values")

    def remove(self, value_id: str) -> bool:
        """Removes a value, and returns whether it existed."""
        found = self._values.pop(value_id, None)
        if found is None:
            return False
        self._pulls.pop(value_id, None)
        self.bytes -= found[1]
        return True

    def cancel(self, value_id: str) -> None:
        """Cancels the computation of a value, even if calls wait for it, and removes the value."""
        pull = self._pulls.get(value_id)
        self.remove(value_id)
        self.started.running.pop(value_id, None)
        if pull is not None:
            pull.cancel()

    def pull(self, value_id: str, progress: ProgressCounts | None = None) -> SharedComputation:
        """Starts to compute a value, or joins a running computation of the value.

        Args:
          value_id: The id of the value.
          progress: The counts to which a new computation reports its progress; by default new counts.

        Raises:
          StatusError: If the session has no value with the given id.
        """
        value = self.find(value_id)
        pull = self._pulls.get(value_id)
        if pull is None or pull.was_cancelled:
            pull = self._pulls[value_id] = SharedComputation(value, PULL_GRACE_SECONDS, progress)
        return pull

    def delivered(self, value_id: str) -> None:
        """Records that the client has received a computed value."""
        self._pulls.pop(value_id, None)

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs work, which is cancelled if the session ends.

        Raises:
          StaleSessionError: If the session ends before the work.
        """
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        try:
            return await task
        except asyncio.CancelledError:
            if self.ended and task.cancelled():
                raise stale_session(self.id, self.ended) from None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            raise
        finally:
            self._tasks.pop(task, None)

    @contextlib.contextmanager
    def listed(self, phase_id: str, outbox: Outbox) -> Generator[None, None, None]:
        """Lets `outbox_of` find a phase while the block runs, unless its id is empty."""
        if phase_id:
            self._outboxes[phase_id] = outbox
        try:
            yield
        finally:
            self._outboxes.pop(phase_id, None)

    def outbox_of(self, phase_id: str) -> Outbox | None:
        """Returns the outbox of a running phase; `None` if no phase with the given id is running."""
        return self._outboxes.get(phase_id)

    @property
    def phases(self) -> Sequence[Outbox]:
        """The outboxes of the running phases that have an id."""
        return list(self._outboxes.values())

    @property
    def running(self) -> int:
        """The number of running tasks."""
        return len(self._tasks)

    def end(self, why: str) -> None:
        """Cancels the session's work, frees its values and returns its executor. Idempotent.

        Args:
          why: The reason, for error messages and events.
        """
        if self.ended:
            return
        self.ended = why
        if observers.present:
            observers.tell(SessionClosed(session=self.id[:8], reason=why))
        for task in self._tasks:
            task.cancel()
        for pull in self._pulls.values():
            pull.cancel()
        self._pulls.clear()
        self._values.clear()
        self.closures.kept.clear()
        self.bytes = 0
        self._close()


def stale_session(session_id: str, why: str) -> StaleSessionError:
    """Returns the error for a session that is unknown or has ended, with the reason `why`."""
    return StaleSessionError(f"This server has no open session {session_id[:8]!r}: {why}; create the executor again")
