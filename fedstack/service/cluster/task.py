"""Determines which task of a cluster a server runs, and the addresses on which it listens and is dialed.

Tasks that listen on any free port find each other through a file to which each task appends a line of the form
`job index address`. If a task was restarted and has several lines, the last line counts. The file belongs to a single
run of the cluster, because the addresses of an earlier run are no longer valid.
"""

import itertools
import os
from pathlib import Path
from typing import cast

import attrs

from fedstack.errors import AddressError, DeadlineExceededError, FedstackError, InvalidValueError, MembershipError
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.number_checks import check_number
from fedstack.transport.wire.addresses import Target, parse_target
from fedstack.transport.wire.cluster_spec import Cluster, ClusterDef, ClusterSpec, ServerDef

_LOOK_SECONDS = 0.05
_Task = tuple[str, int]


def append_address(path: str | os.PathLike[str], job: str, index: int, address: str) -> None:
    """Appends the address of a task to a file, which is created if needed. Readers see the whole line or nothing.

    Raises:
      AddressError: If the file cannot be written.
    """
    line = f"{job} {index} {address}\n".encode()
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)
    except OSError as error:
        raise AddressError(f"Cannot append an address to the file {path}: {error.strerror}") from error


def wait_for_addresses(cluster: Cluster, path: str | os.PathLike[str], timeout: float = 60.0) -> ClusterSpec:
    """Waits for all tasks that listen on any free port, and returns the cluster with their actual ports.

    This function blocks the calling thread.

    Args:
      cluster: The cluster.
      path: The file to which the tasks append their addresses. It need not exist yet.
      timeout: The maximum time to wait for all tasks, in seconds.

    Raises:
      DeadlineExceededError: If addresses are still missing after the timeout; the message names the tasks.
      InvalidValueError: If the file belongs to another cluster or is malformed; the message contains the line.
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
        f"Expected the addresses of all tasks in {path} within {timeout:g} s, found none for {names}; start the "
        "missing tasks with the same file, or increase the timeout"
    )


def _without_port(spec: ClusterSpec) -> list[_Task]:
    """Returns the tasks that listen on any free port."""
    return [
        (job, index)
        for job, tasks in spec.as_cluster_def().jobs.items()
        for index, address in tasks.items()
        if parse_target(address, any_port=True).has_any_port
    ]


def _read(spec: ClusterSpec, path: Path) -> dict[_Task, str]:
    """Returns the addresses that a file contains so far."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"Cannot read addresses of tasks from {path}: {error}") from error
    found: dict[_Task, str] = {}
    for number, line in enumerate(text.split("\n")[:-1], start=1):  # an unfinished line is still being written
        try:
            job, index, address = line.split()
            parse_target(address)
            spec.task_address(job, int(index))
        except (ValueError, FedstackError) as error:
            raise InvalidValueError(
                f"Expected the job, the index and the address of a task of this cluster in line {number} of {path}, "
                f"found {line!r}: {error}"
            ) from error
        # A task that had this address before no longer listens on it.
        found = {task: at for task, at in found.items() if at != address}
        found[job, int(index)] = address
    return found


PROTOCOL = "grpc"


