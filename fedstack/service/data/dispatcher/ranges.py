"""Cuts the splits of a pass into ranges, assigns the ranges to consumers, and records which ranges are finished.

The functions do not wait. Each function is part of a transaction on the tables of a journal.
"""

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import attrs

from fedstack.proto.data_service_pb2 import OpenPassRequest, SplitRange
from fedstack.service.data.dispatcher.journal import Tables

Guarantee, Policy = OpenPassRequest.Guarantee, OpenPassRequest.Policy
# SQLite's integers are signed.
MOST_NUMBER = 1 << 62
_MOST_SPLITS_AT_ONCE = 16_384
_MOST_RANGES_AT_ONCE = 64
# The next range contains 1 / (_SHARES * readers * consumers) of the remaining splits. The last ranges are therefore
# small, so that all readers finish at about the same time.
_SHARES = 4
_ANY_WORKER = b""
_PLACE_BYTES = 4


@attrs.frozen
class Pass:
    """A row of the table `passes`."""

    id: bytes
    job: str
    owner: bytes
    repetition: int
    digest: bytes
    policy: int
    guarantee: int
    target: str
    num_splits: int
    is_whole: bool
    next_range: int
    is_sealed: bool
    idle_since: float | None

    @property
    def is_shared(self) -> bool:
        return bool(self.job)

    @property
    def can_resume(self) -> bool:
        return self.guarantee == Guarantee.EXACTLY_ONCE


def begin_lists(tables: Tables, one: Pass, places: int, file_splits: Sequence[int]) -> None:
    """Creates the lists from which the ranges of a new pass are cut. Under OFF, the list of a worker is created later.

    Args:
      tables: The tables of the journal.
      one: The pass.
      places: The number of configured worker addresses.
      file_splits: The number of splits of each file.
    """
    if one.policy == Policy.DYNAMIC:
        _add_list(tables, one, _ANY_WORKER)
    shares: list[tuple[int, int, int]] = []  # place, first split, end of splits
    if one.policy == Policy.DATA:
        shares = [(place, place, place + 1) for place in range(places)]
    elif one.policy == Policy.FILE:
        ends = [0, *itertools.accumulate(file_splits)]
        shares = [(file % places, *bounds) for file, bounds in enumerate(itertools.pairwise(ends))]
    rows = [
        (one.id, place.to_bytes(_PLACE_BYTES, "big") + number.to_bytes(_PLACE_BYTES, "big"), first, last)
        for number, (place, first, last) in enumerate(shares)
    ]
    tables.executemany("INSERT INTO lists VALUES (?, ?, ?, ?)", rows)


def _bound(one: Pass, key: bytes, workers: Collection[bytes], assigned: Sequence[bytes]) -> bytes:
    """Returns the worker that should read the ranges of a list, or `_ANY_WORKER` if that worker is not registered."""
    worker = key
    if one.policy in (Policy.FILE, Policy.DATA):
        place = int.from_bytes(key[:_PLACE_BYTES], "big")
        worker = assigned[place] if place < len(assigned) else _ANY_WORKER
    return worker if worker in workers else _ANY_WORKER


def _add_list(tables: Tables, one: Pass, worker: bytes) -> None:
    # A whole dataset is a single range, even if it has no splits.
    tables.execute(
        "INSERT OR IGNORE INTO lists VALUES (?, ?, 0, ?)", (one.id, worker, 1 if one.is_whole else one.num_splits)
    )


def settle(tables: Tables, one: Pass, consumer: bytes, finished: Iterable[int], given_back: Iterable[int]) -> bool:
    """Records which ranges a consumer has finished or given back, and returns whether this affects other consumers."""
    ours = [(one.id, consumer, id) for id in finished if id < MOST_NUMBER]
    back = [(one.id, consumer, id) for id in given_back if id < MOST_NUMBER]
    of_ours = "WHERE pass = ? AND consumer = ? AND id = ?"
    if one.can_resume:
        tables.executemany(f"UPDATE ranges SET is_finished = 1 {of_ours}", ours)
    else:
        tables.executemany(f"DELETE FROM ranges {of_ours}", ours)
    tables.executemany(f"UPDATE ranges SET consumer = NULL, worker = x'' {of_ours} AND is_finished = 0", back)
    return bool(back) or (bool(ours) and one.guarantee == Guarantee.AT_LEAST_ONCE)


