"""What tests of events have in common."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from fedstack.observe import Event, Observer, add_observer

LIMIT = 20.0
_E = TypeVar("_E", bound=Event)


class Diary(Observer):
    """Writes down all events, as they come."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def observe(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def kinds(self, *without: type[Event]) -> list[str]:
        """Returns the names of the classes of events, in their order."""
        return [type(event).__name__ for event in self.events if not isinstance(event, without)]

    def of(self, kind: type[_E]) -> list[_E]:
        """Returns the events of a class."""
        return [event for event in self.events if isinstance(event, kind)]

    def the(self, kind: type[_E]) -> _E:
        """Returns the one event of a class."""
        (event,) = self.of(kind)
        return event

    def wait_for(self, found: Callable[[], bool]) -> None:
        """Waits until events have come."""
        with self._changed:
            assert self._changed.wait_for(found, LIMIT), self.events


@contextlib.contextmanager
def watched() -> Iterator[Diary]:
    """Watches what happens in the block."""
    diary = Diary()
    with add_observer(diary):
        yield diary
