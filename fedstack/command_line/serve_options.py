"""The options of `fedstack serve`, made of the fields of configurations.

An option is a field of a class: what the class says of it under `Attributes` is the option's help, its default says
what kind of option it is, and its name that of its variable. What a server can be configured with is taken from its
configuration; `ServeConfig` has what the command alone has.
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
    """What `fedstack serve` has beside the configurations of what it serves.

    Attributes:
      cluster: A TOML file with the cluster that this is a task of, which says where it listens; or what would be in it.
      job: The job of the cluster that this is a task of; by default the only one.
      task: The index of the task in its job; by default that of the only one.
      addresses: A file to which this adds the address that it listens at, for tasks with port 0.
      tls_cert: The certificate of the server (PEM).
      tls_key: The key of the certificate (PEM).
      tls_client_ca: The authority (PEM) that must have signed certificates of clients.
      allow_module: An installed module whose functions clients may call, * for any.
      strict_modules: Whether to refuse functions whose module differs from the client's, helpers included.
      allow_runtime: A message, or a package of them, whose leaf runtime clients may use.
      allow_python_code: Whether to run Python code that clients send; beyond loopback only with --tls-client-ca.
      clients: The number of clients where a request does not say.
      threads: The most threads that run functions.
      call_ca: The authority (PEM) of servers that functions call, as for variables.
      call_cert: The certificate (PEM) to call them with; by default none.
      call_key: The key of that certificate (PEM).
      call_token_file: A file with the token to call them with; by default none.
      data_service: A dispatcher whose datasets clients' computations may refer to, which are read here.
      data_dispatcher: Whether to be the dispatcher of a data service as well, which divides the work on datasets.
      work_dir: A folder for the dispatcher's journal, with which it goes on where it was; by default it keeps nothing.
      data_worker: The address of a dispatcher of a data service: to be a worker of it as well, which reads datasets.
      worker_token_file: A file with tokens of data workers: a dispatcher asks for one, a data worker shows the first.
      data_root: A folder below which the data worker reads files of datasets.
      metrics_port: The port of a page with metrics for Prometheus, 0 for any free one; by default there is none.
      metrics_host: A name or an address where that page is; it has no TLS, and asks for no token.
      opentelemetry: Whether to give metrics and spans to OpenTelemetry, as opentelemetry-instrument sets it up.
      log_format: What the log looks like: text, or json.
      log_level: What is logged: debug, info, warning, or error.
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
    clients: int = _whole(0)
    threads: int | None = _whole(None, 1)
    call_ca: str | None = None
    call_cert: str | None = None
    call_key: str | None = None
    call_token_file: str | None = None
    data_service: tuple[str, ...] = ()
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


# What differs from what the field says: a server in a program listens at any port that is free.
_MORE: dict[str, dict[str, Any]] = {
    "port": {"default": 8000},
    # Errors in other options are in this format too.
    "log_format": {"type": click.Choice(FORMATS), "is_eager": True, "callback": _log_format},
    "log_level": {"type": click.Choice(LEVELS)},
    "unix_socket": {"metavar": "PATH"},
    "task": {"metavar": "INDEX"},
    "addresses": {"metavar": "FILE"},
    "data_service": {"metavar": "DISPATCHER"},
    "data_worker": {"metavar": "DISPATCHER"},
    "data_root": {"metavar": "DIR"},
}
_Fields = tuple[type[attrs.AttrsInstance], str]
_GROUPS: dict[str, tuple[_Fields, ...]] = {
    "Where it listens": ((HostConfig, "host port unix_socket"), (ServeConfig, "cluster job task addresses")),
    "Who may come in": ((ServeConfig, "tls_cert tls_key tls_client_ca"), (HostConfig, "token_file insecure")),
    "What clients may run": (
        (ServeConfig, "allow_module strict_modules allow_runtime allow_python_code clients threads"),
    ),
    "What functions call": ((ServeConfig, "call_ca call_cert call_key call_token_file data_service"),),
    "A data service": ((ServeConfig, "data_dispatcher work_dir data_worker worker_token_file data_root"),),
    "What it tells": ((ServeConfig, "metrics_port metrics_host opentelemetry log_format log_level"),),
    "How it stops": ((HostConfig, "grace_seconds"), (ServeConfig, "exit_with_parent")),
    "Limits of the server": ((HostConfig, "compression"), (ServerLimits, "")),
    "Limits of the executor service": ((ServiceLimits, ""),),
    "Limits of a dispatcher": ((DispatcherLimits, ""),),
    "Limits of a data worker": ((DataWorkerLimits, ""),),
}
# A name that several tables have is one option.
LIMITS = (ServiceLimits, ServerLimits, DispatcherLimits, DataWorkerLimits)


def what_is_said_of_fields(table: type[attrs.AttrsInstance]) -> dict[str, str]:
    """Returns what a class says of its fields under `Attributes`, each in one line."""
    section = inspect.cleandoc(table.__doc__ or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {2}(\w+): (.+(?:\n {4}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def limits_of(table: type[_Table], options: SimpleNamespace) -> _Table:
    """Returns the limits of a table that the options ask for."""
    given = vars(options)
    return table(**{f.name: given[f.name] for f in attrs.fields(table) if f.name in given})


def _option(field: "attrs.Attribute[Any]", said: str, group: str) -> click.Option:
    """Returns the option that sets a field."""
    name, help_text = option_of(field.name), said.partition(". ")[0].rstrip(".")
    metavar, default = name.rpartition("-")[2].upper(), field.default
    more: dict[str, Any] = {"metavar": metavar, "default": default, **_MORE.get(field.name, {})}
    if isinstance(default, bool):
        return Switch(name, help_text, group)
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
            said, fields = what_is_said_of_fields(table), attrs.fields_dict(table)
            for name in names.split() or [name for name, field in fields.items() if "what" in field.metadata]:
                if name not in made:
                    made.add(name)
                    yield _option(fields[name], said.get(name, ""), group)


SERVE_OPTIONS: tuple[click.Option, ...] = tuple(_options())
