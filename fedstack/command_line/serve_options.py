"""Generates the options of `fedstack serve` from the fields of configuration classes.

Each option corresponds to a field of a class. The description of the field under `Attributes` is the help text, the
type of the default determines the kind of the option, and the name of the field determines the names of the option and
of its environment variable. Most of the classes also configure servers in programs; `ServeConfig` has the remaining
options.
"""

import inspect
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import attrs
import click

from fedstack.command_line.command import (
    LOGS_JSON,
    EnvironmentOption,
    RepeatableOption,
    Switch,
    seconds,
    whole_number,
)
from fedstack.command_line.output import FORMATS, LEVELS
from fedstack.service.host.config import MOST_PORT, HostConfig
from fedstack.service.host.limits import DataWorkerLimits, DispatcherLimits, ServerLimits, ServiceLimits, option_of

_Table = TypeVar("_Table", bound=attrs.AttrsInstance)


def _whole(default: int | None, least: int = 0, most: int | None = None) -> Any:
    return attrs.field(default=default, metadata={"least": least, "most": most})


@attrs.frozen(kw_only=True)
class ServeConfig:
    """The options of `fedstack serve` that are not fields of the configuration of a host or service.

    Attributes:
      cluster: A TOML file that describes the cluster in which this server is a task, or the content of such a file.
      job: The job of the task in the cluster; may be omitted if the cluster has only one job.
      task: The index of the task in its job; may be omitted if the job has only one task.
      addresses: A file to which the server adds its address, so that others can dial a task with port 0.
      tls_cert: The certificate of the server (PEM).
      tls_key: The private key of the server's certificate (PEM).
      tls_client_ca: The certificate of the authority that must have signed clients' certificates (PEM).
      allow_module: An installed module whose functions clients may call, or * for any module.
      strict_modules: Whether to refuse functions whose module, or a helper module, differs from the client's version.
      allow_runtime: A message type, or a package of message types, whose leaf runtime clients may use.
      allow_python_code: Whether to run Python code that clients send; beyond loopback only with --tls-client-ca.
      jax_exports: Whether to run functions that clients have exported with JAX; beyond loopback only for clients with a
        token or a certificate.
      clients: The number of clients for requests that do not specify one.
      threads: The maximum number of threads that run functions.
      call_ca: The certificate (PEM) of the authority for servers that functions call, for example to read variables.
      call_cert: The client certificate for calls to those servers (PEM); by default none.
      call_key: The private key of that client certificate (PEM).
      call_token_file: A file with the token for calls to those servers; by default none.
      data_service: A dispatcher; clients' computations may use its datasets, and clients' states that its data workers
        have, which this server reads.
      client_states: A folder with clients' states, such as those of runs, which this machine shares with the programs
        that own them; this server reads and writes the states there, so that they do not travel; as a data worker also
        for servers that use its dispatcher.
      data_dispatcher: Whether this server is also the dispatcher of a data service, which divides the work on datasets.
      work_dir: A folder for the dispatcher's journal, from which it continues after a restart; by default none.
      data_worker: The address of a dispatcher for which this server reads datasets, as a data worker.
      worker_token_file: A file of data worker tokens: a dispatcher accepts any of them, a data worker sends the first.
      data_root: A folder whose files the data worker may read for datasets.
      metrics_port: The port of a page with metrics for Prometheus, 0 for any free port; by default there is no page.
      metrics_host: The host name or address of the metrics page, which has no TLS and requires no token.
      opentelemetry: Whether to export metrics and spans to OpenTelemetry, as configured by opentelemetry-instrument.
      log_format: The format of the log: text or json.
      log_level: The lowest level to log: debug, info, warning or error.
      exit_with_parent: Whether to stop when standard input ends.
    """

    cluster: str | None = None
    job: str | None = None
    task: int | None = _whole(None)
    addresses: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    allow_module: tuple[str, ...] = ()
    strict_modules: bool = False
    allow_runtime: tuple[str, ...] = ()
    allow_python_code: bool = False
    jax_exports: bool = True
    clients: int = _whole(0)
    threads: int | None = _whole(None, 1)
    call_ca: str | None = None
    call_cert: str | None = None
    call_key: str | None = None
    call_token_file: str | None = None
    data_service: tuple[str, ...] = ()
    client_states: tuple[str, ...] = ()
    data_dispatcher: bool = False
    work_dir: str | None = None
    data_worker: str | None = None
    worker_token_file: str | None = None
    data_root: tuple[str, ...] = ()
    metrics_port: int | None = _whole(None, most=MOST_PORT)
    metrics_host: str = "127.0.0.1"
    opentelemetry: bool = False
    log_format: str = "text"
    log_level: str = "warning"
    exit_with_parent: bool = False


