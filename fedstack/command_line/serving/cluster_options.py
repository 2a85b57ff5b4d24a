"""The options of `fedstack serve` that make it a task of a cluster."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from fedstack.command_line.command import whole_number
from fedstack.command_line.environment_options import EnvironmentOption
from fedstack.errors import FedstackError, InvalidValueError

if TYPE_CHECKING:
    from fedstack.service.cluster.task import Task

_ONLY_WITH_CLUSTER = "job", "task", "addresses"


CLUSTER_OPTIONS = (
    EnvironmentOption(
        "--cluster",
        "FILE",
        "TOML file with the cluster that this is a task of, which says where it listens; or what would be in it",
    ),
    EnvironmentOption("--job", "NAME", "job of the cluster that this is a task of; by default the only one"),
    EnvironmentOption(
        "--task", "INDEX", "index of the task in its job; by default that of the only one", type=whole_number(0)
    ),
    EnvironmentOption(
        "--addresses", "FILE", "file to which this adds the address that it listens at, for tasks with port 0"
    ),
)


def listen_as_task(options: SimpleNamespace) -> "Task | None":
    """Makes host and port those of a task, if the options name a cluster; returns the task.

    Raises:
      click.UsageError: If there is no such task, or options are missing.
    """
    if options.cluster is None:
        alone = [options.given[name] for name in _ONLY_WITH_CLUSTER if options.given.get(name, "").startswith("--")]
        if alone:
            raise click.UsageError(f"Expected --cluster beside {' and '.join(alone)}, found none; give it too")
        return None
    from fedstack.service.cluster.task import Task, task_of
    from fedstack.service.server.listening import place_of
    from fedstack.transport.wire.cluster_spec import ClusterSpec

    try:
        cluster = ClusterSpec.from_text(options.cluster)
    except FedstackError as error:
        raise click.BadParameter(str(error), param_hint=repr(options.given["cluster"])) from error
    try:
        host = options.host if "host" in options.given else ""
        task = Task(task_of(cluster, options.job, options.task), bool(options.tls_cert), host)
    except InvalidValueError as error:
        raise click.UsageError(str(error).replace("job_name", "--job").replace("task_index", "--task")) from error
    vars(options).update(place_of(task.listens))
    return task
