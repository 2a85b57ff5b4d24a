"""Delivers events to observers.

An event is created only if there is an observer:

    if observers.present:
        observers.tell(WorkerReady(worker=address))

So without observers an event costs the test of a tuple. An observer has a thread and a queue of its own: one that is
slow or blocks delays nothing else, and misses events when its queue is full. One that raises is removed. A forked child
does not inherit observers.
"""

import abc
import atexit
import inspect
import logging
import os
import threading
from queue import SimpleQueue

from fedstack.errors import ResourceLimitError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import text_of
from fedstack.foundations.traceback_filter import interrupts, users_lines
from fedstack.observe.events import Event

_logger = logging.getLogger(__name__)
# The largest number of events in the queue of an observer.
_MOST_WAITING = 10_000
_FLUSH_AT_EXIT_SECONDS = 2.0


class Observer(abc.ABC):
    """Receives the events of this process: subclass it, and pass an instance to `add_observer`."""

    @abc.abstractmethod
    def observe(self, event: Event) -> None:
        """Handles an event. An observer that raises is removed.

        Args:
          event: An instance of one of the classes in `fedstack.observe`. Later releases may add more of them.
        """

    def close(self) -> None:  # noqa: B027 - few have anything to close
        """Releases the observer's resources. Called once, after its last event.

        A direct observer may still receive events that other threads are delivering.
        """


class Subscription:
    """The delivery of events to an observer, until it is removed or the `with` block ends."""

    _is_direct = True

    def __init__(self, observer: Observer, among: "Observers") -> None:
        self._observer = observer
        self._among = among
        self._is_over = False
        self._is_closed = False
        self._process = os.getpid()

    @property
    def dropped(self) -> int:
        """How many events the observer missed because its queue was full."""
        return 0

    def tell(self, event: Event) -> None:
        """Delivers an event to the observer."""
        if self._is_over:
            return
        try:
            self._observer.observe(event)
        except BaseException as error:
            if self._is_direct and interrupts(error):
                raise
            if not self._is_over:
                self._is_over = True
                log_raised(_logger, f"The observer {type(self._observer).__name__}", error, "it gets no more events")
            self._among.drop(self)  # last, since `flush` waits for present observers, and so for the warning
            if self._is_direct:  # others are closed by their thread
                self._close()

    def remove(self, seconds: float = 5.0) -> None:
        """Delivers the events so far, and no more. Idempotent; never raises.

        Called within `observe` it does not wait, and drops the events in the queue.

        Args:
          seconds: The longest time to wait for the delivery.
        """
        self._among.drop(self)
        if self._process == os.getpid():  # resources of the parent are not a forked child's to close
            self._close()

    def _close(self) -> None:
        close = getattr(self._observer, "close", None)  # an observer need not be an `Observer`
        if self._is_closed or close is None:
            return
        self._is_closed = True
        try:
            close()
        except Exception as error:
            log_raised(_logger, f"Closing the observer {type(self._observer).__name__}", error, "it is left as it is")

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        removed = "" if self in self._among.present else ", removed"
        return f"<Subscription of {type(self._observer).__name__}{removed}>"


class _ApartSubscription(Subscription):
    """A subscription that delivers events on a thread of its own."""

    _is_direct = False

    def __init__(self, observer: Observer, among: "Observers") -> None:
        super().__init__(observer, among)
        self._dropped = 0
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()  # safe in finalizers and signal handlers, too
        self._thread = threading.Thread(target=self._serve, name="fedstack-observer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ResourceLimitError(
                f"The system did not start a thread for an observer: {error}; allow more processes (ulimit -u)"
            ) from error

    @property
    def dropped(self) -> int:
        return self._dropped

    def tell(self, event: Event) -> None:
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put(event)
            return
        self._dropped += 1
        name = type(self._observer).__name__
        self._among.dropped[name] = self._among.dropped.get(name, 0) + 1
        if self._dropped == 1:
            _logger.warning(
                "The observer %s is %d events behind; it misses events until it catches up",
                name,
                _MOST_WAITING,
            )

    def _serve(self) -> None:
        try:
            while not self._is_over and (event := self._waiting.get()) is not None:
                super().tell(event)
                del event
        finally:
            self._among.drop(self)
            self._close()

    def remove(self, seconds: float = 5.0) -> None:
        self._among.drop(self)
        if self._thread is threading.current_thread():
            self._is_over = True
        elif self._process == os.getpid():  # a forked child does not have the thread
            self._waiting.put(None)
            self._thread.join(seconds)


class Observers:
    """The observers of this process.

    Attributes:
      present: The current subscriptions.
      dropped: How many events observers have missed since the process began, by the names of their classes.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drops all observers, in a forked child: their resources belong to the parent."""
        self.present: tuple[Subscription, ...] = ()
        self.dropped: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, observer: Observer, *, direct: bool = False) -> Subscription:
        """Adds an observer; see `add_observer`."""
        if isinstance(observer, type) or not callable(getattr(observer, "observe", None)):
            advice = "call it" if isinstance(observer, type) else "derive its class from fedstack.observe.Observer"
            raise TypeError(f"Expected an observer, with a method observe, found {observer!r}; {advice}")
        if inspect.iscoroutinefunction(observer.observe):
            raise TypeError(
                f"Expected an observer whose method observe is not a coroutine, found {observer!r}; define it without "
                "async: it is called on a thread of its own"
            )
        subscription = (Subscription if direct else _ApartSubscription)(observer, self)
        with self._lock:
            self.present = (*self.present, subscription)
        return subscription

    def drop(self, subscription: Subscription) -> None:
        """Ends the delivery of new events to an observer."""
        with self._lock:
            self.present = tuple(other for other in self.present if other is not subscription)

    def tell(self, event: Event) -> None:
        """Delivers an event to all observers. It raises nothing but Ctrl-C, and waits for direct observers only."""
        for subscription in self.present:
            subscription.tell(event)

    def flush(self) -> None:
        """Delivers the events so far, and removes all observers; at the end of the process."""
        deadline = Deadline(_FLUSH_AT_EXIT_SECONDS)
        for subscription in self.present:
            subscription.remove(deadline.left or 0.0)

    def __repr__(self) -> str:
        return f"<Observers {list(self.present)}>"


observers = Observers()
atexit.register(observers.flush)


def add_observer(observer: Observer, *, direct: bool = False) -> Subscription:
    """Delivers the events of this process to an observer from now on.

    Args:
      observer: The observer.
      direct: Whether to call it where an event happens, on any thread and on several at once, instead of on a thread
        of its own. It must be quick and must not block, since the work waits for it.

    Returns:
      A context manager that ends the delivery, as its method `remove` does.

    Raises:
      TypeError: If it is not an observer.
      ResourceLimitError: If no thread can be started for it.
    """
    return observers.add(observer, direct=direct)


def log_raised(logger: logging.Logger, what: str, error: BaseException, then: str) -> None:
    """Logs a warning that a user's observer raised, which must not harm the work that it observes.

    Args:
      logger: The logger.
      what: What raised.
      error: The error. Only its text is logged, since a stored log record would keep the values in its frames alive.
      then: The consequence.
    """
    logger.warning("%s raised %s: %s; %s%s", what, type(error).__name__, text_of(error), then, users_lines(error))
