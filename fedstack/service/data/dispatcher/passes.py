"""Keeps track of the passes over datasets and of their consumers, and answers the consumers' requests.

Nothing here waits, and callers pass in the time. Each function is (part of) a transaction over a journal's tables.
"""

from collections.abc import Collection, Sequence
from typing import Any

import attrs

from fedstack.errors import InvalidValueError, StaleSessionError
from fedstack.foundations.drawn_ids import draw_id
from fedstack.proto.data_service_pb2 import (
    DatasetDescription,
    OpenPassRequest,
    OpenPassResponse,
    ReleasePassRequest,
    TakeRequest,
    TakeResponse,
)
from fedstack.service.data.dispatcher.datasets import MAX_NAME_BYTES
from fedstack.service.data.dispatcher.journal import Tables
from fedstack.service.data.dispatcher.ranges import (
    MOST_NUMBER,
    Guarantee,
    Pass,
    Policy,
    begin_lists,
    begin_wait,
    end_wait,
    free,
    hand_out,
    is_exhausted,
    settle,
    taken,
)
from fedstack.service.host.limits import DispatcherLimits, exceeded

# A consumer that resumes skips this many numbers, so that late requests of its former self are always older.
_NUMBERS_SKIPPED = 1 << 32
_MAX_ID_BYTES = 64
_OF_PASSES = ("ranges", "consumers", "lists", "waiting", "passes")


@attrs.frozen
class Taken:
    """The answer to a consumer's request.

    Attributes:
      answer: The serialized message, without news of workers.
      is_empty: Whether there was no range for the consumer, but there may be later.
      wakes: Whether there may now be ranges for other consumers that wait.
    """

    answer: bytes
    is_empty: bool
    wakes: bool


def check_request(request: OpenPassRequest) -> None:
    """Checks a request by itself, without the tables.

    Raises:
      InvalidValueError: If it is invalid.
    """
    for what, size, most in (
        ("an id of the consumer", len(request.consumer), _MAX_ID_BYTES),
        ("opening", len(request.opening), _MAX_ID_BYTES),
        ("job_name", len(request.job_name.encode()), MAX_NAME_BYTES),
        ("target_workers", len(request.target_workers.encode()), MAX_NAME_BYTES),
    ):
        if size > most:
            raise InvalidValueError(f"Expected {what} of at most {most} bytes, found {size}")
    if not request.consumer or request.repetition > MOST_NUMBER:
        raise InvalidValueError(
            f"Expected a consumer with an id, and a repetition of at most {MOST_NUMBER}, found {request.consumer!r} "
            f"and {request.repetition}"
        )
    if request.policy not in Policy.values() or not request.policy or request.guarantee not in Guarantee.values():
        raise InvalidValueError(
            "Expected a sharding policy and a guarantee that this release supports, found "
            f"{request.policy} and {request.guarantee}"
        )


