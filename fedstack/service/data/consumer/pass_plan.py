"""Decides what a consumer does in a pass: what it takes, where it reads that, what it hands out, and what is lost.

It has no tasks, threads or clocks: events in, decisions out. A driver does the rest.
"""

import enum
from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from fedstack.computations.values.columns import Column
from fedstack.errors import WorkerUnavailableError
from fedstack.membership.ledger import LossLedger
from fedstack.service.data.consumer.acknowledgements import Acknowledgements, Position
from fedstack.service.data.reading.budget import AHEAD

# How many ranges there are for each worker beside the one that it reads: a lost dispatcher stops nobody at once.
_RANGES_AHEAD = 2


class Guarantee(enum.Enum):
    """How often elements come when workers and consumers get lost."""

    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


@attrs.define(eq=False)
class TakenRange:
    """Consecutive splits, and how far they have been read.

    Attributes:
      id: Its id.
      first: The first split.
      last: The one after the last.
      whole: Whether it is the whole dataset, with all that is done to its elements together.
      worker: The worker that is to read it; empty for any.
      shard: Whether it is every `last`-th element of the whole dataset, from that of the number `first` on.
      rows: How many of its elements are here, from its beginning on.
      most_rows: How many of them have been here at the same time, at most, when a worker was lost.
    """

    id: int
    first: int
    last: int
    whole: bool = False
    worker: bytes = b""
    shard: bool = False
    rows: int = 0
    most_rows: int = 0


@attrs.frozen(eq=False)
class Read:
    """Something to ask a worker for: the next elements of a range.

    Attributes:
      worker: The id of the worker.
      range: The range.
      begins: Whether it begins there, with the element after those that are here.
    """

    worker: bytes
    range: TakenRange
    begins: bool


@attrs.frozen
class Take:
    """What to tell the dispatcher, and how many ranges to ask it for; the same until it has answered.

    Attributes:
      number: One more each time.
      want: How many ranges.
      finished: The ids of those that are read, or are not to be read any further.
      given_back: The ids of those that others are to read.
      waits: Whether the consumer can do nothing until it hears more, and has not done with all that it has got.
    """

    number: int
    want: int
    finished: tuple[int, ...] = ()
    given_back: tuple[int, ...] = ()
    waits: bool = False


@attrs.define(eq=False)
class _Place:
    """A worker, whether it can be reached and is still on the list, what it reads, and what of that is on its way."""

    id: bytes
    is_there: bool = True
    is_listed: bool = True
    range: TakenRange | None = None
    asked: Read | None = None


