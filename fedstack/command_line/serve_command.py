"""The subcommand `fedstack serve`."""

import contextlib
import faulthandler
import gc
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import attrs
import click

from fedstack._version import __version__
from fedstack.command_line.call_options import CALL_OPTIONS, calls_with
from fedstack.command_line.cluster_options import CLUSTER_OPTIONS, listen_as_task
from fedstack.command_line.command import LOGS_JSON, SUCCESS, seconds, subcommand, whole_number
from fedstack.command_line.environment_options import EnvironmentOption, RepeatableOption, Switch, options_of
from fedstack.command_line.forgiving_output import all_output_to_standard_error
from fedstack.command_line.log_format import FORMATS, LEVELS, configure_logging, json_line, printed_as_json
from fedstack.command_line.shutdown_requests import PARENT_GONE, ShutdownRequests
from fedstack.command_line.standard_input import empty_standard_input
from fedstack.errors import InvalidValueError
from fedstack.service.limits.limits import ServerLimits, ServiceLimits, option_of

if TYPE_CHECKING:
    from fedstack.service.cluster.task import Task
    from fedstack.service.server.grpc_server import GrpcServer
    from fedstack.transport.grpc.credentials import ServerCredentials

_Table = TypeVar("_Table", bound=attrs.AttrsInstance)

_logger = logging.getLogger(__name__)
# Threads that compute keep the interpreter for so long. The loop, which asks for it with each call, waits for each.
_SWITCH_SECONDS = 0.001


def _host(text: str) -> str:
    if text.startswith("[") and text.endswith("]") and ":" in text:  # as in addresses with a port
        return text[1:-1]
    if text.strip():
        return text
    raise click.BadParameter(
        f"expected a name or an address of this machine, found {text!r}; 127.0.0.1 is for this machine alone, 0.0.0.0 "
        "for every network it is in"
    )


def _limit_options() -> Iterator[click.Option]:
    """Yields an option for each limit."""
    for field in (*attrs.fields(ServiceLimits), *attrs.fields(ServerLimits)):
        if "most" in field.metadata:
            metavar = "BYTES" if field.name.endswith("_bytes") else "N"
            kind, description = whole_number(1, field.metadata["most"]), f"most {field.metadata['what']}"
        elif "what" in field.metadata:
            metavar, kind, description = "SECONDS", seconds(1), f"how long {field.metadata['what']}"
        else:
            continue
        yield EnvironmentOption(option_of(field.name), metavar, description, type=kind, default=field.default)


def _limits(table: type[_Table], options: SimpleNamespace) -> _Table:
    """Returns the limits of a table that the options ask for."""
    given = vars(options)
    return table(**{f.name: given[f.name] for f in attrs.fields(table) if f.name in given})


@click.pass_context
def run(context: click.Context, **_: Any) -> int:
    """Serves until told to stop: one line goes to standard output, once the server can be dialled, and no more."""
    options = options_of(context)
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # there may be no standard error
        if not faulthandler.is_enabled():
            faulthandler.enable()  # a crash in a client's function says where, before the process ends
    if options.log_level == "debug":
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it says nothing: it is in no format, and we say it too
    # What functions print is not for whoever waits for that line.
    waiting = sys.stdout
    # Before anything that a client sends is loaded.
    convert = printed_as_json if options.log_format == "json" else None
    with all_output_to_standard_error(convert) as out, empty_standard_input() as standard_input:
        configure_logging(options.log_level, options.log_format, out)
        return _serve(options, standard_input, waiting)


def _serve(options: SimpleNamespace, standard_input: int | None, waiting: TextIO) -> int:
    from fedstack.service.server.server_thread import ServerThread

    requests = ShutdownRequests()
    if options.exit_with_parent:
        requests.from_parent(standard_input)
    with requests.from_signals():
        sys.setswitchinterval(_SWITCH_SECONDS)
        task = listen_as_task(options)
        server = make_server(options)
        thread = ServerThread(server)
        with _telemetry(options), _metrics_page(options) as metrics:
            thread.start()
            gc.freeze()  # what has been imported stays: the collector need not look at it again and again
            if task is not None and options.addresses is not None:
                task.announce(options.addresses, server.target)
            _say_ready(dialled_address(server.target, options), metrics, options, waiting, task)
            who = requests.wait()
            _logger.info("Asked to stop by %s", who)
            thread.stop(0.0 if who == PARENT_GONE else None)
    return SUCCESS


def _say_ready(
    target: str, metrics: str, options: SimpleNamespace, waiting: TextIO, task: "Task | None" = None
) -> None:
    line = ready_line(target, options, task) + (f"; metrics at {metrics}" if metrics else "")
    if options.log_format == "json":
        line = json_line("info", __name__, line, target=target, metrics=metrics or None)
    print(line, file=waiting, flush=True)


def _telemetry(options: SimpleNamespace) -> AbstractContextManager[object]:
    """Gives OpenTelemetry what happens in the block, if the options say so."""
    from fedstack.observe.telemetry import export_to_opentelemetry

    return export_to_opentelemetry() if options.opentelemetry else contextlib.nullcontext()


