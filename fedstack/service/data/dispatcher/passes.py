"""Keeps track of the passes over datasets and of their consumers, and answers the consumers' requests.

The functions do not wait, and callers pass the current time. Each function is a transaction on a journal's tables, or
part of a transaction.
"""

from collections.abc import Collection, Sequence
from typing import Any

import attrs

from fedstack.errors import InvalidValueError, StaleSessionError
from fedstack.foundations.draws import draw_id
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

# A consumer that resumes skips this many request numbers, so that late requests from before it resumed have smaller
# numbers.
_NUMBERS_SKIPPED = 1 << 32
_MAX_ID_BYTES = 64
_OF_PASSES = ("ranges", "consumers", "lists", "waiting", "passes")


@attrs.frozen
class Taken:
    """The answer to a consumer's request.

    Attributes:
      answer: The serialized response, without the list of workers.
      is_empty: Whether there was no range for the consumer, but a range may become available later.
      wakes: Whether there may now be ranges for other waiting consumers.
    """

    answer: bytes
    is_empty: bool
    wakes: bool


def check_request(request: OpenPassRequest) -> None:
    """Checks the fields of a request, independently of the tables.

    Raises:
      InvalidValueError: If a field is invalid.
    """
    for what, size, most in (
        ("a consumer id", len(request.consumer), _MAX_ID_BYTES),
        ("an opening", len(request.opening), _MAX_ID_BYTES),
        ("a job_name", len(request.job_name.encode()), MAX_NAME_BYTES),
        ("target_workers", len(request.target_workers.encode()), MAX_NAME_BYTES),
    ):
        if size > most:
            raise InvalidValueError(f"Expected {what} of at most {most} bytes, found {size}")
    if not request.consumer or request.repetition > MOST_NUMBER:
        raise InvalidValueError(
            f"Expected a non-empty consumer id and a repetition of at most {MOST_NUMBER}, found the id "
            f"{request.consumer!r} and the repetition {request.repetition}"
        )
    if request.policy not in Policy.values() or not request.policy or request.guarantee not in Guarantee.values():
        raise InvalidValueError(
            f"Expected a sharding policy and a guarantee that this release supports, found policy {request.policy} and "
            f"guarantee {request.guarantee}"
        )


def open_pass(
    tables: Tables, request: OpenPassRequest, dataset: DatasetDescription, limits: DispatcherLimits, places: int
) -> OpenPassResponse:
    """Adds a consumer to a pass, and starts the pass if it does not exist yet.

    Args:
      tables: The tables of the journal.
      request: The consumer's request.
      dataset: The dataset with the digest in the request.
      limits: The limits of the dispatcher, which include the maximum numbers of passes and consumers.
      places: The number of configured worker addresses.

    Raises:
      InvalidValueError: If the job reads a different dataset or has different options, or if the consumer requests to
        resume a pass that does not exist or cannot be resumed.
      ResourceLimitError: If there are too many passes or consumers.
    """
    wanted = _wanted(request)
    _check_job(tables, wanted)
    found = _find(tables, "job = ? AND owner = ? AND repetition = ?", wanted.job, wanted.owner, wanted.repetition)
    if found is not None and found.digest != wanted.digest:
        raise InvalidValueError(
            "Expected a unique consumer id, found an id that another dataset's consumer already uses"
        )
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
    """Assigns ranges to a consumer, and records which of its earlier ranges have been finished or given back.

    Args:
      tables: The tables of the journal.
      request: The consumer's request.
      workers: The ids of the registered workers.
      may_wait: Whether the caller repeats the call later, instead of answering the consumer, if there is no range.
      assigned: The ids of the workers at the configured addresses; an empty id if no worker is registered at an
        address.

    Raises:
      InvalidValueError: If another consumer with the same id has resumed in the meantime.
      StaleSessionError: If the pass or the consumer no longer exists.
    """
    one, is_here, number, answer, _ = _consumer(tables, request.pass_id, request.consumer)
    if request.number < number or request.number > MOST_NUMBER:
        raise InvalidValueError(
            f"Expected request {number + 1} of a consumer, found request {request.number}; another process has resumed "
            "with the consumer's cursor: use each cursor in only one process at a time"
        )
    if request.number == number and answer is not None:
        return Taken(answer, is_empty=False, wakes=False)
    if not is_here:
        _revive(tables, one, request.consumer)
    wakes = settle(tables, one, request.consumer, request.finished, request.given_back)
    ranges = list(hand_out(tables, one, request.consumer, request.want, workers, assigned))
    if request.waits and begin_wait(tables, one, request.consumer):
        wakes = wakes or not request.want  # a consumer that wants no ranges in this request waits in another request
    is_over = is_exhausted(tables, one, request.consumer, may_end_first=request.want > 0)
    if request.want and (ranges or is_over):
        end_wait(tables, one, request.consumer)
    if is_over and not one.is_sealed:
        tables.execute("UPDATE passes SET is_sealed = 1 WHERE pass = ?", (one.id,))
    answer = TakeResponse(range=ranges, is_exhausted=is_over).SerializeToString()
    is_empty = not (ranges or is_over)
    # An answer without a range need not be stored, because it may differ when the request is retried. A request that
    # waits has no answer yet.
    if request.want and not (is_empty and may_wait):
        tables.execute(
            "UPDATE consumers SET number = ?, answer = ? WHERE pass = ? AND consumer = ?",
            (request.number, answer, one.id, request.consumer),
        )
    return Taken(answer, is_empty, wakes)


