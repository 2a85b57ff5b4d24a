"""Defines what one client of an executor service has: an executor, values, and what runs for it."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

import attrs

from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.computations.types.language import Executor, ExecutorValue
from fedstack.errors import InvalidValueError, StaleSessionError
from fedstack.executors.concurrency.progress import ProgressCounts
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
      InvalidValueError: If it is empty or long.
    """
    if not 0 < len(value_id) <= _MAX_ID:
        raise InvalidValueError(
            f"Expected an id of 1 to {_MAX_ID} characters for a new value, found one of {len(value_id)}"
        )


@attrs.define
class Started:
    """The values that one client has started, and how they ended.

    Attributes:
      running: The ids of running values, each with its start by the time of the loop.
      ended: How many have ended.
      failed: How many of these failed.
      waiting: How many more wait at the client, by its last report.
    """

    running: dict[str, float] = attrs.field(factory=dict[str, float])
    ended: int = 0
    failed: int = 0
    waiting: int = 0


class _KeptValues(dict[str, Any]):
    """The values that functions keep between calls. They count as values of the session.

    Args:
      check_room: Raises if there is no room for one more.
    """

    def __init__(self, check_room: Callable[[], None]) -> None:
        self._check_room = check_room

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self._check_room()
        return super().setdefault(key, default)


@attrs.frozen(eq=False)
class ClosureScope(SystemScope):
    """The scope of functions that a client schedules, at the worker that runs them.

    Attributes:
      worker_index: The index of this worker among those of the client; `None` without indices.
      kept: The values that functions keep for later calls of the same client.
    """

    worker_index: int | None
    kept: MutableMapping[str, Any]


class Session:
    """The state of one client.

    Attributes:
      id: The name of the session; random, so that it cannot be guessed and never repeats.
      executor: Runs its computations.
      clients: The number of clients; that of the last phase if phases may have any number.
      takes_any_number: Whether phases may have any number of clients, because the session was opened without one.
      bytes: The bytes of values that the client has sent.
      closures: The scope of the client's functions.
      started: The values that the client has started.
      updating: The lock for replacing a value by another.
      caller: The client that opened it, if that is known.
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

    def __len__(self) -> int:
        return len(self._values)

    def find(self, value_id: str) -> ExecutorValue:
        """Returns a value.

        Raises:
          StatusError: If there is none of that id.
        """
        found = self._values.get(value_id)
        if found is None:
            raise StatusError(
                Code.NOT_FOUND,
                f"Expected the id of a value in session {self.id[:8]}, found {value_id[:80]!r}; it was never created, "
                "or has been disposed of",
            )
        return found[0]

    def find_if_there(self, value_id: str) -> ExecutorValue | None:
        """Returns a value, if there is one of that id."""
        found = self._values.get(value_id)
        return None if found is None else found[0]

    def has(self, value_id: str) -> bool:
        """Returns whether a value with the id exists."""
        return value_id in self._values

    def add(self, value: ExecutorValue, size: int = 0, value_id: str = "") -> str:
        """Keeps a value, and returns its id.

        Raises:
          ResourceLimitError: If there are too many, or too many bytes of them.
        """
        self.check_room(size)
        value_id = value_id or uuid.uuid4().hex
        self._values[value_id] = (value, size)
        self.bytes += size
        return value_id

    def replace(self, value_id: str, value: ExecutorValue) -> None:
        """Puts a value of the same size in place of one."""
        _, size = self._values[value_id]
        self._values[value_id] = value, size
        self._pulls.pop(value_id, None)

    def check_room(self, size: int) -> None:
        """Checks that there is room for one more value of a size.

        Raises:
          ResourceLimitError: If there is not.
        """
        if len(self._values) + len(self.closures.kept) >= self._limits.max_values:
            raise exceeded(self._limits, "max_values", advice="dispose of some")
        if self.bytes + size > self._limits.max_session_bytes:
            raise exceeded(self._limits, "max_session_bytes", self.bytes + size, "dispose of some")

    def remove(self, value_id: str) -> bool:
        """Drops a value; returns whether there was one."""
        found = self._values.pop(value_id, None)
        if found is None:
            return False
        self._pulls.pop(value_id, None)
        self.bytes -= found[1]
        return True

    def cancel(self, value_id: str) -> None:
        """Stops computing a value, even if calls wait for it, and drops it."""
        pull = self._pulls.get(value_id)
        self.remove(value_id)
        self.started.running.pop(value_id, None)
        if pull is not None:
            pull.cancel()

    def pull(self, value_id: str, progress: ProgressCounts | None = None) -> SharedComputation:
        """Starts to compute a value, or joins a running computation; `progress` counts it if given.

        Raises:
          StatusError: If there is none of that id.
        """
        value = self.find(value_id)
        pull = self._pulls.get(value_id)
        if pull is None or pull.was_cancelled:
            pull = self._pulls[value_id] = SharedComputation(value, PULL_GRACE_SECONDS, progress)
        return pull

    def delivered(self, value_id: str) -> None:
        """Notes that a client has what a value computed."""
        self._pulls.pop(value_id, None)

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs work that the end of the session cancels.

        Raises:
          StaleSessionError: If the session ended.
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

    @property
    def running(self) -> int:
        """How much work runs."""
        return len(self._tasks)

    def end(self, why: str) -> None:
        """Cancels the work, frees the values and gives the executor back."""
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
    """Returns the error for a session that is not there."""
    return StaleSessionError(
        f"Expected a session of this server, found the id {session_id[:8]!r}; {why}; create the executor again"
    )
