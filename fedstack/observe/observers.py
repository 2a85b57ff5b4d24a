"""Brings events to those who watch.

Where something happens, it is told only if anybody is there to hear it:

    if observers.present:
        observers.tell(WorkerReady(worker=address))

So without observers an event costs the look at a tuple. An observer gets a thread and a queue of its own: one that is
slow or blocks holds up nothing, and loses events of its own when its queue is full. One that raises is told nothing
more. The observers of a process are not its forked children's.
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
# How many events wait for an observer at most.
_MOST_WAITING = 10_000
_FLUSH_AT_EXIT_SECONDS = 2.0


class Observer(abc.ABC):
    """Is told what happens in this process: subclass it, and give an instance to `add_observer`."""

    @abc.abstractmethod
    def observe(self, event: Event) -> None:
        """Takes in an event. An observer that raises is told nothing more.

        Args:
          event: Of one of the classes in `fedstack.observe`. Later releases may have more of them.
        """

    def close(self) -> None:  # noqa: B027 - few have anything to close
        """Ends what the observer has begun. Called once, when it is told nothing more.

        One that is told directly may still hear of events that other threads are telling.
        """


class Subscription:
    """An observer that is told of events until it is removed, or the `with` block ends."""

    _is_direct = True

    def __init__(self, observer: Observer, among: "Observers") -> None:
        self._observer = observer
        self._among = among
        self._is_over = False
        self._is_closed = False
        self._process = os.getpid()

    @property
    def dropped(self) -> int:
        """How many events the observer was not told of, because it was too far behind."""
        return 0

    def tell(self, event: Event) -> None:
        """Tells the observer of an event."""
        if self._is_over:
            return
        try:
            self._observer.observe(event)
        except BaseException as error:
            if self._is_direct and interrupts(error):
                raise
            if not self._is_over:
                self._is_over = True
                log_raised(_logger, f"The observer {type(self._observer).__name__}", error, "it is told nothing more")
            self._among.drop(self)  # last: `flush` waits for those that are there, and so for the warning
            if self._is_direct:  # the other kind is closed by its thread
                self._close()

    def remove(self, seconds: float = 5.0) -> None:
        """Tells the observer what has happened so far, and nothing more. Idempotent; never raises.

        Inside of `observe` it does not wait, and what the observer has not been told by then is dropped.

        Args:
          seconds: How long to wait at most until all is told.
        """
        self._among.drop(self)
        if self._process == os.getpid():  # what it has open is not a forked child's to close
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
    """One whose observer is told on a thread of its own."""

    _is_direct = False

    def __init__(self, observer: Observer, among: "Observers") -> None:
        super().__init__(observer, among)
        self._dropped = 0
        self._waiting: SimpleQueue[Event | None] = SimpleQueue()  # good for finalizers and signal handlers, too
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
                "The observer %s is %d events behind; it is not told of what happens until it catches up",
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
        elif self._process == os.getpid():  # in a forked child there is no such thread
            self._waiting.put(None)
            self._thread.join(seconds)


class Observers:
    """The observers of this process.

    Attributes:
      present: Those that are there now.
      dropped: By the name of an observer's class, how many events it was not told of, since the process began.
    """

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begins without any, in a forked child: what its parent's have open is the parent's."""
        self.present: tuple[Subscription, ...] = ()
        self.dropped: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, observer: Observer, *, direct: bool = False) -> Subscription:
        """Adds one; see `add_observer`."""
        if isinstance(observer, type) or not callable(getattr(observer, "observe", None)):
            advice = "call it" if isinstance(observer, type) else "derive its class from fedstack.observe.Observer"
            raise TypeError(f"Expected an observer, with a method observe, found {observer!r}; {advice}")
        if inspect.iscoroutinefunction(observer.observe):
            raise TypeError(
                f"Expected an observer whose method observe is no coroutine, found {observer!r}; define it without "
                "async: it is called on a thread of its own"
            )
        subscription = (Subscription if direct else _ApartSubscription)(observer, self)
        with self._lock:
            self.present = (*self.present, subscription)
        return subscription

    def drop(self, subscription: Subscription) -> None:
        """Tells an observer of no more events."""
        with self._lock:
            self.present = tuple(other for other in self.present if other is not subscription)

    def tell(self, event: Event) -> None:
        """Tells all of an event. Ctrl-C apart it never raises, nor waits for any that is told apart."""
        for subscription in self.present:
            subscription.tell(event)

    def flush(self) -> None:
        """Tells all what has happened so far, and removes them; at the end of the process."""
        deadline = Deadline(_FLUSH_AT_EXIT_SECONDS)
        for subscription in self.present:
            subscription.remove(deadline.left)

    def __repr__(self) -> str:
        return f"<Observers {list(self.present)}>"


observers = Observers()
atexit.register(observers.flush)


def add_observer(observer: Observer, *, direct: bool = False) -> Subscription:
    """Tells an observer what happens in this process from now on.

    Args:
      observer: The observer.
      direct: Whether to tell it where things happen, on any thread and on several at once, in place of a thread of its
        own: it must be quick and must not block. What happens waits for it.

    Returns:
      What ends that, as a context manager or by its method `remove`.

    Raises:
      TypeError: If it is no observer.
      ResourceLimitError: If there can be no thread for it.
    """
    return observers.add(observer, direct=direct)


def log_raised(logger: logging.Logger, what: str, error: BaseException, then: str) -> None:
    """Warns that something of the user's raised, which is not to harm the work that it watches.

    Args:
      logger: Where to write it.
      what: What raised.
      error: The error. Only its text is logged: who keeps log records must not keep its frames, and their values.
      then: What follows from that.
    """
    logger.warning("%s raised %s: %s; %s%s", what, type(error).__name__, text_of(error), then, users_lines(error))