class PassPlan:
    """One pass of one consumer.

    Args:
      guarantee: What becomes of the elements that a lost worker was about to send.
      max_requests: How much may be on its way or wait to be consumed before nobody asks for more, in blocks; by default
        some for each worker.
      one_each: Whether each split is one element, so that it is known how many a range has.

    Attributes:
      is_exhausted: Whether there are no more ranges to take.
      missing: How many elements were lost; `None` if some were, and it is not known how many.
    """

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        max_requests: int | None = None,
        one_each: bool = False,
    ) -> None:
        self.is_exhausted = False
        self.missing: int | None = 0
        self._guarantee = guarantee
        self._max_requests = max_requests
        self._one_each = one_each
        self._ranges: deque[TakenRange] = deque()  # which nobody reads at the moment
        self._places: dict[bytes, _Place] = {}
        # Elements, and in place of them the end of a range.
        self._waiting: deque[tuple[TakenRange, Column | None]] = deque()
        self._blocks_waiting = 0
        self._acknowledgements = Acknowledgements()
        self._asking: Take | None = None
        self._next_number = 0
        self._told_others: tuple[int, bool] = (0, False)
        self._is_asked = False
        self._in_work = 0
        # In a row over the same element of a range.
        self._ledger = LossLedger()

    # The dispatcher.

    def resume(self, ranges: Iterable[TakenRange], positions: Position, next_number: int) -> None:
        """Goes on with what was taken before, after the position that the consumer has reached since."""
        self._next_number = next_number
        for one in ranges:
            if one.id in positions.finished:
                self._acknowledgements.finish(one.id)
            else:
                one.rows = positions.rows.get(one.id, 0)
                self._acknowledgements.begin(one.id, one.rows)
                self._ranges.append(one)

    def take(self, must: bool = False) -> Take | None:
        """Returns what to ask the dispatcher; the same again until it has answered.

        Args:
          must: Whether it has to hear something in any case, as a sign of life.
        """
        if self._asking is None:
            ahead = _RANGES_AHEAD * max(1, len(self._usable))
            lacking = ahead - len(self._ranges)
            want = 0 if self.is_exhausted or lacking * 2 < ahead else lacking
            if want or must:
                finished = tuple(self._acknowledgements.take_finished())
                self._asking = Take(self._next_number, want, finished, waits=self.waits)
                self._next_number += 1
                self._told_others = 0, self._asking.waits
        return self._asking

    @property
    def others_wait(self) -> bool:
        """Whether other consumers may wait to hear that this one has done with all that it had."""
        is_idle = not (self.is_exhausted or self._waiting or self.has_work)
        return is_idle and self._guarantee is Guarantee.AT_LEAST_ONCE

    @property
    def waits(self) -> bool:
        """Whether the consumer can do nothing until it hears more, and has not done with all that it has got.

        That stays so until the dispatcher has answered: a step keeps elements back until others come, or the end.
        """
        return self._is_asked and not self._in_work and self.others_wait and not self._acknowledgements.is_done

    def news_for_others(self) -> Take | None:
        """Returns what to tell them while the dispatcher has not answered; the next `take` says it again."""
        finished = tuple(self._acknowledgements.finished_since)
        news = len(finished), self.waits
        if self._asking is None or not self.others_wait or news <= self._told_others:
            return None
        self._told_others = news
        return Take(self._asking.number, 0, finished, waits=self.waits)

    def took(self, ranges: Iterable[TakenRange], is_exhausted: bool) -> None:
        """The dispatcher has answered."""
        self._asking = None
        self._ranges.extend(ranges)
        self.is_exhausted = self.is_exhausted or is_exhausted

    def pass_over(self, id: int) -> None:
        """A range is not to be read."""
        self._acknowledgements.finish(id)

    def leave(self, may_resume: bool = False) -> Take:
        """Returns the last that the dispatcher hears: what is read, and what others may read.

        Args:
          may_resume: Whether this comes back, and goes on with what it has taken.
        """
        unheard = () if self._asking is None else self._asking.finished
        finished = (*unheard, *self._acknowledgements.take_finished())
        begun = (place.range for place in self._places.values() if place.range is not None)
        all_taken = {one.id for one in (*self._ranges, *begun, *(one for one, _ in self._waiting))}
        # Of these no element has been handed out.
        untouched = () if may_resume else sorted(id for id in all_taken if not self._acknowledgements.has_begun(id))
        return Take(self._next_number, 0, finished, tuple(untouched))

    # The workers.

    def list_workers(self, ids: Sequence[bytes]) -> list[bytes]:
        """The dispatcher knows these workers; returns those that read here and that it does not know any more."""
        for id in ids:
            self._places.setdefault(id, _Place(id))
        for place in list(self._places.values()):
            place.is_listed = place.id in ids
            if not place.is_listed and place.range is None:
                del self._places[place.id]
        return [place.id for place in self._places.values() if not place.is_listed]

    @property
    def _usable(self) -> list[_Place]:
        return [place for place in self._places.values() if place.is_there and place.is_listed]

    @property
    def has_workers(self) -> bool:
        """Whether there is a worker that can be asked."""
        return any(place.is_there for place in self._places.values())

    @property
    def away(self) -> list[bytes]:
        """The workers that got lost, and are still on the dispatcher's list."""
        return [place.id for place in self._places.values() if not place.is_there]

    def lose(self, worker: bytes, error: Exception, was_there: bool = True) -> int:
        """A worker cannot be reached.

        Args:
          worker: Its id.
          error: Why.
          was_there: Whether it may have got what it was sent, and was ended by that.

        Returns:
          How many elements are missing for it; −1 if some are, and it is not known how many.

        Raises:
          WorkerUnavailableError: If the same element has cost too many workers already.
        """
        place = self._places.get(worker)
        if place is None:
            return 0
        place.is_there = False
        one, place.range, place.asked = place.range, None, None
        if not place.is_listed:
            del self._places[worker]
        if one is None:
            return 0
        if one.rows > one.most_rows:
            one.most_rows = one.rows
            self._ledger.forget(one)
        if was_there:
            self._ledger.lose(one, worker)
        return self._put_back(one, error)

    def _put_back(self, one: TakenRange, error: Exception) -> int:
        one.worker = b""
        if not self._ledger.is_enough(one):
            if self._guarantee is Guarantee.AT_LEAST_ONCE:
                one.rows = 0
            self._ranges.appendleft(one)
            return 0
        if self._guarantee is Guarantee.AT_MOST_ONCE:
            self._hand_over(one, None)
            missing = one.last - one.first - one.rows if self._one_each else -1
            self.missing = None if missing < 0 or self.missing is None else self.missing + missing
            return missing
        raise WorkerUnavailableError(
            f"{self._ledger.losses(one)} workers in a row got lost over the element {one.most_rows} of "
            f"splits {one.first} to {one.last - 1}; see why, in their logs; the last one: {error}"
        ) from error

    def found(self, worker: bytes) -> None:
        """A worker that got lost can be reached again."""
        if worker in self._places:
            self._places[worker].is_there = True

    # Reading.

    def reads(self) -> list[Read]:
        """Returns where to ask for elements now; each time for those after the ones that have arrived."""
        most = self._max_requests or AHEAD * max(1, len(self._usable))
        room = most - self._blocks_waiting - sum(place.asked is not None for place in self._places.values())
        found: list[Read] = []
        for place in self._places.values():
            if place.asked is not None or not place.is_there or room <= len(found):
                continue
            begins = place.range is None
            if begins and place.is_listed:
                place.range = self._next_range(place)
            if place.range is not None:
                place.asked = Read(place.id, place.range, begins)
                found.append(place.asked)
        return found

    def _next_range(self, place: _Place) -> TakenRange | None:
        for index, one in enumerate(self._ranges):
            bound = self._places.get(one.worker)
            if bound is None or bound is place or not (bound.is_there and bound.is_listed):
                del self._ranges[index]
                return one
        return None

    def arrive(self, read: Read, columns: Sequence[Column]) -> None:
        """Elements have come; none after the last ones of the range."""
        place = self._places.get(read.worker)
        if place is None or place.asked is not read:
            return  # the worker got lost since
        place.asked = None
        for column in columns:
            read.range.rows += len(column)
            self._hand_over(read.range, column)
        if not columns:
            self._hand_over(read.range, None)
            self._ledger.forget(read.range)
            place.range = None
            if not place.is_listed:
                del self._places[place.id]

    def _hand_over(self, one: TakenRange, column: Column | None) -> None:
        self._waiting.append((one, column))
        self._blocks_waiting += column is not None
        self._hand_out_ends()

    def _hand_out_ends(self) -> None:
        """Hands out the ends of ranges that nothing waits before: nobody asks for those."""
        while self._waiting and self._waiting[0][1] is None:
            self._acknowledgements.hand_out(self._waiting.popleft()[0].id, 0, True)

    # The consumer.

    def ask(self) -> None:
        """The consumer does nothing until there are elements, but for what is in work elsewhere."""
        self._is_asked = True

    def work_on(self, blocks: int) -> None:
        """It has so many blocks in work while it asks for others, as a prefetch does."""
        self._in_work = blocks

    def next(self) -> Column | None:
        """Returns the next elements, if they are here."""
        if not self._waiting:
            return None
        one, column = self._waiting.popleft()
        assert column is not None, "ends have been handed out"
        self._blocks_waiting -= 1
        self._is_asked = False
        self._acknowledgements.hand_out(one.id, len(column), False)
        self._hand_out_ends()
        return column

    @property
    def has_arrived(self) -> bool:
        """Whether there may be elements to hand out."""
        return bool(self._blocks_waiting)

    @property
    def is_over(self) -> bool:
        """Whether everything has been handed out."""
        return self.is_exhausted and not (self._blocks_waiting or self.has_work)

    @property
    def has_work(self) -> bool:
        """Whether there is something to read."""
        return bool(self._ranges) or any(place.range for place in self._places.values())

    def acknowledge(self, rows: int | None) -> None:
        """Acknowledges the first `rows` elements, or all that the consumer has got."""
        self._acknowledgements.acknowledge(rows)

    def position(self, rows: int) -> Position:
        """Returns the place after so many elements since the beginning."""
        return self._acknowledgements.position(rows)

    def __repr__(self) -> str:
        reading = sum(place.range is not None for place in self._places.values())
        return f"<PassPlan: {reading} ranges in reading, {len(self._ranges)} ahead, {self._blocks_waiting} blocks wait>"
