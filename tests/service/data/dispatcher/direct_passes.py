"""Asks for passes without a server: each request is one transaction over a journal."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import attrs
from dispatching import DYNAMIC, description

from fedstack.proto import data_service_pb2 as messages
from fedstack.service.data.dispatcher import passes
from fedstack.service.data.dispatcher.journal import Journal
from fedstack.service.host.limits import DispatcherLimits

DATASET = description(num_splits=10)


@attrs.frozen
class Answer:
    """What a consumer gets.

    Attributes:
      ranges: The ranges.
      is_exhausted: Whether there will be no more.
      is_empty: Whether there was nothing, and may be later.
      wakes: Whether others that wait are to ask again.
    """

    ranges: Sequence[messages.SplitRange]
    is_exhausted: bool
    is_empty: bool
    wakes: bool

    @property
    def bounds(self) -> Sequence[tuple[int, int]]:
        return [(one.first, one.last) for one in self.ranges]

    @property
    def ids(self) -> Sequence[int]:
        return [one.id for one in self.ranges]


class Direct:
    """A dispatcher that nobody connects to.

    Attributes:
      journal: What it knows.
      workers: The workers that are there.
      assigned: Those at the addresses that are known beforehand.
    """

    def __init__(self, journal: Journal | None = None, **limits: int) -> None:
        self.journal = journal or Journal()
        self.workers: Collection[bytes] = [b"w"]
        self.assigned: Sequence[bytes] = ()
        self._limits = DispatcherLimits(**limits)

    def open(
        self, consumer: bytes = b"a", dataset: messages.DatasetDescription = DATASET, **fields: Any
    ) -> "DirectConsumer":
        request = messages.OpenPassRequest(digest=dataset.digest, consumer=consumer, **{"policy": DYNAMIC, **fields})
        with self.journal.transaction() as tables:
            opened = passes.open_pass(tables, request, dataset, self._limits, len(self.assigned))
        return DirectConsumer(self, consumer, opened)

    def live(self) -> set[tuple[bytes, bytes]]:
        with self.journal.transaction() as tables:
            return set(passes.live_consumers(tables))

    def collect(self, now: float, idle_seconds: float, resume_seconds: float) -> int:
        with self.journal.transaction() as tables:
            return passes.collect(tables, now, idle_seconds, resume_seconds)

    def close(self) -> None:
        self.journal.close()


class DirectConsumer:
    """A consumer of a pass there.

    Attributes:
      name: Its id.
      opened: What it was told when it came.
      number: The number of its next request.
    """

    def __init__(self, direct: Direct, name: bytes, opened: messages.OpenPassResponse) -> None:
        self._direct = direct
        self.name = name
        self.opened = opened
        self.number = opened.next_number

    def take(self, want: int = 1, **fields: Any) -> Answer:
        """Makes the next request."""
        self.number += 1
        return self.ask(self.number - 1, want, **fields)

    def ask(
        self,
        number: int,
        want: int = 1,
        finished: Iterable[int] = (),
        given_back: Iterable[int] = (),
        may_wait: bool = False,
        waits: bool = False,
    ) -> Answer:
        """Makes the request of a number."""
        request = messages.TakeRequest(
            pass_id=self.opened.pass_id,
            consumer=self.name,
            number=number,
            want=want,
            finished=finished,
            given_back=given_back,
            waits=waits,
        )
        with self._direct.journal.transaction() as tables:
            taken = passes.take(tables, request, self._direct.workers, may_wait, self._direct.assigned)
        answer = messages.TakeResponse.FromString(taken.answer)
        return Answer(list(answer.range), answer.is_exhausted, taken.is_empty, taken.wakes)

    def take_all(self) -> Sequence[messages.SplitRange]:
        """Takes and finishes all that there is for it."""
        found: list[messages.SplitRange] = []
        finished: Sequence[int] = ()
        for _ in range(100):
            answer = self.take(3, finished=finished)
            found += answer.ranges
            finished = answer.ids
            if answer.is_exhausted or answer.is_empty:
                break
        assert not self.take(0, finished=finished).ranges
        return found

    def release(self, now: float = 0.0, **fields: Any) -> bool:
        request = messages.ReleasePassRequest(pass_id=self.opened.pass_id, consumer=self.name, **fields)
        with self._direct.journal.transaction() as tables:
            return passes.release(tables, request, now)

    def lose(self, now: float = 0.0) -> bool:
        with self._direct.journal.transaction() as tables:
            return passes.lose_consumer(tables, self.opened.pass_id, self.name, now)