def _log_format(context: click.Context, _: click.Parameter, value: str) -> str:
    if value == "json":
        context.meta[LOGS_JSON] = True
    return value


# Where an option differs from its field. For example, a server in a program listens on any free port by default.
_MORE: dict[str, dict[str, Any]] = {
    "port": {"default": 8000},
    # Eager, so that errors in other options are already printed in this format.
    "log_format": {"type": click.Choice(FORMATS), "is_eager": True, "callback": _log_format},
    "log_level": {"type": click.Choice(LEVELS)},
    "unix_socket": {"metavar": "PATH"},
    "task": {"metavar": "INDEX"},
    "addresses": {"metavar": "FILE"},
    "data_service": {"metavar": "DISPATCHER"},
    "client_states": {"metavar": "FOLDER"},
    "data_worker": {"metavar": "DISPATCHER"},
    "data_root": {"metavar": "DIR"},
}
_Fields = tuple[type[attrs.AttrsInstance], str]
_GROUPS: dict[str, tuple[_Fields, ...]] = {
    "Address": ((HostConfig, "host port unix_socket streams stream_port"), (ServeConfig, "cluster job task addresses")),
    "Access": ((ServeConfig, "tls_cert tls_key tls_client_ca"), (HostConfig, "token_file insecure")),
    "What clients may run": (
        (ServeConfig, "allow_module strict_modules allow_runtime allow_python_code jax_exports clients threads"),
    ),
    "Servers that functions call": ((ServeConfig, "call_ca call_cert call_key call_token_file data_service"),),
    "Clients' states": ((ServeConfig, "client_states"),),
    "Data service": ((ServeConfig, "data_dispatcher work_dir data_worker worker_token_file data_root"),),
    "Monitoring": ((ServeConfig, "metrics_port metrics_host opentelemetry log_format log_level"),),
    "Shutdown": ((HostConfig, "grace_seconds"), (ServeConfig, "exit_with_parent")),
    "Limits of the server": ((HostConfig, "compression"), (ServerLimits, "")),
    "Limits of the executor service": ((ServiceLimits, ""),),
    "Limits of a dispatcher": ((DispatcherLimits, ""),),
    "Limits of a data worker": ((DataWorkerLimits, ""),),
}
# Fields of the same name in several tables share one option.
LIMITS = (ServiceLimits, ServerLimits, DispatcherLimits, DataWorkerLimits)


def field_descriptions(table: type[attrs.AttrsInstance]) -> dict[str, str]:
    """Returns the descriptions of the fields under `Attributes` in a class's docstring, each joined into one line."""
    section = inspect.cleandoc(table.__doc__ or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {2}(\w+): (.+(?:\n {4}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def limits_of(table: type[_Table], options: SimpleNamespace) -> _Table:
    """Returns a table of limits with the values of the options."""
    given = vars(options)
    return table(**{f.name: given[f.name] for f in attrs.fields(table) if f.name in given})


def _option(field: "attrs.Attribute[Any]", description: str, group: str) -> click.Option:
    """Returns the option that sets `field`."""
    name, help_text = option_of(field.name), description.partition(". ")[0].rstrip(".")
    metavar, default = name.rpartition("-")[2].upper(), field.default
    more: dict[str, Any] = {"metavar": metavar, "default": default, **_MORE.get(field.name, {})}
    if isinstance(default, bool):
        return Switch(name, help_text, group, default=default)
    if isinstance(default, tuple):
        return RepeatableOption(name, more["metavar"], help_text, group)
    if isinstance(default, float):
        more["type"] = seconds(field.metadata.get("least", 1))
    elif "most" in field.metadata:
        more["type"] = whole_number(field.metadata.get("least", 1), field.metadata["most"])
        more["metavar"] = "N" if more["metavar"] not in ("BYTES", "PORT", "INDEX") else more["metavar"]
    return EnvironmentOption(name, description=help_text, group=group, **more)


def _options() -> Iterator[click.Option]:
    made = set[str]()
    for group, tables in _GROUPS.items():
        for table, names in tables:
            described, fields = field_descriptions(table), attrs.fields_dict(table)
            for name in names.split() or [name for name, field in fields.items() if "what" in field.metadata]:
                if name not in made:
                    made.add(name)
                    yield _option(fields[name], described.get(name, ""), group)


SERVE_OPTIONS: tuple[click.Option, ...] = tuple(_options())
