"""The options of `fedstack serve`."""

from pathlib import Path

import click

from fedstack.command_line.command import LOGS_JSON, seconds, whole_number
from fedstack.command_line.environment_options import EnvironmentOption, RepeatableOption, Switch
from fedstack.command_line.log_format import FORMATS, LEVELS
from fedstack.command_line.serving.call_options import CALL_OPTIONS
from fedstack.command_line.serving.cluster_options import CLUSTER_OPTIONS
from fedstack.command_line.serving.data_options import DATA_OPTIONS
from fedstack.command_line.serving.limit_options import LIMIT_OPTIONS


def _host(text: str) -> str:
    if text.startswith("[") and text.endswith("]") and ":" in text:  # as in addresses with a port
        return text[1:-1]
    if text.strip():
        return text
    raise click.BadParameter(
        f"expected a name or an address of this machine, found {text!r}; 127.0.0.1 is for this machine alone, 0.0.0.0 "
        "for every network it is in"
    )


def _log_format(context: click.Context, _: click.Parameter, value: str) -> str:
    if value == "json":
        context.meta[LOGS_JSON] = True
    return value


SERVE_OPTIONS: tuple[click.Option, ...] = (
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
    *LIMIT_OPTIONS,
    *DATA_OPTIONS,
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
)
