"""Decides for a consumer in a pass which ranges to take, which workers to read from, and which elements to give up.

A plan is a state machine without tasks, threads or clocks: it receives events and returns decisions, which a driver
carries out.
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

# The number of ranges to keep ready for each worker, so that reading continues for a while if the dispatcher is lost.
_RANGES_AHEAD = 2


class Guarantee(enum.Enum):
    """How often each element arrives if workers or consumers are lost."""

    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


@attrs.define(eq=False)
class TakenRange:
    """A range of consecutive splits, and the progress of reading it.

    Attributes:
      id: The id of the range.
      first: The first split.
      last: The end of the splits, exclusive.
      whole: Whether the range is the whole dataset, including the steps that need all elements.
      worker: The id of the worker that must read the range; empty for any worker.
      shard: Whether the range is every `last`-th element of the whole dataset, starting with element `first`.
      rows: The number of elements of the range that have arrived, counted from its beginning.
      most_rows: The highest value of `rows` at which a worker was lost.
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
    """A request to a worker for the next elements of a range.

    Attributes:
      worker: The id of the worker.
      range: The range.
      begins: Whether the worker starts reading the range with this request, after the elements that have arrived.
    """

    worker: bytes
    range: TakenRange
    begins: bool


@attrs.frozen
class Take:
    """A request to the dispatcher. It stays the same until the dispatcher has answered.

    Attributes:
      number: The sequence number of the request, which increases by one with each request.
      want: The number of ranges to request.
      finished: The ids of ranges that have been read, or are not to be read further.
      given_back: The ids of ranges that other consumers should read.
      waits: Whether the consumer cannot proceed without an answer, although it has unacknowledged elements.
    """

    number: int
    want: int
    finished: tuple[int, ...] = ()
    given_back: tuple[int, ...] = ()
    waits: bool = False


@attrs.define(eq=False)
class _Place:
    """A worker: whether it is reachable and listed, the range that it reads, and its pending request."""

    id: bytes
    is_there: bool = True
    is_listed: bool = True
    range: TakenRange | None = None
    asked: Read | None = None