@contextlib.contextmanager
def _metrics_page(options: SimpleNamespace) -> Generator[str]:
    """Serves the page of metrics for the block, if the options ask for one; yields where, or an empty text."""
    if options.metrics_port is None:
        yield ""
        return
    from fedstack.service.metrics.metrics_page import MetricsPage

    with MetricsPage(options.metrics_host, options.metrics_port) as page:
        yield page.url


def make_server(options: SimpleNamespace) -> "GrpcServer":
    """Returns the server that the options ask for, not started yet.

    Raises:
      click.UsageError: If the options do not fit each other, or name files that cannot be read.
    """
    from fedstack.computations.leaves.carrier_policy import CarrierPolicy
    from fedstack.executors.stacks.factories import local_executor_factory
    from fedstack.service.executor.executor_service import ExecutorService
    from fedstack.service.rpc.method_service import MethodService
    from fedstack.service.server.grpc_server import GrpcServer

    _check_address(options)
    if options.metrics_port is None and options.given.get("metrics_host", "").startswith("--"):
        raise click.UsageError("Expected a port for the page of metrics, found only a host; give --metrics-port too")
    if options.clients > options.max_clients:
        raise click.UsageError(
            f"Expected at most {options.max_clients} clients where a request does not say (--max-clients), found "
            f"{options.clients}; give a smaller --clients or a larger --max-clients"
        )
    _warn_of_missing_modules(options.allow_module)
    try:
        credentials = _credentials(options)
        policy = CarrierPolicy(
            options.allow_module, options.allow_python_code, options.allow_runtime, options.strict_modules
        )
        service = ExecutorService(
            local_executor_factory(options.clients, max_concurrent_clients=options.threads),
            limits=_limits(ServiceLimits, options),
            policy=policy,
            calls_with=calls_with(options),
        )
        # What is registered is a program's own; a task has the place for it, as those of programs do.
        methods = [] if options.cluster is None else [MethodService(limits=_limits(ServiceLimits, options))]
        return GrpcServer(
            [service, *methods],
            host=options.host,
            port=options.port,
            unix_socket=options.unix_socket,
            credentials=credentials,
            insecure=options.insecure,
            limits=_limits(ServerLimits, options),
            compression=options.compression,
            grace_seconds=options.grace_seconds,
        )
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from error


def ready_line(target: str, options: SimpleNamespace, task: "Task | None" = None) -> str:
    """Returns what tells that the server can be dialled: where, by whom, and what it runs for them."""
    from fedstack.service.server.listening import TcpListener

    traits = ["TLS" if options.tls_cert else "insecure"]
    if options.tls_client_ca:
        traits.append("client certificates")
    if options.token_file:
        traits.append("token")
    if options.unix_socket:
        traits.append("this user only")
    elif _is_private(options):
        traits.append("loopback only")
    elif TcpListener(options.host, options.port).is_everywhere:
        traits.append("every network of this machine")
    if task is not None:
        traits.append(str(task))
    code = "allowed" if options.allow_python_code else "refused"
    modules = f"; modules {', '.join(options.allow_module)}" if options.allow_module else ""
    runtimes = f"; runtimes {', '.join(options.allow_runtime)}" if options.allow_runtime else ""
    return f"fedstack {__version__} serving on {target} ({', '.join(traits)}); python code {code}{modules}{runtimes}"


def dialled_address(target: str, options: SimpleNamespace) -> str:
    """Returns what clients dial: for a server that listens at all addresses of this machine, by its name."""
    from fedstack.service.server.listening import TcpListener

    if options.unix_socket is not None or not TcpListener(options.host, options.port).is_everywhere:
        return target
    return f"{socket.gethostname() or 'localhost'}:{target.rpartition(':')[2]}"


def _check_address(options: SimpleNamespace) -> None:
    """Checks that there is one way to listen; of variables, only those clash that no option overrides."""
    given: Mapping[str, str] = options.given
    ways = [way for way in ("cluster", "unix_socket") if way in given]
    if not ways:
        return
    chosen = given[ways[0]]
    others = [given[name] for name in (*ways[1:], "host", "port") if name in given]
    if chosen.startswith("--"):
        others = [name for name in others if name.startswith("--")]
    if others:
        what = "a cluster, a socket, or host and port" if ways[0] == "cluster" else "a socket or host and port"
        raise click.UsageError(
            f"Expected {what} to listen at, found {' and '.join([chosen, *others])}; leave one or the other out"
        )


def _warn_of_missing_modules(modules: Sequence[str]) -> None:
    for module in modules:
        if module != "*" and not _is_installed(module):
            _logger.warning(
                "Expected modules that are installed here in --allow-module, found none named %r; %s",
                module,
                "correct the name, install it, or set PYTHONPATH"
                if all(map(str.isidentifier, module.split(".")))
                else "put commas between several, and leave patterns out: a module stands for all that is inside it",
            )


