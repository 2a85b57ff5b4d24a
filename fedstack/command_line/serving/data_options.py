"""The options of `fedstack serve` for the data service."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from fedstack.command_line.environment_options import EnvironmentOption, Switch

if TYPE_CHECKING:
    from fedstack.service.limits.limits import DispatcherLimits
    from fedstack.transport.peers.methods import Service

DATA_OPTIONS = (
    Switch("--data-dispatcher", "be the dispatcher of a data service as well: know datasets, divide the work on them"),
    EnvironmentOption(
        "--work-dir",
        "DIR",
        "folder for the dispatcher's journal, with which it goes on where it was; by default it keeps nothing",
        type=Path,
    ),
)


def data_services(options: SimpleNamespace, limits: "DispatcherLimits") -> "list[Service]":
    """Returns the services that the options ask for.

    Raises:
      click.UsageError: If options are missing.
      JournalError: If the journal cannot be used.
    """
    if not options.data_dispatcher:
        if options.given.get("work_dir", "").startswith("--"):
            raise click.UsageError("Expected --data-dispatcher beside --work-dir, found none; give it too")
        return []
    from fedstack.service.data.dispatcher.dispatch_service import DispatchService
    from fedstack.service.data.dispatcher.journal import Journal

    return [DispatchService(Journal(options.work_dir), limits=limits)]
