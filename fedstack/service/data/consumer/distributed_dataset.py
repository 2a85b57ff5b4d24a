"""Reads datasets from data workers. The leading steps of a dataset run on the workers, later steps in this process."""

import itertools
import math
import threading
from collections.abc import Sequence
from typing import cast

import attrs

from fedstack.computations.types.language import Type
from fedstack.errors import CarrierError, InvalidComputationError, InvalidValueError
from fedstack.foundations.draws import draw_id
from fedstack.foundations.error_text import counted, name_text
from fedstack.proto.data_service_pb2 import OpenPassRequest, PassCursor
from fedstack.service.data.consumer.acknowledgements import Position
from fedstack.service.data.consumer.connections import Connections, Opening
from fedstack.service.data.consumer.descriptions import (
    KnownDataset,
    ShardingPolicy,
    Terms,
    position_of,
    registered,
    written_cursor,
)
from fedstack.service.data.consumer.pass_driver import PassDriver
from fedstack.service.data.consumer.pass_plan import Guarantee, PassPlan
from fedstack.service.data.datasets.dataset import Dataset
from fedstack.service.data.datasets.elements import ElementIterator, Shown
from fedstack.service.data.datasets.rearranging_steps import PrefetchStep
from fedstack.service.data.datasets.sources import Source
from fedstack.service.data.datasets.steps import Step, Upstream
from fedstack.service.data.reading.blocks import without_first
from fedstack.service.data.reading.budget import Blocks
from fedstack.service.data.reading.readers import AHEAD

# The maximum time in seconds that the end of an iteration waits until the dispatcher has been notified.
_END_SECONDS = 1.0


class DistributedSource(Source):
    """A source of the elements that data workers send. Each iteration is a new pass.

    Args:
      known: The dataset to read.
      terms: The options with which the dataset is read.
      connections: The connections to the dispatcher and its workers.
    """

    def __init__(self, known: KnownDataset, terms: Terms, connections: Connections) -> None:
        is_all = terms.policy is ShardingPolicy.OFF and bool(known.after)
        self.is_whole = is_all or terms.policy is ShardingPolicy.DATA
        super().__init__(known.element if self.is_whole else known.split_element, 1)
        self._known = known
        self._terms = terms
        self._connections = connections
        resume = terms.resume
        self._repetitions = itertools.count(0 if resume is None else resume.repetition)
        self._consumer = draw_id() if resume is None else resume.consumer

    @property
    def size(self) -> float | None:
        known = self._known
        size = known.cardinality if self.is_whole else known.size
        # The number is unknown if each worker sends a copy, if consumers share a job, or if the pass is resumed.
        is_all = self._terms.policy is not ShardingPolicy.OFF and not (self._terms.job_name or self._terms.resume)
        return size if is_all or size in (0, math.inf) else None

    def begin(self) -> PassDriver:
        """Starts the next pass."""
        known, terms, repetition = self._known, self._terms, next(self._repetitions)
        resumed = terms.resume if terms.resume is not None and repetition == terms.resume.repetition else None
        is_row = known.size == known.description.num_splits and not self.is_whole
        plan = PassPlan(terms.guarantee, max_requests=terms.max_requests, one_each=is_row)
        request = OpenPassRequest(
            digest=known.description.digest,
            job_name=terms.job_name,
            repetition=repetition,
            policy=terms.policy.name,
            guarantee=terms.guarantee.name,
            target_workers=terms.target_workers,
            consumer=self._consumer,
            resumes=resumed is not None,
            opening=draw_id(),
            commit=None if resumed is None else resumed.commit,
        )
        position = Position() if resumed is None else position_of(resumed)
        ahead = min(AHEAD, terms.max_requests or AHEAD)
        opening = Opening(request, known.description.num_splits, self.element, position, terms.timeout, ahead)
        driver = PassDriver(plan, self._connections, opening, lambda: registered(known, self._connections.dispatcher))
        driver.begin()
        return driver

    def read_split(self, split: int, start: int = 0) -> Blocks:
        return without_first(DistributedDataset(self).blocks(), start)

    @property
    def is_resumable(self) -> bool:
        """Whether passes have cursors."""
        return self._terms.guarantee is Guarantee.EXACTLY_ONCE

    def __reduce__(self) -> "tuple[type[DistributedSource], tuple[KnownDataset, Terms, Connections]]":
        """Supports pickling, because functions that are sent to other processes may refer to a dataset.

        The other processes become separate consumers.

        Raises:
          CarrierError: If the dataset resumes from a cursor, because only one consumer may continue from a cursor.
        """
        if self._terms.resume is not None:
            raise CarrierError(
                "A dataset that resumes from a cursor cannot be sent to another process, because only one consumer "
                "may continue from the cursor; pass resume in the other process instead"
            )
        return DistributedSource, (self._known, self._terms, self._connections)

    def cursor(self, driver: PassDriver, rows: int) -> bytes:
        """Returns the cursor of a pass after `rows` elements.

        Raises:
          InvalidValueError: If the pass cannot be resumed.
        """
        if not self.is_resumable:
            raise InvalidValueError(
                f"Expected the guarantee 'exactly_once' for a cursor, found {self._terms.guarantee.value!r}; pass "
                "guarantee='exactly_once' to distribute"
            )
        request, position = driver.opening.request, driver.position(rows)
        # The commit is read after the position, so that the commit is not older than the position.
        cursor = PassCursor(
            commit=driver.commit,
            digest=request.digest,
            job_name=request.job_name,
            policy=self._terms.policy.name,
            repetition=request.repetition,
            consumer=request.consumer,
            finished=position.finished,
            begun=[PassCursor.Begun(range=id, rows=rows) for id, rows in position.rows.items()],
            left_out=position.left_out,
        )
        return written_cursor(cursor)

    def __repr__(self) -> str:
        shown = name_text(self._known.description.dataset_id)
        return f"{shown!r} distributed {self._terms.policy.name} by {self._connections.dispatcher.address}"


