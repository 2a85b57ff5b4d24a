"""The subcommand `fedstack serve`."""

import contextlib
import faulthandler
import gc
import logging
import os
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, TextIO

import click

from fedstack.command_line.command import SUCCESS, options_of, subcommand
from fedstack.command_line.make_server import dialled_address, listens_at, make_server, ready_line, task_in
from fedstack.command_line.output import all_output_to_standard_error, configure_logging, json_line, printed_as_json
from fedstack.command_line.serve_options import SERVE_OPTIONS
from fedstack.command_line.shutdown_requests import PARENT_GONE, ShutdownRequests, empty_standard_input

_logger = logging.getLogger(__name__)
# How long a computing thread keeps the interpreter while the loop, which needs it for each call, waits.
_SWITCH_SECONDS = 0.001


@click.pass_context
def run(context: click.Context, **_: Any) -> int:
    """Serves until asked to stop; prints only one line to standard output, once the server can be dialled."""
    options = options_of(context)
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # standard error may be missing
        if not faulthandler.is_enabled():
            faulthandler.enable()  # a crash in a client's function prints its traceback before the process ends
    if options.log_level == "debug":
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC's own lines have another format, and repeat our errors
    # The output of functions is not for the reader of that line.
    waiting = sys.stdout
    # Before anything that a client sends is loaded.
    convert = printed_as_json if options.log_format == "json" else None
    with all_output_to_standard_error(convert) as out, empty_standard_input() as standard_input:
        configure_logging(options.log_level, options.log_format, out)
        return _serve(options, standard_input, waiting)


def _serve(options: SimpleNamespace, standard_input: int | None, waiting: TextIO) -> int:
    from fedstack.service.host.server_thread import ServerThread

    requests = ShutdownRequests()
    if options.exit_with_parent:
        requests.from_parent(standard_input)
    with requests.from_signals():
        sys.setswitchinterval(_SWITCH_SECONDS)
        task = task_in(options)
        server = make_server(options, task)
        thread = ServerThread(server)
        with _telemetry(options), _metrics_page(options) as metrics:
            thread.start()
            gc.freeze()  # imported modules stay, so the collector can skip them
            if task is not None and options.addresses is not None:
                task.announce(options.addresses, server.target)
            dialled = dialled_address(server.target, listens_at(options, task))
            line = ready_line(dialled, options, task) + (f"; metrics at {metrics}" if metrics else "")
            if options.log_format == "json":
                line = json_line("info", __name__, line, target=dialled, metrics=metrics or None)
            print(line, file=waiting, flush=True)
            who = requests.wait()
            _logger.info("Asked to stop by %s", who)
            thread.stop(0.0 if who == PARENT_GONE else None)
    return SUCCESS


def _telemetry(options: SimpleNamespace) -> AbstractContextManager[object]:
    """Exports the events of the block to OpenTelemetry, if the options ask for it."""
    from fedstack.observe.telemetry import export_to_opentelemetry

    return export_to_opentelemetry() if options.opentelemetry else contextlib.nullcontext()


@contextlib.contextmanager
def _metrics_page(options: SimpleNamespace) -> Generator[str]:
    """Serves the page of metrics during the block, if the options ask for it; yields its URL, or an empty text."""
    if options.metrics_port is None:
        yield ""
        return
    from fedstack.service.host.metrics_page import MetricsPage

    with MetricsPage(options.metrics_host, options.metrics_port) as page:
        yield page.url


COMMAND = subcommand(
    "serve",
    run,
    "Run computations of other processes: a worker for remote executors.",
    SERVE_OPTIONS,
    more="In brackets are the variables that options can be given as, and the defaults; the command line wins.",
)