def open_pass(
    tables: Tables, request: OpenPassRequest, dataset: DatasetDescription, limits: DispatcherLimits, places: int
) -> OpenPassResponse:
    """Adds a consumer to a pass, which begins if it does not exist yet.

    Args:
      tables: The tables of the journal.
      request: The consumer's request.
      dataset: The dataset with the digest in the request.
      limits: The limits on the number of passes and consumers.
      places: The number of configured worker addresses.

    Raises:
      InvalidValueError: If the job is over another dataset or has other options; or the consumer asks to resume a pass
        that does not exist or cannot be resumed.
      ResourceLimitError: If there are too many passes or consumers.
    """
    wanted = _wanted(request)
    _check_job(tables, wanted)
    found = _find(tables, "job = ? AND owner = ? AND repetition = ?", wanted.job, wanted.owner, wanted.repetition)
    if found is not None and found.digest != wanted.digest:
        raise InvalidValueError("Expected a consumer with an id of its own, found one in use for another dataset")
    if request.resumes:
        _check_resumes(tables, found, request.consumer)
    one = found or _begin(tables, wanted, dataset, limits, places)
    row = _row(tables, one.id, request.consumer)
    if row is None:
        _make_room(tables, "consumers", limits, "max_consumers")
    number, answer, opening = row[1:] if row else (0, None, b"")
    if request.resumes and not (opening and opening == request.opening):
        number, answer = (number // _NUMBERS_SKIPPED + 1) * _NUMBERS_SKIPPED, None
    tables.execute(
        "INSERT OR REPLACE INTO consumers VALUES (?, ?, 1, ?, ?, ?)",
        (one.id, request.consumer, number, answer, request.opening),
    )
    tables.execute("UPDATE passes SET idle_since = NULL WHERE pass = ?", (one.id,))
    had = taken(tables, one, request.consumer)
    is_over = found is not None and not had and is_exhausted(tables, one, request.consumer)
    return OpenPassResponse(pass_id=one.id, taken=had, next_number=number + 1, is_over=is_over)


def take(
    tables: Tables, request: TakeRequest, workers: Collection[bytes], may_wait: bool, assigned: Sequence[bytes] = ()
) -> Taken:
    """Hands out ranges, and records what became of ranges handed out earlier.

    Args:
      tables: The tables of the journal.
      request: The consumer's request.
      workers: The ids of the workers that attend.
      may_wait: Whether the caller asks again, rather than answers, if there is no range.
      assigned: The ids of the workers at the configured addresses; empty where none attends.

    Raises:
      InvalidValueError: If another consumer with the same id has resumed since.
      StaleSessionError: If the pass or the consumer no longer exists.
    """
    one, is_here, number, answer, _ = _consumer(tables, request.pass_id, request.consumer)
    if request.number < number or request.number > MOST_NUMBER:
        raise InvalidValueError(
            f"Expected request {number + 1} of a consumer, found {request.number}; another process has resumed with "
            "its cursor since: resume with a cursor in one process at a time"
        )
    if request.number == number and answer is not None:
        return Taken(answer, is_empty=False, wakes=False)
    if not is_here:
        _revive(tables, one, request.consumer)
    wakes = settle(tables, one, request.consumer, request.finished, request.given_back)
    ranges = list(hand_out(tables, one, request.consumer, request.want, workers, assigned))
    if request.waits and begin_wait(tables, one, request.consumer):
        wakes = wakes or not request.want  # a consumer that wants nothing here waits in another request
    is_over = is_exhausted(tables, one, request.consumer, may_end_first=request.want > 0)
    if request.want and (ranges or is_over):
        end_wait(tables, one, request.consumer)
    if is_over and not one.is_sealed:
        tables.execute("UPDATE passes SET is_sealed = 1 WHERE pass = ?", (one.id,))
    answer = TakeResponse(range=ranges, is_exhausted=is_over).SerializeToString()
    is_empty = not (ranges or is_over)
    # An answer without a range may safely differ on a retry; while a request waits there is no answer yet.
    if request.want and not (is_empty and may_wait):
        tables.execute(
            "UPDATE consumers SET number = ?, answer = ? WHERE pass = ? AND consumer = ?",
            (request.number, answer, one.id, request.consumer),
        )
    return Taken(answer, is_empty, wakes)


def release(tables: Tables, request: ReleasePassRequest, now: float) -> bool:
    """Removes a consumer from a pass; returns whether there may now be ranges for other consumers that wait."""
    found = _find(tables, "pass = ?", request.pass_id)
    if found is None:
        return False
    wakes = settle(tables, found, request.consumer, request.finished, request.given_back)
    return _part(tables, found, request.consumer, now, request.may_resume) or wakes


def lose_consumer(tables: Tables, pass_id: bytes, consumer: bytes, now: float) -> bool:
    """Gives up a silent consumer; returns whether there may now be ranges for other consumers that wait."""
    found = _find(tables, "pass = ?", pass_id)
    return found is not None and _part(tables, found, consumer, now, may_resume=True)


def live_consumers(tables: Tables) -> Sequence[tuple[bytes, bytes]]:
    """Lists the consumers that take part, each as the ids of its pass and of itself."""
    return tables.execute("SELECT pass, consumer FROM consumers WHERE is_here = 1").fetchall()


def collect(tables: Tables, now: float, idle_seconds: float, resume_seconds: float) -> int:
    """Deletes passes that have been without consumers for too long; returns how many.

    Args:
      tables: The tables of the journal.
      now: The time in seconds since the epoch.
      idle_seconds: How long a pass without consumers is kept.
      resume_seconds: How long it is kept if consumers may resume it.
    """
    old = tables.execute(
        "SELECT pass FROM passes WHERE idle_since < ? OR (idle_since < ? AND guarantee != ?)",
        (now - resume_seconds, now - idle_seconds, Guarantee.EXACTLY_ONCE),
    ).fetchall()
    for (pass_id,) in old:
        _delete(tables, pass_id)
    return len(old)


def end_all(tables: Tables) -> None:
    """Deletes all passes."""
    for table in _OF_PASSES:
        tables.execute(f"DELETE FROM {table}")


def _wanted(request: OpenPassRequest) -> Pass:
    """Returns the requested pass, without an id."""
    return Pass(
        id=b"",
        job=request.job_name,
        owner=b"" if request.job_name else request.consumer,
        repetition=request.repetition,
        digest=request.digest,
        policy=request.policy,
        guarantee=request.guarantee or Guarantee.AT_MOST_ONCE,
        target=request.target_workers.upper() or "AUTO",
        num_splits=0,
        is_whole=False,
        next_range=1,
        is_sealed=False,
        idle_since=None,
    )


def _check_job(tables: Tables, wanted: Pass) -> None:
    """Checks that all passes of a job have the same dataset and options."""
    found = _find(tables, "job = ? AND job != ''", wanted.job)
    if found is None:
        return
    for what, has, asked in (
        ("dataset", found.digest.hex()[:32], wanted.digest.hex()[:32]),
        ("sharding policy", _name(Policy, found.policy), _name(Policy, wanted.policy)),
        ("guarantee", _name(Guarantee, found.guarantee), _name(Guarantee, wanted.guarantee)),
        ("target_workers", found.target, wanted.target),
    ):
        if has != asked:
            raise InvalidValueError(
                f"Expected the {what} of job {wanted.job!r}, which is {has}, found {asked}; consumers that share a job "
                "must agree on it: choose another job_name"
            )


def _check_resumes(tables: Tables, found: Pass | None, consumer: bytes) -> None:
    if found is not None and not found.can_resume:
        raise InvalidValueError(
            f"Expected a cursor of a pass with guarantee 'exactly_once', found {_name(Guarantee, found.guarantee)!r}"
        )
    known = found is not None and _row(tables, found.id, consumer) is not None
    if not known:
        raise InvalidValueError(
            "Expected a cursor of a pass that the dispatcher knows, found another; passes without consumers are "
            "collected after a while: begin a new one, without resume"
        )


def _begin(tables: Tables, wanted: Pass, dataset: DatasetDescription, limits: DispatcherLimits, places: int) -> Pass:
    if wanted.policy in (Policy.FILE, Policy.DATA) and not places:
        raise InvalidValueError(
            "Expected worker_addresses of the dispatcher, which decide what each worker reads under FILE and DATA, "
            "found none; give them to its DispatcherConfig, or use DYNAMIC"
        )
    if wanted.policy == Policy.FILE and len(dataset.file_splits) < places:
        raise InvalidValueError(
            f"Expected at least one file for each of {places} workers under FILE, found {len(dataset.file_splits)}; "
            "use DATA or DYNAMIC"
        )
    _make_room(tables, "passes", limits, "max_passes")
    is_shard = wanted.policy == Policy.DATA
    is_whole = is_shard or (wanted.policy == Policy.OFF and bool(dataset.after))
    splits = places if is_shard else dataset.num_splits
    one = attrs.evolve(wanted, id=draw_id(), num_splits=splits, is_whole=is_whole)
    tables.execute(f"INSERT INTO passes VALUES ({', '.join('?' * 13)})", attrs.astuple(one))
    begin_lists(tables, one, places, dataset.file_splits)
    return one


def _make_room(tables: Tables, table: str, limits: DispatcherLimits, limit: str) -> None:
    """Deletes unshared passes, those that have been without their consumer for longest first, until there is room.

    A program that takes a cursor in each of its passes leaves all of them behind.

    Raises:
      ResourceLimitError: If there are too few such passes.
    """
    most = getattr(limits, limit)
    (count,) = tables.execute(f"SELECT count(*) FROM {table}").fetchone()
    if count >= most:
        idle = "SELECT pass FROM passes WHERE idle_since IS NOT NULL AND job = '' ORDER BY idle_since LIMIT ?"
        old = tables.execute(idle, (count - most + 1,)).fetchall()
        if len(old) <= count - most:
            raise exceeded(limits, limit, advice="let others end")
        for (pass_id,) in old:
            _delete(tables, pass_id)


def _part(tables: Tables, one: Pass, consumer: bytes, now: float, may_resume: bool) -> bool:
    """Ends a consumer's part in a pass; returns whether that concerns other consumers."""
    tables.execute("UPDATE consumers SET is_here = 0 WHERE pass = ? AND consumer = ?", (one.id, consumer))
    end_wait(tables, one, consumer)
    wakes = free(tables, one, consumer)
    some = tables.execute("SELECT 1 FROM consumers WHERE pass = ? AND is_here = 1", (one.id,)).fetchone()
    if some is None and not one.is_shared and not (may_resume and one.can_resume):
        _delete(tables, one.id)
    elif some is None:
        tables.execute("UPDATE passes SET idle_since = ? WHERE pass = ?", (now, one.id))
    return wakes


def _revive(tables: Tables, one: Pass, consumer: bytes) -> None:
    """Lets a consumer that was given up take part again, provided that it has lost nothing."""
    if not one.can_resume:
        raise StaleSessionError(
            "The dispatcher has given up this consumer, which was silent for too long, and the ranges it had taken; "
            "begin a new pass"
        )
    tables.execute("UPDATE consumers SET is_here = 1 WHERE pass = ? AND consumer = ?", (one.id, consumer))
    tables.execute("UPDATE passes SET idle_since = NULL WHERE pass = ?", (one.id,))


def _delete(tables: Tables, pass_id: bytes) -> None:
    for table in _OF_PASSES:
        tables.execute(f"DELETE FROM {table} WHERE pass = ?", (pass_id,))


def _consumer(tables: Tables, pass_id: bytes, consumer: bytes) -> tuple[Pass, bool, int, bytes | None, bytes]:
    found = _find(tables, "pass = ?", pass_id)
    row = None if found is None else _row(tables, found.id, consumer)
    if found is None or row is None:
        raise StaleSessionError(
            "Expected a consumer of a pass, found one that the dispatcher does not know, or no longer; begin a new pass"
        )
    return found, *row


def _row(tables: Tables, pass_id: bytes, consumer: bytes) -> tuple[bool, int, bytes | None, bytes] | None:
    query = "SELECT is_here, number, answer, opening FROM consumers WHERE pass = ? AND consumer = ?"
    return tables.execute(query, (pass_id, consumer)).fetchone()


def _find(tables: Tables, where: str, *values: object) -> Pass | None:
    row = tables.execute(f"SELECT * FROM passes WHERE {where}", values).fetchone()
    return None if row is None else Pass(*row)


def _name(kind: Any, value: int) -> str:
    return str(kind.Name(value)).lower() if kind.DESCRIPTOR.values_by_number.get(value) else str(value)
