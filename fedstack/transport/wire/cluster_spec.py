"""Defines which tasks a cluster has, and their addresses: jobs of tasks, as data.

A job is a name for tasks that do the same work, such as `worker`; a task is a process that serves. Nothing here dials.
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

# The longest name that fits a line of an addresses file, a message and a shell.
_JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MOST_TASKS = 1_000_000  # a list of them by index is to have room
_INDEX = re.compile(r"-?[0-9]{1,18}")
# The job that computes, where several are there and none is named.
_WORKERS = "worker"


def _checked_jobs(cluster: object) -> Jobs:
    """Returns jobs as they are kept: in the order given, tasks by ascending index, and nothing to be changed."""
    if isinstance(cluster, (ClusterSpec, ClusterDef)):
        return cluster.as_cluster_def().jobs
    if not isinstance(cluster, Mapping):
        raise TypeMismatchError(
            f"Expected a cluster as a dictionary of jobs, such as {{'worker': ['localhost:8000']}}, a ClusterDef or a "
            f"ClusterSpec, found {describe(cluster)}"
        )
    jobs: dict[str, Mapping[int, str]] = {}
    owners: dict[str, str] = {}
    for name, tasks in cast("Mapping[object, object]", cluster).items():
        job = _checked_name(name)
        found = {index: _checked_address(address, job, index) for index, address in _tasks(job, tasks)}
        for index, address in sorted(found.items()):
            target = parse_target(address, any_port=True)
            if target.has_any_port:
                continue  # several may ask for any port that is free
            task = f"task {index} of job {job!r}"
            owner = owners.setdefault(target.identity, task)
            if owner != task:
                raise InvalidValueError(f"Expected an address of its own for {task}, found that of {owner}: {address}")
        jobs[job] = MappingProxyType(dict(sorted(found.items())))
    return MappingProxyType(jobs)


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeMismatchError(f"Expected names of jobs as text, found {describe(name)}")
    if not _JOB_NAME.fullmatch(name):
        raise InvalidValueError(f"Expected names of jobs of letters, digits, '_', '-' and '.', found {name!r}")
    return name


def _tasks(job: str, tasks: object) -> Iterator[tuple[int, object]]:
    """Yields the tasks of a job: index and whatever stands for the address."""
    if isinstance(tasks, (list, tuple)):
        yield from enumerate(cast("Sequence[object]", tasks))
        return
    if not isinstance(tasks, Mapping):
        raise TypeMismatchError(
            f"Expected the tasks of job {job!r} as a list or tuple of addresses, or a dictionary from indices to "
            f"addresses, found {describe(tasks)}{'; write [...] around it' if isinstance(tasks, str) else ''}"
        )
    seen: set[int] = set()
    for given, address in cast("Mapping[object, object]", tasks).items():
        # Names in TOML and JSON are texts.
        index = int(given) if isinstance(given, str) and _INDEX.fullmatch(given) else whole_number_of(given)
        if index is None:
            kind = InvalidValueError if isinstance(given, str) else TypeMismatchError
            raise kind(f"Expected indices of tasks of job {job!r} as whole numbers, found {describe(given)}")
        if index < 0:
            raise InvalidValueError(f"Expected indices of tasks of job {job!r} of at least 0, found {index}")
        if index >= _MOST_TASKS:
            raise InvalidValueError(f"Expected indices of tasks of job {job!r} below {_MOST_TASKS}, found {index}")
        if index in seen:
            raise InvalidValueError(f"Expected task {index} of job {job!r} once, found it twice")
        seen.add(index)
        yield index, address


def _checked_address(address: object, job: str, index: int) -> str:
    where = f"for task {index} of job {job!r}"
    if not isinstance(address, str):
        advice = f"; leave it out and write {{index: address}} for job {job!r}" if address is None else ""
        raise TypeMismatchError(f"Expected an address as text {where}, found {describe(address)}{advice}")
    try:
        target = parse_target(address, any_port=True)
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}; {where}") from None
    if target.is_everywhere:
        raise InvalidValueError(
            f"Expected an address that other tasks can dial, found {address!r} {where}, which means every network "
            "of a machine; write the name of the machine"
        )
    return address.strip()


@attrs.frozen(repr=False)
class ClusterDef:
    """The jobs of a cluster, as data.

    Attributes:
      jobs: The addresses of tasks by job and index, in any form that a `ClusterSpec` takes.

    Raises:
      TypeMismatchError: If jobs, indices or addresses are of another type.
      InvalidValueError: If an address or an index cannot be right, or two tasks have one address.
    """

    jobs: Jobs = attrs.field(converter=_checked_jobs)

    def as_cluster_def(self) -> "ClusterDef":
        """Returns this."""
        return self

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Returns what this could be made of: a list per job, or a dictionary for a job with holes."""
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
    """A task and its cluster, as data. Only a `Server` of the task checks whether it exists.

    Attributes:
      cluster: The cluster; it is made of whatever a `ClusterSpec` is made of.
      job_name: The task's job; `None` for the only one.
      task_index: Its index in the job; `None` for the only one.
      protocol: How it is dialled; there is only gRPC.
    """

    cluster: ClusterDef = attrs.field(converter=ClusterDef)
    job_name: str | None = attrs.field(default=None, converter=_checked_job_name)
    task_index: int | None = attrs.field(default=None, converter=_checked_index)
    protocol: str = "grpc"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "ServerDef":
        """Returns the task that variables name.

        With the cluster in `FEDSTACK_CLUSTER`, the task is in `FEDSTACK_JOB` and `FEDSTACK_TASK`; with that in
        `TF_CONFIG`, so is the task.

        Args:
          environment: The variables; those of this process by default.

        Raises:
          InvalidValueError: If there is no cluster, or it cannot be read.
        """
        variables = os.environ if environment is None else environment
        job, index = task_in_environment(variables)
        return cls(ClusterSpec.from_environment(variables), job, index)


