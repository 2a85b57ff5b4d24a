"""The subcommand `fedstack certs`, which creates test certificates."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fedstack.command_line.command import SUCCESS, option, subcommand, whole_number
from fedstack.foundations.error_text import counted


def run(folder: Path, name: Sequence[str], days: int, force: bool) -> int:
    """Creates the certificates. Prints the paths of the files to standard output, and usage hints to standard error."""
    from fedstack.command_line.certificates import DEFAULT_NAMES, make_test_certificates  # requires the extra `certs`

    names = name or DEFAULT_NAMES
    files = make_test_certificates(folder, names, days=days, force=force)
    for path in files:
        print(path)
    ca, server_cert, server_key, client_cert, client_key = (shlex.quote(str(path)) for path in files)
    address = shlex.quote(_dialled(names[0]) + ":8000")
    print(
        f"For tests only: the keys are not encrypted. Valid for {counted(days, 'day')}, for {', '.join(names)}.\n"
        f"  fedstack serve --tls-cert {server_cert} --tls-key {server_key} --tls-client-ca {ca}\n"
        f"  fedstack check {address} --tls-ca {ca} --tls-cert {client_cert} --tls-key {client_key}",
        file=sys.stderr,
    )
    return SUCCESS


def _dialled(name: str) -> str:
    return f"[{name}]" if ":" in name else name


COMMAND = subcommand(
    "certs",
    run,
    "Create certificates for testing TLS: for an authority, a server and a client.",
    [
        click.Argument(["folder"], type=Path, metavar="FOLDER"),
        click.Option(
            ["--name"],
            metavar="NAME",
            multiple=True,
            help="host name or IP address of the server; may be repeated (default: localhost, 127.0.0.1, ::1)",
        ),
        option("--days", "N", "validity of the certificates in days", type=whole_number(1, 3650), default=30),
        click.Option(["--force"], is_flag=True, help="overwrite existing files"),
    ],
    more="The files are written to FOLDER.",
)
