"""How the command line runs a subcommand, and what the options of several subcommands have in common.

The module of a subcommand is imported whichever subcommand is called, so it imports what it needs when it runs. A
subcommand writes results to standard output, all other text to standard error, and returns its exit code. The message
of an error that it raises is all that the user sees.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence

import click

from fedstack.command_line.log_format import json_line
from fedstack.errors import FedstackError
from fedstack.foundations.error_text import printable

SUCCESS, FAILURE, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
# In the `meta` of a context: the command says everything as JSON lines, its errors too.
LOGS_JSON = "fedstack.logs_json"


def run_command_line(commands: Sequence[click.Command], version: str, arguments: Sequence[str] | None) -> int:
    """Runs the subcommand that the arguments name, by default those of the process.

    Returns:
      The exit code: 0 if all went well, 1 if not, 2 for wrong usage, 130 if interrupted.
    """
    group = click.Group(
        "fedstack",
        commands,
        help="Runs federated computations.",
        no_args_is_help=False,
        subcommand_metavar="COMMAND ...",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    click.version_option(version, message="%(prog)s %(version)s")(group)
    context: click.Context | None = None
    try:
        with group.make_context("fedstack", list(sys.argv[1:] if arguments is None else arguments)) as context:
            code: int = group.invoke(context)
            sys.stdout.flush()
            return code
    except click.exceptions.Exit as end:  # help or the version has been printed
        return end.exit_code
    except click.UsageError as error:
        return _wrong_usage(error, context)
    except KeyboardInterrupt:
        _print_error("interrupted", context, before="\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain about the rest of it when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (FedstackError, ImportError, OSError) as error:
        if isinstance(error, ImportError) and error.name is not None:
            raise  # not one of ours, which say what to install, but a broken installation
        _print_error(f"error: {error}", context)
        return FAILURE


def say(text: str = "", *, to_error: bool = False) -> None:
    """Prints what may have come from a peer: nothing in it is obeyed by the terminal."""
    print(printable(text), file=sys.stderr if to_error else sys.stdout)


def _running(context: click.Context | None) -> str:
    chosen = None if context is None else context.invoked_subcommand
    return f"fedstack {chosen}" if chosen else "fedstack"


def _wrong_usage(error: click.UsageError, context: click.Context | None) -> int:
    """Says in one line what is wrong with the arguments: the usage of a command with many options is long."""
    message = error.format_message().rstrip(".").replace("\n", " ")
    given = {} if error.ctx is None else error.ctx.params
    if given.get("json"):
        print(json.dumps({"ok": False, "target": given.get("target"), "error": message}), flush=True)
    _print_error(f"error: {message}; see '{_running(context)} --help'", context)
    return WRONG_USAGE


def _print_error(message: str, context: click.Context | None, before: str = "") -> None:
    if context is not None and LOGS_JSON in context.meta:
        print(json_line("error", _running(context), message.removeprefix("error: ")), file=sys.stderr)
    else:
        say(f"{before}{_running(context)}: {message}", to_error=True)


def subcommand(
    name: str, run: Callable[..., int], summary: str, parameters: Iterable[click.Parameter], more: str = ""
) -> click.Command:
    """Returns a subcommand.

    Args:
      name: What it is called by.
      run: Runs it with the values of the parameters, and returns its exit code.
      summary: What it does, in a sentence that starts with a verb.
      parameters: Its options and arguments.
      more: What else its help says.
    """
    text = f"{summary} {more}".rstrip()
    return click.Command(name, callback=run, help=text, short_help=summary, params=list(parameters))


def option(
    name: str,
    metavar: str,
    description: str,
    *,
    type: Callable[[str], object] = str,
    default: object = None,
) -> click.Option:
    """Returns an option with a value, whose help says the default if there is one."""
    shows = default is not None
    return click.Option([name], metavar=metavar, help=description, type=type, default=default, show_default=shows)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns the `type` of an option that is a whole number of at least `least`, and at most `most`."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        with contextlib.suppress(ValueError):
            if (number := int(text)) >= least and (most is None or number <= most):
                return number
        raise click.BadParameter(f"expected a whole number {bounds}, found {text!r}")

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
        raise click.BadParameter(f"expected {bounds}, found {text!r}")

    return parse