def release(tables: Tables, request: ReleasePassRequest, now: float) -> bool:
    """Removes a consumer from a pass, and returns whether there may now be ranges for other waiting consumers."""
    found = _find(tables, "pass = ?", request.pass_id)
    if found is None:
        return False
    wakes = settle(tables, found, request.consumer, request.finished, request.given_back)
    return _part(tables, found, request.consumer, now, request.may_resume) or wakes


def lose_consumer(tables: Tables, pass_id: bytes, consumer: bytes, now: float) -> bool:
    """Removes a lost consumer from a pass, and returns whether there may now be ranges for other waiting consumers."""
    found = _find(tables, "pass = ?", pass_id)
    return found is not None and _part(tables, found, consumer, now, may_resume=True)


def live_consumers(tables: Tables) -> Sequence[tuple[bytes, bytes]]:
    """Returns the ids of the pass and the consumer for each consumer that is currently in a pass."""
    return tables.execute("SELECT pass, consumer FROM consumers WHERE is_here = 1").fetchall()


def collect(tables: Tables, now: float, idle_seconds: float, resume_seconds: float) -> int:
    """Deletes passes that have been without consumers for too long, and returns the number of deleted passes.

    Args:
      tables: The tables of the journal.
      now: The time in seconds since the epoch.
      idle_seconds: The time for which a pass without consumers is kept, in seconds.
      resume_seconds: The time for which such a pass is kept if its consumers may resume it, in seconds.
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
    """Checks that a requested pass has the same dataset and options as the other passes of its job."""
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
                f"Expected the {what} of job {wanted.job!r} to be {has}, found {asked}; use the same options in all "
                "consumers of the job, or choose another job_name"
            )


def _check_resumes(tables: Tables, found: Pass | None, consumer: bytes) -> None:
    if found is not None and not found.can_resume:
        raise InvalidValueError(
            "Expected the guarantee of the cursor's pass to be 'exactly_once', found "
            f"{_name(Guarantee, found.guarantee)!r}"
        )
    known = found is not None and _row(tables, found.id, consumer) is not None
    if not known:
        raise InvalidValueError(
            "The dispatcher does not know this cursor's pass; passes without consumers are deleted after a timeout: "
            "start a new pass without resume"
        )


def _begin(tables: Tables, wanted: Pass, dataset: DatasetDescription, limits: DispatcherLimits, places: int) -> Pass:
    if wanted.policy in (Policy.FILE, Policy.DATA) and not places:
        raise InvalidValueError(
            "Expected a dispatcher with worker_addresses, as the policies FILE and DATA require, found a dispatcher "
            "without worker_addresses; set worker_addresses in the DispatcherConfig, or use DYNAMIC"
        )
    if wanted.policy == Policy.FILE and len(dataset.file_splits) < places:
        raise InvalidValueError(
            f"Expected at least one file for each of {places} workers under the policy FILE, found "
            f"{len(dataset.file_splits)} files; use DATA or DYNAMIC"
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
    """Deletes idle unshared passes until a table has room for another row, starting with the longest-idle pass.

    Idle passes accumulate if a program creates a cursor in each of its passes.

    Raises:
      ResourceLimitError: If deleting all idle unshared passes would not free enough rows.
    """
    most = getattr(limits, limit)
    (count,) = tables.execute(f"SELECT count(*) FROM {table}").fetchone()
    if count >= most:
        idle = "SELECT pass FROM passes WHERE idle_since IS NOT NULL AND job = '' ORDER BY idle_since LIMIT ?"
        old = tables.execute(idle, (count - most + 1,)).fetchall()
        if len(old) <= count - most:
            raise exceeded(limits, limit, advice="wait until others have ended")
        for (pass_id,) in old:
            _delete(tables, pass_id)


def _part(tables: Tables, one: Pass, consumer: bytes, now: float, may_resume: bool) -> bool:
    """Removes a consumer from a pass, and returns whether other consumers should be woken."""
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
    """Readmits a consumer that was considered lost, provided that it has kept its ranges."""
    if not one.can_resume:
        raise StaleSessionError(
            "The dispatcher has removed this consumer and its ranges from the pass, because it received no message "
            "from the consumer for too long; start a new pass"
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
            "The dispatcher does not know this consumer or has removed it from the pass; start a new pass"
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