class Passes:
    """The consecutive passes of one iteration.

    Args:
      source: The source, which starts the passes.
      steps: The steps to apply to the elements in this process.

    Attributes:
      made: The number of elements that the steps have yielded to the caller.
    """

    def __init__(self, source: DistributedSource, steps: Sequence[Step]) -> None:
        self.made = 0
        self._source = source
        self._steps = steps
        self._driver: PassDriver | None = None
        self._lost: int | None = 0
        self._is_over = False
        self._in_work = 0
        self._counting = threading.Lock()

    def next(self) -> Blocks:
        """Starts a pass and yields its elements."""
        self._leave()
        driver = self._driver = self._source.begin()
        if self._in_work:
            self.work_on(0)
        yield from without_first(iter(driver.take, None), driver.opening.position.left_out)

    def _taken(self, made: int) -> int | Step:
        """Returns the number of elements of the pass after which the steps have yielded `made` elements.

        If a step makes it impossible to determine the number, the step is returned instead.
        """
        for step in reversed(self._steps):
            found = step.taken(made)
            if found is None:
                return step
            made = found
        return made + (0 if self._driver is None else self._driver.opening.position.left_out)

    def work_on(self, more: int) -> None:
        """Adds to the number of blocks that are being processed by threads other than the driver's caller."""
        with self._counting:
            self._in_work += more
            driver = self._driver
            if driver is not None:
                driver.work_on(self._in_work)

    def keep(self) -> None:
        """Keeps the pass resumable after an interruption, because the caller may request a cursor."""
        if self._driver is not None and self._source.is_resumable:
            self._driver.keep()

    def acknowledge(self) -> None:
        """Records that the caller has finished all yielded elements."""
        taken = self._taken(self.made)
        if self._driver is not None and isinstance(taken, int):
            self._driver.acknowledge(taken)

    def cursor(self, made: int) -> bytes:
        """Returns the cursor after `made` elements.

        Raises:
          InvalidComputationError: If the position cannot be determined because of a step.
          InvalidValueError: If the iteration has not begun or has ended, or the guarantee is not `"exactly_once"`.
        """
        taken = self._taken(made)
        if isinstance(taken, Step):
            raise InvalidComputationError(
                f"Expected all steps after distribute to be resumable at any element, found {taken!r}; create the "
                "cursor from an iterator over the dataset without this step, and apply the step to its elements"
            )
        if self._driver is None or not self._driver.commit.number:
            at = "an iterator at its end" if self._is_over else "a new iterator; read an element first"
            raise InvalidValueError(
                f"Expected an iterator positioned after its first element and before its end, found {at}"
            )
        return self._source.cursor(self._driver, taken)

    @property
    def missing(self) -> int | None:
        """The number of elements lost with their workers; `None` if elements were lost but their number is unknown."""
        now = 0 if self._driver is None else self._driver.missing
        return None if now is None or self._lost is None else now + self._lost

    def _leave(self, seconds: float = 0.0) -> None:
        if self._driver is not None:
            self._driver.acknowledge(None)
            self._driver.close(seconds)
            self._lost, self._driver = self.missing, None

    def end(self) -> None:
        """Ends the iteration after the caller has received all elements."""
        self._leave(_END_SECONDS)
        self._is_over = True

    def close(self) -> None:
        """Stops reading. Idempotent. Any thread may call this method."""
        if self._driver is not None:
            self._driver.close()

    def __repr__(self) -> str:
        return f"{self._source!r}, {counted(self.made, 'element')} made"


