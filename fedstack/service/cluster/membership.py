"""Finds out which task of a cluster a server is."""

from typing import cast

import attrs

from fedstack.errors import InvalidValueError, MembershipError
from fedstack.transport.wire.cluster_spec import Cluster, ClusterSpec, ServerDef

PROTOCOL = "grpc"


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
