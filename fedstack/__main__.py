"""The command line: `fedstack`, or `python -m fedstack`."""

import sys
from collections.abc import Sequence

from fedstack._version import __version__
from fedstack.command_line import (
    certs_command,
    check_command,
    demo_command,
    explain_error_command,
    runs_command,
    serve_command,
    status_command,
)
from fedstack.command_line.command import run_command_line

COMMANDS = tuple(
    module.COMMAND
    for module in (
        demo_command,
        serve_command,
        check_command,
        status_command,
        certs_command,
        runs_command,
        explain_error_command,
    )
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit code.

    Args:
      argv: The name of the subcommand and its arguments; by default the arguments of this process.
    """
    return run_command_line(COMMANDS, __version__, argv)


if __name__ == "__main__":
    sys.exit(main())