def _is_installed(module: str) -> bool:
    """Looks for a module without importing anything, which would run it."""
    path: Sequence[str] | None = None
    names = module.split(".")
    for depth in range(len(names)):
        name = ".".join(names[: depth + 1])
        try:
            found = PathFinder.find_spec(name, path) if depth else importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return False
        if found is None:
            return False
        path = list(found.submodule_search_locations or ())
    return True


def _credentials(options: SimpleNamespace) -> "ServerCredentials":
    from fedstack.transport.grpc.credentials import ServerCredentials

    credentials = ServerCredentials.from_files(
        certificate=options.tls_cert,
        private_key=options.tls_key,
        client_root_certificates=options.tls_client_ca,
        token_file=options.token_file,
    )
    _warn_of_invalid_certificates(options, credentials)
    return credentials


def _warn_of_invalid_certificates(options: SimpleNamespace, credentials: "ServerCredentials") -> None:
    """Warns of what no client will accept, or of what accepts none; it may be our clock that is wrong."""
    from fedstack.transport.grpc.certificate_checks import why_no_authority, why_not_valid

    for name, file, why in (
        ("--tls-cert", options.tls_cert, why_not_valid(credentials.certificate or b"")),
        ("--tls-client-ca", options.tls_client_ca, why_no_authority(credentials.client_root_certificates or b"")),
    ):
        if why is not None:
            _logger.warning(
                "Expected a certificate that is valid today in %s, found of %s that %s; give a new one, or set the "
                "clock",
                name,
                file,
                why,
            )


def _is_private(options: SimpleNamespace) -> bool:
    from fedstack.service.server.listening import TcpListener

    return options.unix_socket is not None or TcpListener(options.host, options.port).is_private


def _log_format(context: click.Context, _: click.Parameter, value: str) -> str:
    if value == "json":
        context.meta[LOGS_JSON] = True
    return value


COMMAND = subcommand(
    "serve",
    run,
    "Run computations of other processes: a worker for remote executors.",
    [
        EnvironmentOption(
            "--host", "HOST", "name or address to listen at; all but loopback need TLS", type=_host, default="127.0.0.1"
        ),
        EnvironmentOption(
            "--port", "PORT", "port to listen at, 0 for any free one", type=whole_number(0, 65_535), default=8000
        ),
        EnvironmentOption("--unix-socket", "PATH", "socket to listen at, instead of host and port", type=Path),
        *CLUSTER_OPTIONS,
        EnvironmentOption(
            "--clients", "N", "number of clients where a request does not say", type=whole_number(0), default=0
        ),
        EnvironmentOption("--tls-cert", "FILE", "certificate of the server (PEM)"),
        EnvironmentOption("--tls-key", "FILE", "key of the certificate (PEM)"),
        EnvironmentOption("--tls-client-ca", "FILE", "authority (PEM) that must have signed certificates of clients"),
        EnvironmentOption("--token-file", "FILE", "file with tokens, one a line; clients must know one of them"),
        *CALL_OPTIONS,
        Switch("--insecure", "let other machines in without TLS"),
        RepeatableOption("--allow-module", "MODULE", "installed module whose functions clients may call, * for any"),
        Switch(
            "--strict-modules",
            "refuse functions whose module differs from the client's, helpers and constants included",
        ),
        RepeatableOption("--allow-runtime", "NAME", "message, or package of them, whose leaf runtime clients may use"),
        Switch("--allow-python-code", "run Python code that clients send; beyond loopback only with --tls-client-ca"),
        *_limit_options(),
        Switch("--compression", "take compressed messages, which may be small to send and large to unfold"),
        EnvironmentOption("--threads", "N", "most threads that run functions", type=whole_number(1)),
        EnvironmentOption(
            "--metrics-port",
            "PORT",
            "port of a page with metrics for Prometheus, 0 for any free one; by default there is no such page",
            type=whole_number(0, 65_535),
        ),
        EnvironmentOption(
            "--metrics-host",
            "HOST",
            "name or address where that page is; it has no TLS, and asks for no token",
            type=_host,
            default="127.0.0.1",
        ),
        Switch("--opentelemetry", "give metrics and spans to OpenTelemetry, as opentelemetry-instrument sets it up"),
        EnvironmentOption(
            "--log-format",
            "FORMAT",
            " or ".join(FORMATS),
            type=click.Choice(FORMATS),
            default="text",
            is_eager=True,  # errors in other options are in this format too
            callback=_log_format,
        ),
        EnvironmentOption("--log-level", "LEVEL", ", ".join(LEVELS), type=click.Choice(LEVELS), default="warning"),
        EnvironmentOption(
            "--grace-seconds", "SECONDS", "how long running calls have when told to stop", type=seconds(0), default=30.0
        ),
        Switch("--exit-with-parent", "stop when standard input ends"),
    ],
    more="In brackets are the variables that options can be given as, and the defaults; the command line wins.",
)
