"""Defines descriptions of clusters: the jobs of a cluster, and the tasks of each job with their addresses.

A job is a named group of tasks that do the same work, such as `worker`. A task is a server process. This module only
describes clusters, and does not connect to tasks.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import attrs

from fedstack.errors import FedstackError, InvalidValueError, MembershipError, TypeMismatchError
from fedstack.foundations.number_checks import whole_number_of
from fedstack.foundations.value_text import describe
from fedstack.transport.wire.addresses import Target, parse_target
from fedstack.transport.wire.cluster_documents import (
    Document,
    cluster_in,
    cluster_in_environment,
    cluster_in_file,
    task_in_environment,
)

Jobs: TypeAlias = Mapping[str, Mapping[int, str]]
Cluster: TypeAlias = "ClusterSpec | ClusterDef | Mapping[str, Sequence[str] | Mapping[int, str] | Mapping[str, str]]"

# Names may contain only characters that are safe in a line of an addresses file, in messages and in a shell.
_JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MOST_TASKS = 1_000_000  # limits the size of lists by task index
_INDEX = re.compile(r"-?[0-9]{1,18}")
# The default job of a cluster with several jobs.
_WORKERS = "worker"


def _checked_jobs(cluster: object) -> Jobs:
    """Checks jobs, and returns them as read-only mappings: jobs in the given order, tasks by ascending index."""
    if isinstance(cluster, (ClusterSpec, ClusterDef)):
        return cluster.as_cluster_def().jobs
    if not isinstance(cluster, Mapping):
        raise TypeMismatchError(
            "Expected a cluster as a ClusterSpec, a ClusterDef or a dictionary of jobs, such as "
            f"{{'worker': ['localhost:8000']}}, found {describe(cluster)}"
        )
    jobs: dict[str, Mapping[int, str]] = {}
    owners: dict[str, str] = {}
    for name, tasks in cast("Mapping[object, object]", cluster).items():
        job = _checked_name(name)
        found = {index: _checked_address(address, job, index) for index, address in _tasks(job, tasks)}
        for index, address in sorted(found.items()):
            target = parse_target(address, any_port=True)
            if target.has_any_port:
                continue  # several tasks may listen on any free port
            task = f"task {index} of job {job!r}"
            owner = owners.setdefault(target.identity, task)
            if owner != task:
                raise InvalidValueError(
                    f"Expected a unique address for {task}, found the address of {owner}: {address}"
                )
        jobs[job] = MappingProxyType(dict(sorted(found.items())))
    return MappingProxyType(jobs)


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeMismatchError(f"Expected job names as text, found {describe(name)}")
    if not _JOB_NAME.fullmatch(name):
        raise InvalidValueError(
            f"Expected job names consisting of letters, digits, '_', '-' and '.', found {name!r}; rename the job"
        )
    return name


def _tasks(job: str, tasks: object) -> Iterator[tuple[int, object]]:
    """Yields the index and the unchecked address of each task of a job."""
    if isinstance(tasks, (list, tuple)):
        yield from enumerate(cast("Sequence[object]", tasks))
        return
    if not isinstance(tasks, Mapping):
        raise TypeMismatchError(
            f"Expected the tasks of job {job!r} as a list or tuple of addresses, or a dictionary from indices to "
            f"addresses, found {describe(tasks)}{'; enclose it in [...]' if isinstance(tasks, str) else ''}"
        )
    seen: set[int] = set()
    for given, address in cast("Mapping[object, object]", tasks).items():
        # Keys in TOML and JSON are strings.
        index = int(given) if isinstance(given, str) and _INDEX.fullmatch(given) else whole_number_of(given)
        if index is None:
            kind = InvalidValueError if isinstance(given, str) else TypeMismatchError
            raise kind(f"Expected task indices of job {job!r} as whole numbers, found {describe(given)}")
        if index < 0:
            raise InvalidValueError(f"Expected task indices of job {job!r} to be at least 0, found {index}")
        if index >= _MOST_TASKS:
            raise InvalidValueError(f"Expected task indices of job {job!r} to be below {_MOST_TASKS}, found {index}")
        if index in seen:
            raise InvalidValueError(f"Expected each task of job {job!r} to be listed once, found task {index} twice")
        seen.add(index)
        yield index, address


def _checked_address(address: object, job: str, index: int) -> str:
    where = f"for task {index} of job {job!r}"
    if not isinstance(address, str):
        advice = f"; omit the task and write {{index: address}} for job {job!r}" if address is None else ""
        raise TypeMismatchError(f"Expected an address as text {where}, found {describe(address)}{advice}")
    try:
        target = parse_target(address, any_port=True)
    except InvalidValueError as error:
        raise InvalidValueError(f"Invalid address {where}: {error}") from None
    if target.is_everywhere:
        raise InvalidValueError(
            f"Expected an address {where} that other tasks can dial, found {address!r}, which stands for all networks "
            "of a machine; use the machine's name"
        )
    return address.strip()


@attrs.frozen(repr=False)
class ClusterDef:
    """The jobs of a cluster, as data.

    Attributes:
      jobs: The addresses of the tasks by job and index. The constructor accepts any form that a `ClusterSpec` accepts.

    Raises:
      TypeMismatchError: If a job, an index or an address has the wrong type.
      InvalidValueError: If an address or an index is not valid, or two tasks have the same address.
    """

    jobs: Jobs = attrs.field(converter=_checked_jobs)

    def as_cluster_def(self) -> "ClusterDef":
        """Returns this object."""
        return self

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Returns a dictionary from which this object can be created.

        Each job has a list of addresses, or a dictionary from indices to addresses if some indices have no task.
        """
        return {job: list(t.values()) if list(t) == list(range(len(t))) else dict(t) for job, t in self.jobs.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterDef, (self.as_dict(),)

    def __hash__(self) -> int:
        return hash(frozenset((job, frozenset(tasks.items())) for job, tasks in self.jobs.items()))

    def __repr__(self) -> str:
        return f"ClusterDef({self.as_dict()!r})"


def _checked_job_name(name: object) -> str | None:
    return None if name is None or name == "" else _checked_name(name)


def _checked_index(index: object) -> int | None:
    if index is None:
        return None
    number = whole_number_of(index)
    if number is None:
        raise TypeMismatchError(f"Expected the index of a task as a whole number, found {describe(index)}")
    return number


@attrs.frozen
class ServerDef:
    """A task and its cluster, as data. The constructor does not check whether the task exists; `Server` does.

    Attributes:
      cluster: The cluster. The constructor accepts any form that a `ClusterSpec` accepts.
      job_name: The job of the task; `None` for the only job.
      task_index: The index of the task in its job; `None` for the only task.
      protocol: The protocol for dialing the task. The only protocol is gRPC.
    """

    cluster: ClusterDef = attrs.field(converter=ClusterDef)
    job_name: str | None = attrs.field(default=None, converter=_checked_job_name)
    task_index: int | None = attrs.field(default=None, converter=_checked_index)
    protocol: str = "grpc"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "ServerDef":
        """Returns the task that environment variables specify.

        If the cluster is in `FEDSTACK_CLUSTER`, the task is in `FEDSTACK_JOB` and `FEDSTACK_TASK`. If the cluster is in
        `TF_CONFIG`, the task is in the same variable.

        Args:
          environment: The variables; by default those of this process.

        Raises:
          InvalidValueError: If the variables do not describe a cluster, or cannot be read.
        """
        variables = os.environ if environment is None else environment
        job, index = task_in_environment(variables)
        return cls(ClusterSpec.from_environment(variables), job, index)


class ClusterSpec:
    """The jobs of a cluster and the addresses of their tasks.

    A `ClusterSpec` can be passed wherever worker addresses are expected. It then stands for the tasks of its only job,
    or of the job `worker`. To select another job, pass `spec.job(name)`.

    Args:
      cluster: A `ClusterDef`, another `ClusterSpec`, or a dictionary from job names to addresses of tasks: a list, a
        tuple, or a dictionary from indices to addresses. Port 0 stands for any free port of the server.

    Raises:
      TypeMismatchError: If a job, an index or an address has the wrong type.
      InvalidValueError: If an address or an index is not valid, or two tasks have the same address.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._def = ClusterDef(cluster)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "ClusterSpec":
        """Reads a cluster from a TOML file whose `[cluster]` table contains the jobs.

        Raises:
          InvalidValueError: If the file cannot be read, or does not describe a cluster. The message names the file.
        """
        return cls._from_document(cluster_in_file(path))

    @classmethod
    def from_text(cls, text: str) -> "ClusterSpec":
        """Reads a cluster from a description in TOML or JSON, or from the path of a file with such a description.

        Raises:
          InvalidValueError: If the text or the file does not describe a cluster.
        """
        return cls._from_document(cluster_in(text))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "ClusterSpec":
        """Reads a cluster from `FEDSTACK_CLUSTER`, or, if that is not set, from TensorFlow's `TF_CONFIG`.

        `FEDSTACK_CLUSTER` contains the path of a file, or the content of such a file in TOML or JSON.

        Args:
          environment: The variables; by default those of this process.

        Raises:
          InvalidValueError: If no variable describes a cluster. The message names the variable.
        """
        return cls._from_document(cluster_in_environment(os.environ if environment is None else environment))

    @classmethod
    def _from_document(cls, document: Document) -> "ClusterSpec":
        try:
            return cls(cast(Cluster, document.cluster))
        except FedstackError as error:
            raise type(error)(f"{error} (in {document.where})") from None

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._def.jobs)

    def num_tasks(self, job_name: str) -> int:
        """Returns the number of tasks of a job."""
        return len(self._of(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Returns the indices of a job's tasks in ascending order."""
        return list(self._of(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Returns the address of a task.

        Raises:
          MembershipError: If the cluster has no such job, or the job has no such task.
        """
        tasks = self._of(job_name)
        index = whole_number_of(task_index)
        if index is None or index not in tasks:
            known = ", ".join(map(str, tasks)) or "no tasks"
            found = describe(task_index) if index is None else index
            raise MembershipError(f"Expected the index of a task of job {job_name!r} ({known}), found {found}")
        return tasks[index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Returns the addresses of a job's tasks as a list by index, with `None` for indices without a task."""
        tasks = self._of(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def job(self, name: str | None = None) -> "ClusterJob":
        """Returns a job, which can be passed as a target.

        Args:
          name: The name of the job; by default the only job, or `worker` if the cluster has several jobs.

        Raises:
          MembershipError: If there is no such job, or if `name` is missing and the choice is ambiguous.
        """
        if name is None:
            if len(self.jobs) != 1 and _WORKERS not in self.jobs:
                raise MembershipError(
                    f"Expected a cluster with one job or a job named {_WORKERS!r}, found {_listed(self.jobs)}; select "
                    "a job with spec.job(name)"
                )
            name = self.jobs[0] if len(self.jobs) == 1 else _WORKERS
        self._of(name)
        return ClusterJob(self, name)

    def resolve(self) -> tuple[Target, ...]:
        """Returns the servers to dial: the tasks of the only job, or of the job `worker`."""
        return self.job().resolve()

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Returns a dictionary from which this object can be created; see `ClusterDef.as_dict`."""
        return self._def.as_dict()

    def as_cluster_def(self) -> ClusterDef:
        """Returns the jobs as data."""
        return self._def

    def _of(self, job_name: str) -> Mapping[int, str]:
        if not isinstance(cast(object, job_name), str) or job_name not in self._def.jobs:
            raise MembershipError(
                f"Expected a job of the cluster ({_listed(self.jobs)}), found {job_name!r}; correct the name"
            )
        return self._def.jobs[job_name]

    def __bool__(self) -> bool:
        return bool(self._def.jobs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            try:
                other = ClusterSpec(cast(Cluster, other))
            except FedstackError:
                return False
        return self._def == other._def if isinstance(other, ClusterSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._def)

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


@attrs.frozen
class ClusterJob:
    """A job of a cluster, which can be passed wherever worker addresses are expected. Created by `ClusterSpec.job`.

    Attributes:
      spec: The cluster.
      name: The name of the job.
    """

    spec: ClusterSpec
    name: str

    def resolve(self) -> tuple[Target, ...]:
        """Returns the servers to dial: the tasks of the job.

        Raises:
          MembershipError: If the job has no tasks, or the port of a task is not known.
        """
        addresses = {index: self.spec.task_address(self.name, index) for index in self.spec.task_indices(self.name)}
        targets = {index: parse_target(address, any_port=True) for index, address in addresses.items()}
        if not targets:
            raise MembershipError(f"Job {self.name!r} has no tasks; add a task to the job")
        open_ports = [index for index, target in targets.items() if target.has_any_port]
        if open_ports:
            raise MembershipError(
                f"Expected the ports of all tasks of job {self.name!r}, found port 0 (any free port) for "
                f"{', '.join(map(str, open_ports))}; let the tasks write their addresses to a file, and use the "
                "cluster that fedstack.service.wait_for_addresses(spec, file) returns"
            )
        return tuple(targets.values())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no jobs"
