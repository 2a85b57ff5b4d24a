"""Finds out which task of a cluster a server is, where it listens, and how others dial it."""

import os
from typing import cast

import attrs

from fedstack.errors import InvalidValueError, MembershipError
from fedstack.service.cluster.addresses_file import append_address
from fedstack.transport.wire.addresses import Target, parse_target
from fedstack.transport.wire.cluster_spec import Cluster, ClusterDef, ClusterSpec, ServerDef

PROTOCOL = "grpc"


@attrs.frozen
class ClusterTask:
    """A task as its server sees it.

    Attributes:
      definition: The task and its cluster, with nothing left out; see `task_of`.
      uses_tls: Whether the server has a certificate.
      host: Where it listens, if others reach it by another name or address than that, as behind NAT.

    Raises:
      InvalidValueError: If the address asks for the one, and the server does the other.
    """

    definition: ServerDef
    uses_tls: bool
    host: str = ""

    def __attrs_post_init__(self) -> None:
        secure = self.listens.secure
        if secure not in (None, self.uses_tls):
            wanted, found, scheme = ("a", "none", "grpcs") if secure else ("no", "one", "grpc")
            raise InvalidValueError(
                f"Expected {wanted} certificate for a server at {scheme}://{self.listens}, found {found}; give what "
                "the address asks for, or leave the scheme out of it"
            )

    @property
    def job(self) -> str:
        """The name of its job."""
        return self.definition.job_name or ""

    @property
    def index(self) -> int:
        """Its index in the job."""
        return self.definition.task_index or 0

    @property
    def address(self) -> str:
        """Its address, as the cluster has it."""
        return self.definition.cluster.jobs[self.job][self.index]

    @property
    def listens(self) -> Target:
        """Where it listens; the port may be 0."""
        named = parse_target(self.address, any_port=True)
        return named.at_host(self.host) if self.host and not named.socket_path else named

    def target(self, bound: str = "") -> str:
        """Returns what others dial: `grpc://host:port`, `grpcs://host:port` with TLS, or `unix:/path`.

        Args:
          bound: The address that the server has bound, for a task at any port that is free.
        """
        named = parse_target(self.address, any_port=True)
        if named.socket_path:
            return named.address
        if named.has_any_port:
            named = named.at_port(int(bound.rpartition(":")[2])) if self.host else Target(bound)
        return f"{'grpcs' if self.uses_tls else 'grpc'}://{named.address}"

    def bound_at(self, bound: str) -> ServerDef:
        """Returns the definition with the real port."""
        if not self.listens.has_any_port:
            return self.definition
        jobs = {job: dict(tasks) for job, tasks in self.definition.cluster.jobs.items()}
        jobs[self.job][self.index] = self.target(bound)
        return attrs.evolve(self.definition, cluster=ClusterDef(jobs))

    def announce(self, path: str | os.PathLike[str], bound: str) -> None:
        """Adds the address to a file; see `wait_for_addresses`.

        Raises:
          AddressError: If that cannot be written.
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
    """Returns the definition of a task with nothing left out.

    Args:
      server_or_cluster_def: The task, or the cluster that it is in.
      job_name: Its job; by default that of the definition, or the only one.
      task_index: Its index; by default that of the definition, or of the only task.
      protocol: How it is dialled; by default that of the definition.

    Raises:
      MembershipError: If the cluster has no such task, or it is not plain which is meant.
      InvalidValueError: If it is no cluster, or the protocol is another than gRPC.
    """
    given = server_or_cluster_def if isinstance(server_or_cluster_def, ServerDef) else ServerDef(server_or_cluster_def)
    explicit = {"job_name": job_name or None, "task_index": task_index, "protocol": protocol}
    task = attrs.evolve(given, **{name: value for name, value in explicit.items() if value is not None})
    if cast(object, task.protocol) != PROTOCOL:
        raise InvalidValueError(
            f"Expected {PROTOCOL!r} as protocol, found {task.protocol!r}; certificates in the configuration make it TLS"
        )
    spec = ClusterSpec(task.cluster)
    job = task.job_name or _only_job(spec)
    index = _only_task(spec, job) if task.task_index is None else task.task_index
    spec.task_address(job, index)
    return attrs.evolve(task, job_name=job, task_index=index)


def _only_job(spec: ClusterSpec) -> str:
    if not spec:
        raise MembershipError("Expected a cluster with jobs, found none in it")
    if len(spec.jobs) > 1:
        jobs = ", ".join(map(repr, spec.jobs))
        raise MembershipError(f"Expected job_name for a cluster with {len(spec.jobs)} jobs ({jobs}), found none")
    return spec.jobs[0]


def _only_task(spec: ClusterSpec, job: str) -> int:
    indices = spec.task_indices(job)
    if not indices:
        raise MembershipError(f"Expected a job with tasks, found none in {job!r}")
    if len(indices) > 1:
        tasks = ", ".join(map(str, indices))
        raise MembershipError(f"Expected task_index for job {job!r} with {len(indices)} tasks ({tasks}), found none")
    return indices[0]
