"""Makes the server that the options of `fedstack serve` ask for."""

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from fedstack.command_line.serving.call_options import calls_with, data_reader
from fedstack.command_line.serving.data_options import data_services
from fedstack.command_line.serving.limit_options import limits_of
from fedstack.errors import InvalidValueError
from fedstack.service.limits.limits import ServerLimits, ServiceLimits

if TYPE_CHECKING:
    from fedstack.service.server.grpc_server import GrpcServer
    from fedstack.transport.grpc.credentials import ServerCredentials

_logger = logging.getLogger(__name__)


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
        own, limits, reads = calls_with(options), limits_of(ServiceLimits, options), data_reader(options)
        service = ExecutorService(
            local_executor_factory(options.clients, max_concurrent_clients=options.threads, data_backend=reads),
            limits=limits,
            policy=policy,
            calls_with=own,
            reads=reads,
        )
        # What is registered is a program's own; a task has the place for it, as those of programs do.
        methods = [] if options.cluster is None else [MethodService(limits=limits, calls_with=own)]
        return GrpcServer(
            [service, *methods, *data_services(options, policy)],
            host=options.host,
            port=options.port,
            unix_socket=options.unix_socket,
            credentials=credentials,
            insecure=options.insecure,
            limits=limits_of(ServerLimits, options),
            compression=options.compression,
            grace_seconds=options.grace_seconds,
        )
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from error


def _check_address(options: SimpleNamespace) -> None:
    """Checks that there is one way to listen; of variables, only those clash that no option overrides."""
    given: Mapping[str, str] = options.given
    ways = [way for way in ("cluster", "unix_socket") if way in given]
    if not ways:
        return
    chosen = given[ways[0]]
    places = ("port",) if ways[0] == "cluster" else ("host", "port")  # behind NAT others dial another host
    others = [given[name] for name in (*ways[1:], *places) if name in given]
    if chosen.startswith("--"):
        others = [name for name in others if name.startswith("--")]
    if others:
        what = "a cluster, a socket, or a port" if ways[0] == "cluster" else "a socket or host and port"
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