def hand_out(
    tables: Tables,
    one: Pass,
    consumer: bytes,
    want: int,
    workers: Collection[bytes],
    assigned: Sequence[bytes] = (),
) -> Iterable[SplitRange]:
    """Assigns ranges to a consumer: first the ranges that other consumers have given back, then new ranges."""
    want = min(want, _MOST_RANGES_AT_ONCE)
    left = _rows(tables, one, "consumer IS NULL ORDER BY id LIMIT ?", want)
    for row in left:
        tables.execute("UPDATE ranges SET consumer = ? WHERE pass = ? AND id = ?", (consumer, one.id, row[0]))
        yield _message(one, row)
    if one.policy == Policy.OFF and want and not one.is_sealed:
        for worker in workers:
            _add_list(tables, one, worker)
    (consumers,) = tables.execute("SELECT count(*) FROM consumers WHERE pass = ? AND is_here = 1", (one.id,)).fetchone()
    readers = max(1, len(workers)) if one.policy == Policy.DYNAMIC else 1
    id = one.next_range
    # The list with the smallest next split.
    behind = "SELECT worker, next, last FROM lists WHERE pass = ? AND next < last ORDER BY next, worker"
    while id < one.next_range + want - len(left) and (found := tables.execute(behind, (one.id,)).fetchone()):
        bound, first, end = found
        share = (end - first) // (_SHARES * readers * consumers)
        last = first + min(max(1, share), _MOST_SPLITS_AT_ONCE)
        tables.execute("UPDATE lists SET next = ? WHERE pass = ? AND worker = ?", (last, one.id, bound))
        worker = _bound(one, bound, workers, assigned)
        row = (id, first, one.num_splits if one.is_whole else last, worker)
        tables.execute("INSERT INTO ranges VALUES (?, ?, ?, ?, ?, ?, 0)", (one.id, *row, consumer))
        yield _message(one, row)
        id += 1
    if id != one.next_range:
        tables.execute("UPDATE passes SET next_range = ? WHERE pass = ?", (id, one.id))


def is_exhausted(tables: Tables, one: Pass, consumer: bytes, may_end_first: bool = False) -> bool:
    """Returns whether all ranges for a consumer have been assigned.

    Args:
      tables: The tables of the journal.
      one: The pass.
      consumer: The consumer.
      may_end_first: Whether this consumer may end first if all consumers wait for each other.
    """
    for query, values in (
        ("SELECT 1 FROM lists WHERE pass = ? AND next < last", (one.id,)),
        ("SELECT 1 FROM ranges WHERE pass = ? AND consumer IS NULL", (one.id,)),
    ):
        if tables.execute(query, values).fetchone():
            return False
    if not tables.execute("SELECT 1 FROM lists WHERE pass = ?", (one.id,)).fetchone():
        return False  # each worker reads the whole dataset, and no worker has registered yet
    if one.guarantee != Guarantee.AT_LEAST_ONCE:
        return True
    # If other consumers are lost, this consumer may have to read their unfinished ranges.
    others = "SELECT 1 FROM ranges WHERE pass = ? AND consumer != ? AND is_finished = 0"
    some = tables.execute(others, (one.id, consumer)).fetchone()
    return some is None or (may_end_first and _all_wait(tables, one, consumer))


def begin_wait(tables: Tables, one: Pass, consumer: bytes) -> bool:
    """Records that a consumer waits for an answer, and returns whether it was not waiting before."""
    return bool(tables.execute("INSERT OR IGNORE INTO waiting VALUES (?, ?)", (one.id, consumer)).rowcount)


def end_wait(tables: Tables, one: Pass, consumer: bytes) -> None:
    """Records that a consumer has been answered or removed."""
    tables.execute("DELETE FROM waiting WHERE pass = ? AND consumer = ?", (one.id, consumer))


def _all_wait(tables: Tables, one: Pass, consumer: bytes) -> bool:
    """Returns whether this consumer has ranges and all consumers with unfinished ranges are waiting.

    The consumers then end one after the other. A consumer that has been notified to end no longer waits, and the next
    consumer is notified when this consumer has finished. If this consumer is lost before it has finished, other
    consumers receive its ranges.
    """
    its = "SELECT 1 FROM ranges WHERE pass = ? AND consumer = ?"
    busy = (
        "SELECT 1 FROM ranges WHERE pass = ? AND consumer NOT IN (SELECT consumer FROM waiting WHERE pass = ?) "
        "AND is_finished = 0"
    )
    return (
        tables.execute(its, (one.id, consumer)).fetchone() is not None
        and tables.execute(busy, (one.id, one.id)).fetchone() is None
    )


def taken(tables: Tables, one: Pass, consumer: bytes) -> Sequence[SplitRange]:
    """Returns the ranges that are assigned to a consumer and have not been deleted."""
    return [_message(one, row, row[4]) for row in _rows(tables, one, "consumer = ? ORDER BY id", consumer)]


def free(tables: Tables, one: Pass, consumer: bytes) -> bool:
    """Applies the pass's guarantee to the ranges of a removed consumer.

    Returns:
      Whether the ranges are assigned to other consumers.
    """
    if one.guarantee == Guarantee.AT_LEAST_ONCE:
        freed = "UPDATE ranges SET consumer = NULL, worker = x'' WHERE pass = ? AND consumer = ?"
        tables.execute(freed, (one.id, consumer))
    elif one.guarantee == Guarantee.AT_MOST_ONCE:
        tables.execute("DELETE FROM ranges WHERE pass = ? AND consumer = ?", (one.id, consumer))
    return one.guarantee == Guarantee.AT_LEAST_ONCE


def _rows(tables: Tables, one: Pass, where: str, *values: object) -> Sequence[tuple[Any, ...]]:
    query = f"SELECT id, first, last, worker, is_finished FROM ranges WHERE pass = ? AND {where}"
    return tables.execute(query, (one.id, *values)).fetchall()


def _message(one: Pass, row: tuple[Any, ...], is_finished: bool = False) -> SplitRange:
    id, first, last, worker = row[:4]
    return SplitRange(
        id=id,
        first=first,
        last=last,
        whole=one.is_whole,
        worker=worker,
        is_finished=bool(is_finished),
        shard=one.policy == Policy.DATA,
    )