class ClusterSpec:
    """The jobs of a cluster and the addresses of their tasks.

    It stands for its workers wherever a place to run is named, if it has one job, or one called `worker`; else
    `spec.job(name)` does.

    Args:
      cluster: The addresses of each job as a list or tuple, or as a dictionary from indices to addresses; or a
        `ClusterDef`, or another `ClusterSpec`. Port 0 is for a server that listens at any that is free.

    Raises:
      TypeMismatchError: If jobs, indices or addresses are of another type.
      InvalidValueError: If an address or an index cannot be right, or two tasks have one address.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._def = ClusterDef(cluster)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "ClusterSpec":
        """Reads a cluster from a TOML file, which has a table `[cluster]` with the jobs.

        Raises:
          InvalidValueError: If it cannot be read; the message names it.
        """
        return cls._from_document(cluster_in_file(path))

    @classmethod
    def from_text(cls, text: str) -> "ClusterSpec":
        """Reads a cluster from the path of a file, or from what would be in it: TOML or JSON.

        Raises:
          InvalidValueError: If it cannot be read.
        """
        return cls._from_document(cluster_in(text))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "ClusterSpec":
        """Reads a cluster from `FEDSTACK_CLUSTER`, or otherwise from TensorFlow's `TF_CONFIG`.

        `FEDSTACK_CLUSTER` is the path of a file, or its content: TOML or JSON.

        Args:
          environment: The variables; those of this process by default.

        Raises:
          InvalidValueError: If there is none, or it cannot be read; the message names the variable.
        """
        return cls._from_document(cluster_in_environment(os.environ if environment is None else environment))

    @classmethod
    def _from_document(cls, document: Document) -> "ClusterSpec":
        try:
            return cls(cast(Cluster, document.cluster))
        except FedstackError as error:
            raise type(error)(f"{error}; in {document.where}") from None

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._def.jobs)

    def num_tasks(self, job_name: str) -> int:
        """Returns how many tasks a job has."""
        return len(self._of(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Returns the indices of the tasks of a job, in ascending order."""
        return list(self._of(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Returns the address of a task.

        Raises:
          MembershipError: If the cluster has no such job, or that has no such task.
        """
        tasks = self._of(job_name)
        index = whole_number_of(task_index)
        if index is None or index not in tasks:
            known = ", ".join(map(str, tasks)) or "it has none"
            found = describe(task_index) if index is None else index
            raise MembershipError(f"Expected a task of job {job_name!r} ({known}), found {found}")
        return tasks[index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Returns the addresses of the tasks of a job by index, with `None` where there is no task."""
        tasks = self._of(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def job(self, name: str | None = None) -> "ClusterJob":
        """Returns a job, which can be given as a target.

        Args:
          name: The name; by default that of the only job, or `worker`.

        Raises:
          MembershipError: If there is no such job, or several could be meant.
        """
        if name is None:
            if len(self.jobs) != 1 and _WORKERS not in self.jobs:
                raise MembershipError(
                    f"Expected a cluster with one job, or one called {_WORKERS!r}, found {_listed(self.jobs)}; say "
                    "which with spec.job(name)"
                )
            name = self.jobs[0] if len(self.jobs) == 1 else _WORKERS
        self._of(name)
        return ClusterJob(self, name)

    def resolve(self) -> tuple[Target, ...]:
        """Returns whom to dial: the tasks of the job that is meant."""
        return self.job().resolve()

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Returns what this could be made of: a list per job, or a dictionary for a job with holes."""
        return self._def.as_dict()

    def as_cluster_def(self) -> ClusterDef:
        """Returns the jobs as data."""
        return self._def

    def _of(self, job_name: str) -> Mapping[int, str]:
        if not isinstance(cast(object, job_name), str) or job_name not in self._def.jobs:
            raise MembershipError(f"Expected a job of the cluster ({_listed(self.jobs)}), found {job_name!r}")
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
    """A job of a cluster: a place to run, made by `ClusterSpec.job`.

    Attributes:
      spec: The cluster.
      name: The name of the job.
    """

    spec: ClusterSpec
    name: str

    def resolve(self) -> tuple[Target, ...]:
        """Returns whom to dial.

        Raises:
          MembershipError: If the job has no tasks, or the port of one is not known.
        """
        addresses = {index: self.spec.task_address(self.name, index) for index in self.spec.task_indices(self.name)}
        targets = {index: parse_target(address, any_port=True) for index, address in addresses.items()}
        if not targets:
            raise MembershipError(f"Expected a job with tasks, found none in {self.name!r}")
        open_ports = [index for index, target in targets.items() if target.has_any_port]
        if open_ports:
            raise MembershipError(
                f"Expected the ports of all tasks of job {self.name!r}, found 0, any that is free, for "
                f"{', '.join(map(str, open_ports))}; let the tasks write their addresses into a file, and take those "
                "that fedstack.service.wait_for_addresses(spec, file) returns"
            )
        return tuple(targets.values())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "it has none"