@attrs.frozen
class ClusterTask:
    """A task of a cluster, with the information that its server needs.

    Attributes:
      definition: The complete definition of the task and its cluster; see `task_of`.
      uses_tls: Whether the server has a certificate.
      host: The host to listen on, if it differs from the host that other tasks dial, for example behind NAT.

    Raises:
      InvalidValueError: If the address requires TLS and the server has no certificate, or vice versa.
    """

    definition: ServerDef
    uses_tls: bool
    host: str = ""

    def __attrs_post_init__(self) -> None:
        secure = self.listens.secure
        if secure not in (None, self.uses_tls):
            wanted, found, scheme = ("a", "none", "grpcs") if secure else ("no", "one", "grpc")
            raise InvalidValueError(
                f"Expected {wanted} certificate for a server at {scheme}://{self.listens}, found {found}; change the "
                "credentials to match the address, or omit the scheme from the address"
            )

    @property
    def job(self) -> str:
        """The name of the task's job."""
        return self.definition.job_name or ""

    @property
    def index(self) -> int:
        """The index of the task in its job."""
        return self.definition.task_index or 0

    @property
    def address(self) -> str:
        """The address of the task in the cluster definition."""
        return self.definition.cluster.jobs[self.job][self.index]

    @property
    def listens(self) -> Target:
        """The address that the server listens on. The port may be 0."""
        named = parse_target(self.address, any_port=True)
        return named.at_host(self.host) if self.host and not named.socket_path else named

    def target(self, bound: str = "") -> str:
        """Returns the address for other tasks: `grpc://host:port`, `grpcs://host:port` with TLS, or `unix:/path`.

        Args:
          bound: The address that the server has bound, for a task that listens on any free port.
        """
        named = parse_target(self.address, any_port=True)
        if named.socket_path:
            return named.address
        if named.has_any_port:
            named = named.at_port(int(bound.rpartition(":")[2])) if self.host else Target(bound)
        return f"{'grpcs' if self.uses_tls else 'grpc'}://{named.address}"

    def bound_at(self, bound: str) -> ServerDef:
        """Returns the definition with the actual port.

        Args:
          bound: The address that the server has bound.
        """
        if not self.listens.has_any_port:
            return self.definition
        jobs = {job: dict(tasks) for job, tasks in self.definition.cluster.jobs.items()}
        jobs[self.job][self.index] = self.target(bound)
        return attrs.evolve(self.definition, cluster=ClusterDef(jobs))

    def announce(self, path: str | os.PathLike[str], bound: str) -> None:
        """Appends the address of the task to a file; see `wait_for_addresses`.

        Raises:
          AddressError: If the file cannot be written.
        """
        append_address(path, self.job, self.index, self.target(bound) if self.listens.has_any_port else self.address)

    def __str__(self) -> str:
        return f"task {self.index} of job {self.job!r}"


def task_of(
    server_or_cluster_def: "ServerDef | Cluster",
    job_name: str | None = None,
    task_index: int | None = None,
    protocol: str | None = None,
) -> ServerDef:
    """Returns the complete definition of a task.

    Args:
      server_or_cluster_def: The definition of the task or of its cluster.
      job_name: The job of the task; by default the job in the definition, or the cluster's only job.
      task_index: The index of the task in the job; by default the index in the definition, or that of the only task.
      protocol: The protocol; by default the protocol in the definition.

    Raises:
      MembershipError: If the cluster has no such task, or if several tasks match.
      InvalidValueError: If the argument does not define a cluster, or the protocol is not gRPC.
    """
    given = server_or_cluster_def if isinstance(server_or_cluster_def, ServerDef) else ServerDef(server_or_cluster_def)
    explicit = {"job_name": job_name or None, "task_index": task_index, "protocol": protocol}
    task = attrs.evolve(given, **{name: value for name, value in explicit.items() if value is not None})
    if cast(object, task.protocol) != PROTOCOL:
        raise InvalidValueError(
            f"Expected {PROTOCOL!r} as protocol, found {task.protocol!r}; for TLS, pass certificates in the "
            "configuration"
        )
    spec = ClusterSpec(task.cluster)
    job = task.job_name or _only_job(spec)
    index = _only_task(spec, job) if task.task_index is None else task.task_index
    spec.task_address(job, index)
    return attrs.evolve(task, job_name=job, task_index=index)


def _only_job(spec: ClusterSpec) -> str:
    if not spec:
        raise MembershipError("Expected a cluster with jobs, found an empty cluster; define a job with a task")
    if len(spec.jobs) > 1:
        jobs = ", ".join(map(repr, spec.jobs))
        raise MembershipError(
            f"Expected job_name for a cluster with {len(spec.jobs)} jobs, found none; pass one of {jobs}"
        )
    return spec.jobs[0]


def _only_task(spec: ClusterSpec, job: str) -> int:
    indices = spec.task_indices(job)
    if not indices:
        raise MembershipError(f"The job {job!r} has no tasks; add a task to the job")
    if len(indices) > 1:
        tasks = ", ".join(map(str, indices))
        raise MembershipError(
            f"Expected task_index for job {job!r} with {len(indices)} tasks, found none; pass one of {tasks}"
        )
    return indices[0]
