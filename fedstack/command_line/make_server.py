"""Creates the server of `fedstack serve` from the options, and the line that announces the server."""

import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

import attrs
import click

from fedstack._version import __version__
from fedstack.command_line.peer_options import credentials_in
from fedstack.command_line.serve_options import limits_of
from fedstack.errors import FedstackError, InvalidValueError
from fedstack.service.host.config import HostConfig
from fedstack.service.host.limits import DataWorkerLimits, DispatcherLimits, ServerLimits, ServiceLimits
from fedstack.transport.wire.addresses import Target

if TYPE_CHECKING:
    from fedstack.service.cluster.server import ServerConfig
    from fedstack.service.cluster.task import ClusterTask
    from fedstack.service.host.host import Host
    from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
    from fedstack.transport.peers.methods import Service

_logger = logging.getLogger(__name__)
# Maps an option to the options that are valid only together with that option.
_ONLY_BESIDE = {
    "cluster": ("job", "task", "addresses"),
    "data_dispatcher": ("work_dir",),
    "data_worker": ("data_root",),
    "metrics_port": ("metrics_host",),
}


def task_in(options: SimpleNamespace) -> "ClusterTask | None":
    """Returns the task that the options select; `None` if the options specify no cluster.

    Raises:
      click.UsageError: If the cluster has no such task, or an option is given without the option that it requires.
    """
    for needed, names in _ONLY_BESIDE.items():
        alone = [options.given[name] for name in names if options.given.get(name, "").startswith("--")]
        if alone and (getattr(options, needed) is None or getattr(options, needed) is False):
            missing = f"--{needed.replace('_', '-')}"
            raise click.UsageError(f"Cannot use {' and '.join(alone)} without {missing}; add {missing}")
    if options.cluster is None:
        return None
    from fedstack.service.cluster.task import ClusterTask, task_of
    from fedstack.transport.wire.cluster_spec import ClusterSpec

    try:
        cluster = ClusterSpec.from_text(options.cluster)
    except FedstackError as error:
        raise click.BadParameter(str(error), param_hint=repr(options.given["cluster"])) from error
    try:
        host = options.host if "host" in options.given else ""
        return ClusterTask(task_of(cluster, options.job, options.task), bool(options.tls_cert), host)
    except InvalidValueError as error:
        raise click.UsageError(str(error).replace("job_name", "--job").replace("task_index", "--task")) from error


def listens_at(options: SimpleNamespace, task: "ClusterTask | None" = None) -> Target:
    """Returns the address to listen on: the task's if there is a task, otherwise the socket or the host and port."""
    if task is not None:
        return task.listens
    return HostConfig(host=options.host, port=options.port, unix_socket=options.unix_socket).listens


def dialled_address(target: str, listens: Target) -> str:
    """Returns the address that clients dial.

    Args:
      target: The address that the server reports, with its actual port.
      listens: The address that the server listens on. If it stands for all networks, clients dial the name of this
        machine instead.
    """
    return f"{socket.gethostname() or 'localhost'}:{target.rpartition(':')[2]}" if listens.is_everywhere else target


def ready_line(target: str, options: SimpleNamespace, task: "ClusterTask | None" = None) -> str:
    """Returns the line that announces the server: its address, who may connect, and which code clients may run."""
    listens = listens_at(options, task)
    traits = {
        "TLS": options.tls_cert,
        "insecure": not options.tls_cert,
        "client certificates": options.tls_client_ca,
        "token": options.token_file,
        "this user only": listens.socket_path,
        "loopback only": listens.is_local and not listens.socket_path,
        "every network of this machine": listens.is_everywhere,
        str(task): task,
    }
    runs = {
        f"python code {'allowed' if options.allow_python_code else 'refused'}": True,
        f"modules {', '.join(options.allow_module)}": options.allow_module,
        f"runtimes {', '.join(options.allow_runtime)}": options.allow_runtime,
        "JAX exports refused": not options.jax_exports,
        f"data services {', '.join(options.data_service)}": options.data_service,
        "compression allowed": options.compression,
        f"states of clients in {', '.join(options.client_states)}": options.client_states,
        "data dispatcher" + f" with its journal in {options.work_dir}" * (options.work_dir is not None): (
            options.data_dispatcher
        ),
        f"data worker of {options.data_worker}": options.data_worker,
    }
    who, what = ([words for words, is_so in found.items() if is_so] for found in (traits, runs))
    return f"fedstack {__version__} serving on {target} ({', '.join(who)}); {'; '.join(what)}"


