"""Runs the subcommands of the command line, and defines the kinds of options that the subcommands share.

The modules of all subcommands are imported whichever subcommand is called, so each module imports its dependencies only
when its subcommand runs. A subcommand writes results to standard output and all other text to standard error, and
returns its exit code. If a subcommand raises an error, the user sees only the message of the error.

Options can also be set by environment variables, for example in containers: `FEDSTACK_MAX_SESSIONS` sets
`--max-sessions`. An option on the command line takes precedence. An empty variable counts as unset.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import click
from click.core import ParameterSource

from fedstack.command_line.output import json_line
from fedstack.errors import FedstackError
from fedstack.foundations.error_text import printable

SUCCESS, FAILURE, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
# A key in the `meta` of a context. If present, the command prints only JSON lines, including its errors.
LOGS_JSON = "fedstack.logs_json"
# Kubernetes sets FEDSTACK_PORT=tcp://10.0.0.1:8000 in pods next to a service named fedstack.
_OF_KUBERNETES = ("tcp://", "udp://", "sctp://")
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def run_command_line(commands: Sequence[click.Command], version: str, arguments: Sequence[str] | None) -> int:
    """Runs the subcommand that `arguments` specify.

    Args:
      commands: The subcommands.
      version: The version that `--version` prints.
      arguments: The command-line arguments; by default those of the process.

    Returns:
      The exit code: 0 for success, 1 for failure, 2 for incorrect usage, 130 if interrupted.
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
        given = list(sys.argv[1:] if arguments is None else arguments)
        with group.make_context("fedstack", given or ["--help"]) as context:
            code: int = group.invoke(context)
            sys.stdout.flush()
            return code
    except click.exceptions.Exit as end:  # help or version was printed
        return end.exit_code
    except click.UsageError as error:
        return _wrong_usage(error, context)
    except KeyboardInterrupt:
        _print_error("interrupted", context, before="\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Without this call, Python would report an error on exit when it
        # flushes the remaining output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (FedstackError, ImportError, OSError) as error:
        if isinstance(error, ImportError) and error.name is not None:
            raise  # a broken installation; our own errors have no `name`, and their messages name the extra to install
        _print_error(f"error: {error}", context)
        return FAILURE


def say(text: str = "", *, to_error: bool = False) -> None:
    """Prints text. Control characters are escaped, because the text may come from a peer."""
    print(printable(text), file=sys.stderr if to_error else sys.stdout)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> Iterator[str]:
    """Yields the lines of a table: a header and rows. The first `words` columns are left-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        yield "  ".join(cells).rstrip()


def _running(context: click.Context | None) -> str:
    chosen = None if context is None else context.invoked_subcommand
    return f"fedstack {chosen}" if chosen else "fedstack"


def _wrong_usage(error: click.UsageError, context: click.Context | None) -> int:
    """Prints a usage error in one line, without click's usage text, which is long for commands with many options."""
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


class _Subcommand(click.Command):
    """A command whose help lists its options by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, options in groupby(self.get_params(ctx), lambda option: getattr(option, "group", "Options")):
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)


def subcommand(
    name: str, run: Callable[..., int], summary: str, parameters: Iterable[click.Parameter], more: str = ""
) -> click.Command:
    """Returns a click command for a subcommand.

    Args:
      name: The name of the subcommand.
      run: The function that runs the subcommand. It is called with the values of the parameters, and returns the exit
        code.
      summary: The purpose of the subcommand, in a sentence that starts with a verb.
      parameters: The options and arguments of the subcommand.
      more: Further text for the help of the subcommand.
    """
    text = f"{summary} {more}".rstrip()
    return _Subcommand(
        name,
        callback=run,
        help=text,
        short_help=summary,
        params=list(parameters),
        context_settings={"max_content_width": 120},
    )


def option(
    name: str,
    metavar: str,
    description: str,
    *,
    type: Callable[[str], object] = str,
    default: object = None,
) -> click.Option:
    """Returns an option that takes a value. Its help shows the default if there is one."""
    shows = default is not None
    return click.Option([name], metavar=metavar, help=description, type=type, default=default, show_default=shows)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns the `type` of an option whose value is a whole number from `least` to `most`."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        with contextlib.suppress(ValueError):
            if (number := int(text)) >= least and (most is None or number <= most):
                return number
        raise click.BadParameter(f"expected a whole number {bounds}, found {text!r}")

    return parse


def seconds(least: float, most: float | None = None) -> Callable[[str], float]:
    """Returns the `type` of an option whose value is a time from `least` to `most` seconds."""
    bounds = f"a finite number of seconds of at least {least:g}"
    if most is not None:
        bounds = f"a number of seconds from {least:g} to {most:g}"

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= (number := float(text)) < float("inf") and (most is None or number <= most):
                return number
        raise click.BadParameter(f"expected {bounds}, found {text!r}")

    return parse


class EnvironmentOption(click.Option):
    """An option that can also be set by an environment variable. Its help shows the variable and the default.

    Args:
      name: The name of the option, such as `--port`.
      metavar: The placeholder for the value in the help.
      description: The help text of the option.
      group: The heading under which the help of the subcommand lists the option.
      more: Further arguments of `click.Option`.
    """

    def __init__(self, name: str, metavar: str | None, description: str, group: str = "Options", **more: Any) -> None:
        super().__init__([name], metavar=metavar, **more)
        self.group = group
        self.variable = self.envvar = f"FEDSTACK_{self.name.upper()}"
        default = more.get("default")
        self.help = f"{description} [{self.variable}{'' if default is None else f'={default}'}]"

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        value = (super().resolve_envvar_value(ctx) or "").strip()
        return value if value and not value.startswith(_OF_KUBERNETES) else None

    def consume_value(self, ctx: click.Context, opts: Mapping[str, click.Parameter]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        ctx.set_parameter_source(self.name, source)  # some releases of click set it only after the check
        return value, source

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return repr(self.given_as(ctx)) if ctx is not None else super().get_error_hint(ctx)

    def given_as(self, context: click.Context) -> str:
        """Returns the name of the environment variable or of the option, whichever set the value."""
        from_variable = context.get_parameter_source(self.name) is ParameterSource.ENVIRONMENT
        return self.variable if from_variable else self.opts[0]


class Switch(EnvironmentOption):
    """An option that is on or off. Its negative form (`--no-…`) overrides the environment variable."""

    def __init__(self, name: str, description: str, group: str = "Options", *, default: bool = False) -> None:
        shown = {"default": True} if default else {}
        super().__init__(f"{name}/--no-{name.removeprefix('--')}", None, description, group, **shown)


class RepeatableOption(EnvironmentOption):
    """An option with several values. The option may be repeated, and each value may be a comma-separated list."""

    def __init__(self, name: str, metavar: str, description: str, group: str = "Options") -> None:
        description = f"{description}; may be repeated, or given as a comma-separated list"
        super().__init__(name, metavar, description, group, multiple=True, callback=_parts)

    def value_from_envvar(self, ctx: click.Context) -> Sequence[str] | None:
        value = self.resolve_envvar_value(ctx)
        return None if value is None else [value]


def _parts(_: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def options_of(context: click.Context) -> SimpleNamespace:
    """Returns the values of all options and arguments.

    The attribute `given` of the result maps the name of each option that was set to the source of its value: the option
    or the environment variable.
    """
    options = [option for option in context.command.params if isinstance(option, EnvironmentOption)]
    given = {o.name: o.given_as(context) for o in options if context.get_parameter_source(o.name) in _GIVEN}
    return SimpleNamespace(**context.params, given=given)
