"""The subcommand `fedstack serve`, which runs a server."""

import contextlib
import faulthandler
import gc
import logging
import os
import sys
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TextIO

import click

from fedstack.command_line.command import SUCCESS, options_of, subcommand
from fedstack.command_line.make_server import dialled_address, listens_at, make_server, ready_line, task_in
from fedstack.command_line.output import all_output_to_standard_error, configure_logging, json_line, printed_as_json
from fedstack.command_line.serve_options import SERVE_OPTIONS
from fedstack.command_line.shutdown_requests import PARENT_GONE, ShutdownRequests, empty_standard_input
from fedstack.foundations.error_text import counted

if TYPE_CHECKING:
    from fedstack.service.host.host import Host

_logger = logging.getLogger(__name__)
# How long a thread that computes may keep the interpreter lock while the event loop waits for the lock.
_SWITCH_SECONDS = 0.001
# A server that stops within this time says nothing of the calls for which it has waited.
_SOON_SECONDS = 0.5


@click.pass_context
def run(context: click.Context, **_: Any) -> int:
    """Runs a server until it is requested to stop.

    Prints a single line to standard output once the server is ready for connections.
    """
    options = options_of(context)
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):  # standard error may be missing
        if not faulthandler.is_enabled():
            faulthandler.enable()  # a crash in a client's function then prints a traceback before the process ends
    if options.log_level == "debug":
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC's own log has another format, and repeats our errors
    # A process that waits for the ready line reads this stream, so functions must not print to it.
    waiting = sys.stdout
    # The redirections below must be in place before any function of a client is loaded.
    convert = printed_as_json if options.log_format == "json" else None
    with all_output_to_standard_error(convert) as out, empty_standard_input() as standard_input:
        configure_logging(options.log_level, options.log_format, out)
        return _serve(options, standard_input, waiting)


def _serve(options: SimpleNamespace, standard_input: int | None, waiting: TextIO) -> int:
    from fedstack.executors.concurrency.exit_wait import end_at_once
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
            gc.freeze()  # imported modules are never freed, so the collector can skip them
            if task is not None and options.addresses is not None:
                task.announce(options.addresses, server.target)
            dialled = dialled_address(server.target, listens_at(options, task))
            line = ready_line(dialled, options, task) + (f"; metrics at {metrics}" if metrics else "")
            if options.log_format == "json":
                line = json_line("info", __name__, line, target=dialled, metrics=metrics or None)
            print(line, file=waiting, flush=True)
            who = requests.wait()
            _logger.info("Stop requested by %s", who)
            end_at_once()
            if who == PARENT_GONE:
                thread.stop(0.0)
            else:
                with _telling_of_calls(server, options.grace_seconds):
                    thread.stop()
    return SUCCESS


@contextlib.contextmanager
def _telling_of_calls(server: "Host", grace_seconds: float) -> Generator[None, None, None]:
    """Tells for which calls the server waits, if it has not stopped soon."""

    def tell() -> None:
        if calls := server.running_calls:
            _logger.warning(
                "Waiting for %s, at most %g s (--grace-seconds); a second signal ends the process at once",
                *(counted(calls, "running call"), grace_seconds),
            )

    timer = threading.Timer(_SOON_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _telemetry(options: SimpleNamespace) -> AbstractContextManager[object]:
    """Exports events to OpenTelemetry during the block if the options enable it."""
    from fedstack.observe.telemetry import export_to_opentelemetry

    return export_to_opentelemetry() if options.opentelemetry else contextlib.nullcontext()


@contextlib.contextmanager
def _metrics_page(options: SimpleNamespace) -> Generator[str]:
    """Serves the metrics page during the block if the options enable it; yields its URL, or an empty string."""
    if options.metrics_port is None:
        yield ""
        return
    from fedstack.service.host.metrics_page import MetricsPage

    with MetricsPage(options.metrics_host, options.metrics_port) as page:
        yield page.url


COMMAND = subcommand(
    "serve",
    run,
    "Run a worker that executes computations for other processes.",
    SERVE_OPTIONS,
    more="In brackets are the environment variable and default of each option; the command line takes precedence.",
)
