"""The options of `fedstack serve` for the data service."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from fedstack.command_line.environment_options import EnvironmentOption, RepeatableOption, Switch
from fedstack.command_line.serving.call_options import calls_with
from fedstack.command_line.serving.limit_options import limits_of
from fedstack.command_line.serving.ready_line import dialled_address
from fedstack.service.limits.limits import DataWorkerLimits, DispatcherLimits, ServiceLimits

if TYPE_CHECKING:
    from fedstack.computations.leaves.carrier_policy import CarrierPolicy
    from fedstack.transport.grpc.file_watch import Renewed
    from fedstack.transport.peers.methods import Service

DATA_OPTIONS = (
    Switch("--data-dispatcher", "be the dispatcher of a data service as well: know datasets, divide the work on them"),
    EnvironmentOption(
        "--work-dir",
        "DIR",
        "folder for the dispatcher's journal, with which it goes on where it was; by default it keeps nothing",
        type=Path,
    ),
    EnvironmentOption(
        "--data-worker",
        "DISPATCHER",
        "address of the dispatcher of a data service: be a worker of it as well, that reads datasets",
    ),
    EnvironmentOption(
        "--worker-token-file",
        "FILE",
        "file with tokens of data workers, one a line: a dispatcher asks for one, a data worker shows the first",
    ),
    RepeatableOption("--data-root", "DIR", "folder below which the data worker reads files of datasets"),
)


def data_services(options: SimpleNamespace, policy: "CarrierPolicy") -> "list[Service]":
    """Returns the services that the options ask for.

    Args:
      options: The options.
      policy: Which functions the definitions of datasets may bring.

    Raises:
      click.UsageError: If options are missing.
      InvalidValueError: If the dispatcher's address is none.
      JournalError: If the journal cannot be used.
    """
    for name, needed in (("work_dir", "data_dispatcher"), ("data_root", "data_worker")):
        option, other = (f"--{one.replace('_', '-')}" for one in (name, needed))
        if not getattr(options, needed) and options.given.get(name, "").startswith("--"):
            raise click.UsageError(f"Expected {other} beside {option}, found none; give it too")
    return [*_worker(options, policy), *_dispatcher(options)]


def _dispatcher(options: SimpleNamespace) -> "Iterator[Service]":
    if options.data_dispatcher:
        from fedstack.service.data.dispatcher.dispatch_service import DispatchService
        from fedstack.service.data.dispatcher.journal import Journal

        tokens = _worker_tokens(options)
        yield DispatchService(
            Journal(options.work_dir), worker_tokens=tokens, limits=limits_of(DispatcherLimits, options)
        )


def _worker_tokens(options: SimpleNamespace) -> "Renewed[tuple[str, ...]] | None":
    from fedstack.service.data.serving.hosting import worker_tokens

    return worker_tokens(options.worker_token_file)


def _worker(options: SimpleNamespace, policy: "CarrierPolicy") -> "Iterator[Service]":
    if options.data_worker is not None:
        from fedstack.service.data.serving.local_servers import connect
        from fedstack.service.data.worker.data_worker_service import DataWorkerService
        from fedstack.transport.peers.dispatcher_stub import DispatcherStub

        dialled = dialled_address(":%port%", options)
        yield DataWorkerService(
            DispatcherStub(connect(options.data_worker, calls_with(options))),
            worker_address=None if dialled == ":%port%" else dialled,
            limits=limits_of(DataWorkerLimits, options),
            worker_tokens=_worker_tokens(options),
            policy=policy,
            data_roots=options.data_root,
            service_limits=limits_of(ServiceLimits, options),
            calls_with=calls_with(options),
        )
