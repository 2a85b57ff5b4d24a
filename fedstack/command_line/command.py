"""What a subcommand is, and how the command line runs one."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from fedstack.errors import FedstackError

SUCCESS, FAILURE, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


class UsageError(Exception):
    """An option has a value that does not fit; the message says what does."""


class Command(Protocol):
    """A subcommand: a module with these names.

    A module of a subcommand is imported whichever subcommand is called, so it imports what it needs inside `run`.
    """

    @property
    def NAME(self) -> str:
        """What it is called by."""
        ...

    @property
    def SUMMARY(self) -> str:
        """What it does, in a sentence that starts with a verb."""
        ...

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds its options to its own parser."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Runs it: results to standard output, all other text to standard error.

        Returns:
          The exit code.

        Raises:
          UsageError: If options do not fit each other or the data.
          FedstackError, ImportError, OSError: If it cannot go on; the message is all that the user sees.
        """
        ...


def run_command_line(commands: Sequence[Command], version: str, arguments: Sequence[str] | None) -> int:
    """Runs the subcommand that the arguments name.

    Returns:
      The exit code: 0 if all went well, 1 if not, 130 if interrupted.

    Raises:
      SystemExit: With code 2 for wrong usage, and with 0 once help or version is printed.
    """
    parser = _Parser(prog="fedstack", description="Runs federated computations.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"fedstack {version}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands:
        own = subparsers.add_parser(
            command.NAME,
            help=command.SUMMARY,
            description=command.SUMMARY,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        command.add_options(own)
        own.set_defaults(command=command, parser=own)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    chosen: Command = options.command
    parser_of_chosen: argparse.ArgumentParser = options.parser
    try:
        code = chosen.run(options)
        sys.stdout.flush()
        return code
    except UsageError as error:
        if getattr(options, "json", False):
            target = getattr(options, "target", None)
            print(json.dumps({"ok": False, "target": target, "error": str(error)}), flush=True)
        parser_of_chosen.error(str(error))
    except KeyboardInterrupt:
        print(f"\nfedstack {chosen.NAME}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain about the rest of it when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (FedstackError, ImportError, OSError) as error:
        if isinstance(error, ImportError) and error.name is not None:
            raise  # not one of ours, which say what to install, but a broken installation
        print(f"fedstack {chosen.NAME}: error: {error}", file=sys.stderr)
        return FAILURE


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the defaults that there are, and not that there is none."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments: the usage of a command with many options is long."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"{self.prog}: error: {message}; see '{self.prog} --help'\n")


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns the `type` of an option that is a whole number of at least `least`, and at most `most`."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        with contextlib.suppress(ValueError):
            if (number := int(text)) >= least and (most is None or number <= most):
                return number
        raise argparse.ArgumentTypeError(f"expected a whole number {bounds}, found {text!r}")

    return parse


def seconds(least: float, most: float | None = None) -> Callable[[str], float]:
    """Returns the `type` of an option that is a length of time of at least `least`, and at most `most`."""
    bounds = f"a finite number of seconds of at least {least:g}"
    if most is not None:
        bounds = f"a number of seconds from {least:g} to {most:g}"

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= (number := float(text)) < float("inf") and (most is None or number <= most):
                return number
        raise argparse.ArgumentTypeError(f"expected {bounds}, found {text!r}")

    return parse
