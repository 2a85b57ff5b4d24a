"""The subcommand `fedstack certs`."""

import argparse
import shlex
import sys
from pathlib import Path

from fedstack.command_line.command import SUCCESS, whole_number

NAME = "certs"
SUMMARY = "Make test certificates: an authority, a server and a client, to try TLS with."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the certificates."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the files go")
    parser.add_argument(
        "--name",
        action="append",
        metavar="NAME",
        help="host name or IP address of the server; may be repeated (default: localhost, 127.0.0.1, ::1)",
    )
    parser.add_argument("--days", type=whole_number(1, 3650), default=30, metavar="N", help="how long they are valid")
    parser.add_argument("--force", action="store_true", help="write over files that are there")


def run(options: argparse.Namespace) -> int:
    """Makes the files: their names go to standard output, what to do with them to standard error."""
    from fedstack.service.server.certificates import DEFAULT_NAMES, make_test_certificates  # needs an extra

    names: list[str] = options.name or list(DEFAULT_NAMES)
    files = make_test_certificates(options.folder, names, days=options.days, force=options.force)
    for path in files:
        print(path)
    ca, server_cert, server_key, client_cert, client_key = (
        shlex.quote(str(path))
        for path in (files.ca, files.server_cert, files.server_key, files.client_cert, files.client_key)
    )
    address = shlex.quote(_dialled(names[0]) + ":8000")
    print(
        f"For tests only: the keys are not encrypted. Valid for {options.days} days and for {', '.join(names)}.\n"
        f"  fedstack serve --tls-cert {server_cert} --tls-key {server_key} --tls-client-ca {ca}\n"
        f"  fedstack check {address} --tls-ca {ca} --tls-cert {client_cert} --tls-key {client_key}",
        file=sys.stderr,
    )
    return SUCCESS


def _dialled(name: str) -> str:
    return f"[{name}]" if ":" in name else name
