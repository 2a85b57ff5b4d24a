"""Lets tasks that listen at any free port find each other: each appends its address to one file.

A line is `job index address`. Of several lines of a task, which has been started anew, the last one counts. The file
belongs to one run: what an earlier one left behind leads nowhere.
"""

import itertools
import os
from pathlib import Path

from fedstack.errors import AddressError, DeadlineExceededError, FedstackError, InvalidValueError
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.number_checks import check_number
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.cluster_spec import Cluster, ClusterSpec

_LOOK_SECONDS = 0.05
_Task = tuple[str, int]


def append_address(path: str | os.PathLike[str], job: str, index: int, address: str) -> None:
    """Adds the address of a task to a file, which is made if need be. Readers see the whole line or nothing of it.

    Raises:
      AddressError: If it cannot be written.
    """
    line = f"{job} {index} {address}\n".encode()
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)
    except OSError as error:
        raise AddressError(f"Expected a file to add an address to, found {path}: {error.strerror}") from error


def wait_for_addresses(cluster: Cluster, path: str | os.PathLike[str], timeout: float = 60.0) -> ClusterSpec:
    """Returns the cluster with the real ports of all tasks that are to listen at any free one.

    Args:
      cluster: The cluster.
      path: The file to which the tasks add their addresses; it need not be there yet.
      timeout: How long to wait for all of them, in seconds. This blocks the thread.

    Raises:
      DeadlineExceededError: If some are still missing then; the message names them.
      InvalidValueError: If the file is none of this cluster's; the message has the line.
    """
    check_number("timeout", timeout, endless=True)
    spec = ClusterSpec(cluster)
    wanted = _without_port(spec)
    missing: list[_Task] = []
    for _ in Deadline(timeout).attempts_blocking(itertools.repeat(_LOOK_SECONDS)):
        found = _read(spec, Path(path)) if wanted else {}
        missing = [task for task in wanted if task not in found]
        if not missing:
            jobs = {job: dict(tasks) for job, tasks in spec.as_cluster_def().jobs.items()}
            for job, index in wanted:
                jobs[job][index] = found[job, index]
            return ClusterSpec(jobs)
    names = ", ".join(f"task {index} of job {job!r}" for job, index in missing)
    raise DeadlineExceededError(
        f"Expected the addresses of all tasks in {path} within {timeout:g} s, found none of {names}; start what is "
        "missing with the same file, or allow more time"
    )


def _without_port(spec: ClusterSpec) -> list[_Task]:
    """Returns the tasks whose addresses do not say where they listen."""
    return [
        (job, index)
        for job, tasks in spec.as_cluster_def().jobs.items()
        for index, address in tasks.items()
        if parse_target(address, any_port=True).has_any_port
    ]


def _read(spec: ClusterSpec, path: Path) -> dict[_Task, str]:
    """Returns the addresses that a file has by now."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"Expected a file with addresses of tasks, found {path}: {error}") from error
    found: dict[_Task, str] = {}
    for number, line in enumerate(text.split("\n")[:-1], start=1):  # what has no end yet is still being written
        try:
            job, index, address = line.split()
            parse_target(address)
            spec.task_address(job, int(index))
        except (ValueError, FedstackError) as error:
            raise InvalidValueError(
                f"Expected lines with job, index and address of tasks of this cluster, found {line!r} in line {number} "
                f"of {path}: {error}"
            ) from error
        # The task that had this address before no longer listens there.
        found = {task: at for task, at in found.items() if at != address}
        found[job, int(index)] = address
    return found