class PassPlan:
    """One consumer's plan for one pass.

    Args:
      guarantee: Determines whether the elements that a lost worker was about to send are read again.
      max_requests: The maximum number of blocks that are requested or waiting for the consumer; by default a few for
        each worker.
      one_each: Whether each split is one element, so that the number of elements of a range is known.

    Attributes:
      is_exhausted: Whether the dispatcher has no more ranges to assign.
      missing: The number of lost elements; `None` if elements were lost, but their number is not known.
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
        self._ranges: deque[TakenRange] = deque()  # the ranges that no worker is reading at the moment
        self._places: dict[bytes, _Place] = {}
        # Pairs of a range and some of its elements, or `None` for the end of the range.
        self._waiting: deque[tuple[TakenRange, Column | None]] = deque()
        self._blocks_waiting = 0
        self._acknowledgements = Acknowledgements()
        self._asking: Take | None = None
        self._next_number = 0
        self._told_others: tuple[int, bool] = (0, False)
        self._is_asked = False
        self._in_work = 0
        # Counts consecutive losses of workers at the same element of a range.
        self._ledger = LossLedger()

    # The dispatcher.

    def resume(self, ranges: Iterable[TakenRange], positions: Position, next_number: int) -> None:
        """Continues, from the consumer's position, with ranges that were taken earlier."""
        self._next_number = next_number
        for one in ranges:
            if one.id in positions.finished:
                self._acknowledgements.finish(one.id)
            else:
                one.rows = positions.rows.get(one.id, 0)
                self._acknowledgements.begin(one.id, one.rows)
                self._ranges.append(one)

    def take(self, must: bool = False) -> Take | None:
        """Returns the request to send to the dispatcher, or `None` if no request is necessary.

        The request stays the same until the dispatcher has answered.

        Args:
          must: Whether to return a request in any case, because the lease must be renewed.
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
        """Whether other consumers may be waiting until this consumer has finished all its ranges."""
        is_idle = not (self.is_exhausted or self._waiting or self.has_work)
        return is_idle and self._guarantee is Guarantee.AT_LEAST_ONCE

    @property
    def waits(self) -> bool:
        """Whether the consumer cannot proceed without an answer, although it has unacknowledged elements.

        The cause is a step that keeps elements until it receives more elements or the end of the pass.
        """
        return self._is_asked and not self._in_work and self.others_wait and not self._acknowledgements.is_done

    def news_for_others(self) -> Take | None:
        """Returns a request with news for other consumers, or `None` if there is no news or no pending request.

        The next `take` repeats the news.
        """
        finished = tuple(self._acknowledgements.finished_since)
        news = len(finished), self.waits
        if self._asking is None or not self.others_wait or news <= self._told_others:
            return None
        self._told_others = news
        return Take(self._asking.number, 0, finished, waits=self.waits)

    def took(self, ranges: Iterable[TakenRange], is_exhausted: bool) -> None:
        """Records the dispatcher's answer."""
        self._asking = None
        self._ranges.extend(ranges)
        self.is_exhausted = self.is_exhausted or is_exhausted

    def pass_over(self, id: int) -> None:
        """Marks as finished a range that this consumer does not read."""
        self._acknowledgements.finish(id)

    def leave(self, may_resume: bool = False) -> Take:
        """Returns the last request to the dispatcher, with the finished ranges and the ranges to return.

        Args:
          may_resume: Whether this consumer keeps its ranges, because it may return later and continue with them.
        """
        unheard = () if self._asking is None else self._asking.finished
        finished = (*unheard, *self._acknowledgements.take_finished())
        begun = (place.range for place in self._places.values() if place.range is not None)
        all_taken = {one.id for one in (*self._ranges, *begun, *(one for one, _ in self._waiting))}
        # The consumer has not received any element of these ranges.
        untouched = () if may_resume else sorted(id for id in all_taken if not self._acknowledgements.has_begun(id))
        return Take(self._next_number, 0, finished, tuple(untouched))

    # The workers.

    def list_workers(self, ids: Sequence[bytes]) -> list[bytes]:
        """Records the dispatcher's list of workers; returns the unlisted workers that are still reading a range."""
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
        """Whether any worker is reachable."""
        return any(place.is_there for place in self._places.values())

    @property
    def away(self) -> list[bytes]:
        """The workers that were lost but are still on the dispatcher's list."""
        return [place.id for place in self._places.values() if not place.is_there]

    def lose(self, worker: bytes, error: Exception, was_there: bool = True) -> int:
        """Records the loss of a worker.

        Args:
          worker: The id of the worker.
          error: The error that revealed the loss.
          was_there: Whether the worker may have received the request, and may have crashed because of it.

        Returns:
          The number of elements that are lost as a result; −1 if elements are lost, but their number is not known.

        Raises:
          WorkerUnavailableError: If too many workers have been lost at the same element.
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
            f"{self._ledger.losses(one)} workers in a row were lost at element {one.most_rows} of "
            f"splits {one.first} to {one.last - 1}; check their logs for the cause; the last error was: {error}"
        ) from error

    def found(self, worker: bytes) -> None:
        """Records that a lost worker is reachable again."""
        if worker in self._places:
            self._places[worker].is_there = True

    # Reading.

    def reads(self) -> list[Read]:
        """Returns the requests to send to workers now. Each requests the next elements of a range."""
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
        """Records the answer to a request; `columns` is empty at the end of the range."""
        place = self._places.get(read.worker)
        if place is None or place.asked is not read:
            return  # the worker was lost meanwhile
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
        """Removes the ends of ranges from the head of the queue, because the consumer only requests elements."""
        while self._waiting and self._waiting[0][1] is None:
            self._acknowledgements.hand_out(self._waiting.popleft()[0].id, 0, True)

    # The consumer.

    def ask(self) -> None:
        """Records that the consumer is waiting for elements. It may still be processing blocks; see `work_on`."""
        self._is_asked = True

    def work_on(self, blocks: int) -> None:
        """Records the number of blocks that the consumer is processing while it requests more, as a prefetch does."""
        self._in_work = blocks

    def next(self) -> Column | None:
        """Returns the next elements, or `None` if no elements have arrived."""
        if not self._waiting:
            return None
        one, column = self._waiting.popleft()
        assert column is not None, "ends of ranges have already been removed from the queue"
        self._blocks_waiting -= 1
        self._is_asked = False
        self._acknowledgements.hand_out(one.id, len(column), False)
        self._hand_out_ends()
        return column

    @property
    def has_arrived(self) -> bool:
        """Whether elements have arrived that the consumer has not received yet."""
        return bool(self._blocks_waiting)

    @property
    def is_over(self) -> bool:
        """Whether the consumer has received all elements."""
        return self.is_exhausted and not (self._blocks_waiting or self.has_work)

    @property
    def has_work(self) -> bool:
        """Whether any taken range has not been read completely."""
        return bool(self._ranges) or any(place.range for place in self._places.values())

    def acknowledge(self, rows: int | None) -> None:
        """Acknowledges the first `rows` elements, or all elements returned so far if `rows` is `None`."""
        self._acknowledgements.acknowledge(rows)

    def position(self, rows: int) -> Position:
        """Returns the position after the first `rows` elements of the pass."""
        return self._acknowledgements.position(rows)

    def __repr__(self) -> str:
        reading = sum(place.range is not None for place in self._places.values())
        return f"<PassPlan: {reading} ranges in reading, {len(self._ranges)} ahead, {self._blocks_waiting} blocks wait>"
