"""Cuts the splits of a pass into ranges, hands them out, and notes what becomes of them.

Nothing here waits. Each function is a part of a transaction over the tables of a journal.
"""

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import attrs

from fedstack.proto.data_service_pb2 import OpenPassRequest, SplitRange
from fedstack.service.data.dispatcher.journal import Tables

Guarantee, Policy = OpenPassRequest.Guarantee, OpenPassRequest.Policy
# SQLite's integers have a sign.
MOST_NUMBER = 1 << 62
_MOST_SPLITS_AT_ONCE = 16_384
_MOST_RANGES_AT_ONCE = 64
# What is left is cut into so many ranges for each reader and consumer: the last ones are small, and all end together.
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
    """Puts all splits of a pass that begins where ranges are cut from; for each worker apart, when that comes.

    Args:
      tables: What is known.
      one: The pass.
      places: How many addresses of workers are known beforehand.
      file_splits: In how many splits each file is read.
    """
    if one.policy == Policy.DYNAMIC:
        _add_list(tables, one, _ANY_WORKER)
    shares: list[tuple[int, int, int]] = []  # of which place, from and to which split
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
    """Returns the worker that is to read what a list has, as far as it is there."""
    worker = key
    if one.policy in (Policy.FILE, Policy.DATA):
        place = int.from_bytes(key[:_PLACE_BYTES], "big")
        worker = assigned[place] if place < len(assigned) else _ANY_WORKER
    return worker if worker in workers else _ANY_WORKER


def _add_list(tables: Tables, one: Pass, worker: bytes) -> None:
    # Whole datasets are read at once, also where they have no split.
    tables.execute(
        "INSERT OR IGNORE INTO lists VALUES (?, ?, 0, ?)", (one.id, worker, 1 if one.is_whole else one.num_splits)
    )


def settle(tables: Tables, one: Pass, consumer: bytes, finished: Iterable[int], given_back: Iterable[int]) -> bool:
    """Notes what has become of ranges; returns whether that concerns others."""
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
    """Gives ranges to a consumer: first those that others have left, then such as are cut now."""
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
    # Of lists for a worker each, the one that is behind.
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
    """Returns whether a consumer gets nothing any more.

    Args:
      tables: What is known.
      one: The pass.
      consumer: The consumer.
      may_end_first: Whether it may end before others that wait for it as it does for them.
    """
    for query, values in (
        ("SELECT 1 FROM lists WHERE pass = ? AND next < last", (one.id,)),
        ("SELECT 1 FROM ranges WHERE pass = ? AND consumer IS NULL", (one.id,)),
    ):
        if tables.execute(query, values).fetchone():
            return False
    if not tables.execute("SELECT 1 FROM lists WHERE pass = ?", (one.id,)).fetchone():
        return False  # each worker reads all of it, and none has come yet
    if one.guarantee != Guarantee.AT_LEAST_ONCE:
        return True
    # Others may be lost, and what they have not finished is read again.
    others = "SELECT 1 FROM ranges WHERE pass = ? AND consumer != ? AND is_finished = 0"
    some = tables.execute(others, (one.id, consumer)).fetchone()
    return some is None or (may_end_first and _all_wait(tables, one, consumer))


def begin_wait(tables: Tables, one: Pass, consumer: bytes) -> bool:
    """Notes that a consumer can do nothing until it hears more; returns whether that is news."""
    return bool(tables.execute("INSERT OR IGNORE INTO waiting VALUES (?, ?)", (one.id, consumer)).rowcount)


def end_wait(tables: Tables, one: Pass, consumer: bytes) -> None:
    """Notes that it has heard, or is gone."""
    tables.execute("DELETE FROM waiting WHERE pass = ? AND consumer = ?", (one.id, consumer))


def _all_wait(tables: Tables, one: Pass, consumer: bytes) -> bool:
    """Returns whether all that have something wait, and this consumer is one of them.

    Once it has heard that it is to end it does not wait. The next one hears that when this one has finished; if it is
    lost before, others get what it had.
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
    """Lists what a consumer has taken, as far as that is kept."""
    return [_message(one, row, row[4]) for row in _rows(tables, one, "consumer = ? ORDER BY id", consumer)]


def free(tables: Tables, one: Pass, consumer: bytes) -> bool:
    """Does what is guaranteed with the ranges of a consumer that is gone; returns whether others get them."""
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
