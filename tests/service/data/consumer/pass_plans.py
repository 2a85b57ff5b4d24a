"""Plans of passes that a test has brought to some point, and what workers and the consumer do then."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedstack.computations.values.columns import Column, ScalarColumn
from fedstack.service.data.consumer.pass_plan import Guarantee, PassPlan, Read, TakenRange

AT_MOST, AT_LEAST, EXACTLY = Guarantee
GONE = ConnectionError("gone")


def column(elements: Sequence[int]) -> Column:
    """Elements as a worker sends them."""
    return ScalarColumn(np.array(elements, np.int64))


def ranges(*ids: int, worker: bytes = b"") -> list[TakenRange]:
    """Ranges of ten splits each."""
    return [TakenRange(id, 10 * id, 10 * id + 10, worker=worker) for id in ids]


def plan_with(
    taken: Iterable[TakenRange],
    workers: Sequence[bytes] = (b"a",),
    guarantee: Guarantee = AT_MOST,
    is_exhausted: bool = False,
    **options: object,
) -> PassPlan:
    """A pass that has taken these ranges, with its first question, and knows these workers."""
    plan = PassPlan(guarantee, **options)  # type: ignore[arg-type]
    plan.list_workers(workers)
    plan.take()
    plan.took(taken, is_exhausted)
    return plan


def arrive(plan: PassPlan, read: Read, *sizes: int) -> None:
    """Blocks of so many elements come; none is the end of the range."""
    plan.arrive(read, [column(range(size)) for size in sizes])


def send(plan: PassPlan, *sizes: int) -> Read:
    """Has the only worker that can be asked now send blocks, or the end of its range."""
    (read,) = plan.reads()
    arrive(plan, read, *sizes)
    return read


def consume(plan: PassPlan) -> int:
    """Hands out all that is here; returns how many elements that are."""
    return sum(len(some) for some in iter(plan.next, None))