def make_server(options: SimpleNamespace, task: "ClusterTask | None" = None) -> "Host":
    """Creates a server from the options, but does not start it.

    Raises:
      click.UsageError: If the options conflict, or name files that cannot be read.
    """
    from fedstack.computations.leaves.carrier_policy import CarrierPolicy
    from fedstack.data.client_states.store_folders import folders_of, warn_of_missing_folders
    from fedstack.service.cluster.server import ServerConfig
    from fedstack.service.host.host import Host

    _check_address(options)
    task = task or task_in(options)
    if options.clients > options.max_clients:
        raise click.UsageError(
            f"Expected --clients to be at most --max-clients ({options.max_clients}), found {options.clients}; lower "
            "--clients or raise --max-clients"
        )
    _warn_of_missing_modules(CarrierPolicy(options.allow_module).missing_modules)
    warn_of_missing_folders(folders_of(options.client_states), "--client-states")
    try:
        listens = listens_at(options, task)
        config = ServerConfig(
            _credentials(options),
            insecure=options.insecure,
            policy=CarrierPolicy(
                options.allow_module,
                options.allow_python_code,
                options.allow_runtime,
                options.strict_modules,
                options.jax_exports,
            ),
            limits=limits_of(ServiceLimits, options),
            server_limits=limits_of(ServerLimits, options),
            client_credentials=_client_credentials(options),
            data_services=options.data_service,
            client_states=options.client_states,
        )
        hosting = attrs.evolve(
            HostConfig.of(config, listens),
            streams=options.streams,
            stream_port=options.stream_port,
            compression=options.compression,
            grace_seconds=options.grace_seconds,
        )
        services: list[Service] = [config.executor_service(options.clients, options.threads)]
        if options.cluster is not None:
            # A task offers the service for registered methods, like a server that a program creates, although
            # `fedstack serve` itself registers no methods.
            services.append(config.method_service())
        return Host([*services, *_data_services(options, config, listens)], hosting)
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from error


def _data_services(options: SimpleNamespace, config: "ServerConfig", listens: Target) -> "Iterator[Service]":
    if options.data_worker is not None:
        from fedstack.service.data.worker.worker_server import WorkerConfig

        dialled = dialled_address(":%port%", listens)
        yield WorkerConfig(
            options.data_worker,
            None if dialled == ":%port%" else dialled,
            worker_token_file=options.worker_token_file,
            data_roots=options.data_root,
            client_states=options.client_states,
            policy=config.policy,
            limits=limits_of(DataWorkerLimits, options),
            service_limits=config.limits,
            client_credentials=config.client_credentials,
        ).service()
    if options.data_dispatcher:
        from fedstack.service.data.dispatcher.dispatch_server import DispatcherConfig

        yield DispatcherConfig(
            work_dir=options.work_dir,
            fault_tolerant_mode=options.work_dir is not None,
            worker_token_file=options.worker_token_file,
            limits=limits_of(DispatcherLimits, options),
        ).service()


def _check_address(options: SimpleNamespace) -> None:
    """Checks that the options specify a single address to listen on.

    If the command line specifies the cluster or socket, environment variables with other addresses are ignored.
    """
    given: Mapping[str, str] = options.given
    ways = [way for way in ("cluster", "unix_socket") if way in given]
    if not ways:
        return
    chosen = given[ways[0]]
    # A task may also have --host, because behind NAT the host to listen on differs from the host to dial.
    places = ("port",) if ways[0] == "cluster" else ("host", "port")
    others = [given[name] for name in (*ways[1:], *places) if name in given]
    if chosen.startswith("--"):
        others = [name for name in others if name.startswith("--")]
    if others:
        what = "a cluster, a socket, or a port" if ways[0] == "cluster" else "a socket, or host and port"
        raise click.UsageError(
            f"Expected one address to listen on ({what}), found {' and '.join([chosen, *others])}; remove all but one"
        )


def _warn_of_missing_modules(modules: Sequence[str]) -> None:
    for module in modules:
        _logger.warning(
            "Expected the modules in --allow-module to be installed on this machine, found no module named %r; %s",
            module,
            "correct the name, install the module, or set PYTHONPATH"
            if all(map(str.isidentifier, module.split(".")))
            else "separate modules by commas and do not use patterns; a module includes all its submodules",
        )


def _client_credentials(options: SimpleNamespace) -> "ClientCredentials | None":
    """Returns the credentials with which functions call other servers; `None` if no such option is set."""
    if not (options.call_ca or options.call_cert or options.call_key or options.call_token_file):
        return None
    return credentials_in(options, "call", options.call_token_file)


def _credentials(options: SimpleNamespace) -> "ServerCredentials":
    """Returns the credentials of the server; logs a warning about certificates that would make all clients fail.

    A certificate that is not valid today is not an error, because the clock of this machine may be wrong.
    """
    from fedstack.transport.grpc.credential_files import why_no_authority, why_not_valid
    from fedstack.transport.grpc.credentials import ServerCredentials

    pair = {"--tls-cert": options.tls_cert, "--tls-key": options.tls_key}
    missing = [name for name, file in pair.items() if not file]
    given = {**pair, "--tls-client-ca": options.tls_client_ca}
    found = [f"{name} {file}" for name, file in given.items() if file]
    if missing and found:
        raise InvalidValueError(
            f"Expected --tls-cert and --tls-key, which TLS needs, found only {' and '.join(found)}; add "
            f"{' and '.join(missing)}"
        )
    credentials = ServerCredentials.from_files(
        certificate=options.tls_cert,
        private_key=options.tls_key,
        client_root_certificates=options.tls_client_ca,
        token_file=options.token_file,
    )
    for name, file, why in (
        ("--tls-cert", options.tls_cert, why_not_valid(credentials.certificate or b"")),
        ("--tls-client-ca", options.tls_client_ca, why_no_authority(credentials.client_root_certificates or b"")),
    ):
        if why is not None:
            _logger.warning(
                "Expected a certificate for %s that is valid today, found %s: %s; provide a new certificate, or "
                "correct the clock",
                *(name, file, why),
            )
    return credentials
