"""Delivers events to observers.

An event is created only if there is an observer:

    if observers.present:
        observers.tell(WorkerReady(worker=address))

Without observers, an event therefore costs only the check of a tuple. Each observer has its own thread and queue, so a
slow or blocked observer delays no other work. If its queue is full, the observer misses events. An observer that raises
an error is removed. A forked child process does not inherit observers.
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
# The maximum number of events in the queue of an observer.
_MOST_WAITING = 10_000
_FLUSH_AT_EXIT_SECONDS = 2.0


class Observer(abc.ABC):
    """The base class of objects that receive the events of this process.

    Derive a class from it, and pass an instance to `add_observer`.
    """

    @abc.abstractmethod
    def observe(self, event: Event) -> None:
        """Receives an event. If this method raises an error, the observer is removed.

        Args:
          event: An instance of one of the event classes in `fedstack.observe`. Later releases may add event classes.
        """

    def close(self) -> None:  # noqa: B027 - few have anything to close
        """Releases the observer's resources. Called once, after the last event.

        A direct observer may still receive events that other threads are delivering at that moment.
        """


class Subscription:
    """Delivers events to an observer until `remove` is called or the `with` block ends."""

    _is_direct = True

    def __init__(self, observer: Observer, among: "Observers") -> None:
        self._observer = observer
        self._among = among
        self._is_over = False
        self._is_closed = False
        self._process = os.getpid()

    @property
    def dropped(self) -> int:
        """The number of events that the observer missed because its queue was full."""
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
                log_raised(_logger, f"The observer {type(self._observer).__name__}", error, "the observer was removed")
            self._among.drop(self)  # after the warning, since `flush` waits only for observers that are present
            if self._is_direct:  # an observer that is not direct is closed by its own thread
                self._close()

    def remove(self, seconds: float = 5.0) -> None:
        """Removes the observer after it has received all events so far. Idempotent; never raises.

        If this method is called within `observe`, it does not wait, and the events in the queue are dropped.

        Args:
          seconds: The maximum time to wait for the delivery of the events in the queue.
        """
        self._among.drop(self)
        if self._process == os.getpid():  # a forked child must not close the resources of its parent
            self._close()

    def _close(self) -> None:
        close = getattr(self._observer, "close", None)  # an observer need not derive from `Observer`
        if self._is_closed or close is None:
            return
        self._is_closed = True
        try:
            close()
        except Exception as error:
            log_raised(_logger, f"Closing the observer {type(self._observer).__name__}", error, "resources may leak")

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        removed = "" if self in self._among.present else ", removed"
        return f"<Subscription of {type(self._observer).__name__}{removed}>"


class _ApartSubscription(Subscription):
    """Delivers events to an observer on a separate thread."""

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
                f"Starting a thread for an observer failed: {error}; raise the limit on the number of processes "
                "(ulimit -u)"
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
                "The queue of the observer %s is full with %d events; the observer misses events until it catches up",
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
      dropped: The number of events that observers have missed since the process started, by the observers' class names.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drops all observers. Called in a forked child, because the observers' resources belong to the parent."""
        self.present: tuple[Subscription, ...] = ()
        self.dropped: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, observer: Observer, *, direct: bool = False) -> Subscription:
        """Adds an observer; see `add_observer`."""
        if isinstance(observer, type) or not callable(getattr(observer, "observe", None)):
            advice = (
                "pass an instance" if isinstance(observer, type) else "derive its class from fedstack.observe.Observer"
            )
            raise TypeError(f"Expected an observer with a method 'observe', found {observer!r}; {advice}")
        if inspect.iscoroutinefunction(observer.observe):
            raise TypeError(
                f"Expected an observer whose method 'observe' is not a coroutine, found {observer!r}; define the "
                "method without async, since it is called on its own thread"
            )
        subscription = (Subscription if direct else _ApartSubscription)(observer, self)
        with self._lock:
            self.present = (*self.present, subscription)
        return subscription

    def drop(self, subscription: Subscription) -> None:
        """Stops delivering new events to an observer."""
        with self._lock:
            self.present = tuple(other for other in self.present if other is not subscription)

    def tell(self, event: Event) -> None:
        """Delivers an event to all observers.

        Waits only for direct observers. Raises only exceptions that interrupt the program, such as `KeyboardInterrupt`.
        """
        for subscription in self.present:
            subscription.tell(event)

    def flush(self) -> None:
        """Delivers the events so far and removes all observers. Called when the process exits."""
        deadline = Deadline(_FLUSH_AT_EXIT_SECONDS)
        for subscription in self.present:
            subscription.remove(deadline.left or 0.0)

    def __repr__(self) -> str:
        return f"<Observers {list(self.present)}>"


observers = Observers()
atexit.register(observers.flush)


def add_observer(observer: Observer, *, direct: bool = False) -> Subscription:
    """Starts to deliver the events of this process to an observer.

    Args:
      observer: The observer.
      direct: Whether to call the observer on the thread on which an event occurs, instead of on the observer's own
        thread. Several threads may then call the observer concurrently. It must return quickly and must not block,
        since the observed work waits for it.

    Returns:
      A context manager that ends the delivery on exit. Its method `remove` ends the delivery, too.

    Raises:
      TypeError: If `observer` is not an observer.
      ResourceLimitError: If no thread can be started for the observer.
    """
    return observers.add(observer, direct=direct)


def log_raised(logger: logging.Logger, what: str, error: BaseException, then: str) -> None:
    """Logs the error of a user's observer as a warning, so that the error does not affect the observed work.

    Args:
      logger: The logger.
      what: The subject of the message, such as the observer.
      error: The error. Only its text is logged, since a stored log record would keep the values in its frames alive.
      then: The consequence of the error, as a clause, such as `the observer was removed`.
    """
    logger.warning("%s raised %s: %s; %s%s", what, type(error).__name__, text_of(error), then, users_lines(error))