@attrs.frozen
class _CountedPrefetch(Step):
    """A prefetch step that counts the blocks that have been prepared but not yet processed by the caller."""

    step: PrefetchStep
    passes: Passes
    keeps_count = True

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        def made(epoch: int) -> Blocks:
            for block in upstream(epoch):
                self.passes.work_on(1)
                yield block

        for block in self.step.run(attrs.evolve(upstream, start=made), element, epoch):
            yield block
            self.passes.work_on(-1)


class DistributedDataset(Dataset):
    """A dataset that data workers read, returned by `distribute` and `from_dataset_id`.

    Each iteration is a pass. The steps of the original dataset run on the workers, and steps that are added to the
    distributed dataset run in this process.
    """

    def blocks(self) -> Blocks:
        return self._over(Passes(cast(DistributedSource, self._source), self._steps))

    def _over(self, passes: Passes) -> Blocks:
        try:
            steps = [_CountedPrefetch(one, passes) if isinstance(one, PrefetchStep) else one for one in self._steps]
            for block in self._run(Upstream(lambda _: passes.next()), steps):
                passes.made += len(block)
                yield block
                passes.acknowledge()
            passes.end()
        except GeneratorExit:
            raise
        except BaseException:
            passes.keep()
            raise
        finally:
            passes.close()

    def __iter__(self) -> "DistributedIterator":
        passes = Passes(cast(DistributedSource, self._source), self._steps)
        return DistributedIterator(passes, self._over(passes), self._shown)

    __aiter__ = __iter__


class DistributedIterator(ElementIterator):
    """Iterates over the elements of a distributed dataset, in a `for` or `async for` loop."""

    def __init__(self, passes: Passes, blocks: Blocks, shown: Shown | None) -> None:
        # The number of elements that have been received, and the number that had been yielded when the iterator was
        # closed.
        self._given = 0
        self._had: int | None = None
        super().__init__(blocks, shown)
        self._passes = passes

    def _go_on(self, some: Sequence[object]) -> None:
        self._given += len(some)
        super()._go_on(some)

    def cursor(self) -> bytes:
        """Returns a cursor for the position after the latest element.

        Pass the cursor to `distribute` as `resume` to continue from this position. A cursor is also available after an
        error, but not before the first element has been requested or after the last element.

        Raises:
          InvalidValueError: If the guarantee is not `"exactly_once"`, or the iterator is new or at its end.
          InvalidComputationError: If the position cannot be determined because of a step after `distribute`, such as a
            shuffle.
          ClosedError: If the iterator was closed before a cursor was available.
        """
        return self._passes.cursor(self._given - self._left if self._had is None else self._had)

    @property
    def missing(self) -> int | None:
        """The number of elements lost with workers so far; `None` if any were lost but their number is unknown."""
        return self._passes.missing

    def close(self) -> None:
        """Stops reading, so that other consumers can read the remaining elements. Idempotent."""
        if self._had is None:
            self._had = self._given - self._left
        self._passes.close()
        super().close()

    def _interrupt(self) -> None:
        self._passes.keep()
        self.close()

    def __repr__(self) -> str:
        return f"<DistributedIterator of {self._passes!r}>"
