"""Options that can be given as environment variables too, as containers like it.

`--max-sessions` is `FEDSTACK_MAX_SESSIONS`. An option on the command line wins; an empty variable counts as absent.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import click
from click.core import ParameterSource

# To a pod beside a service that is called fedstack, Kubernetes says FEDSTACK_PORT=tcp://10.0.0.1:8000.
_OF_KUBERNETES = ("tcp://", "udp://", "sctp://")
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


class EnvironmentOption(click.Option):
    """An option with a variable; its help shows that, with the default."""

    def __init__(self, name: str, metavar: str | None, description: str, **more: Any) -> None:
        super().__init__([name], metavar=metavar, **more)
        self.variable = self.envvar = f"FEDSTACK_{self.name.upper()}"
        default = more.get("default")
        self.help = f"{description} [{self.variable}{'' if default is None else f'={default}'}]"

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        value = (super().resolve_envvar_value(ctx) or "").strip()
        return value if value and not value.startswith(_OF_KUBERNETES) else None

    def consume_value(self, ctx: click.Context, opts: Mapping[str, click.Parameter]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        ctx.set_parameter_source(self.name, source)  # some releases do so only once the value has been checked
        return value, source

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return repr(self.given_as(ctx)) if ctx is not None else super().get_error_hint(ctx)

    def given_as(self, context: click.Context) -> str:
        """Returns what it was given as: the variable, or the option."""
        from_variable = context.get_parameter_source(self.name) is ParameterSource.ENVIRONMENT
        return self.variable if from_variable else self.opts[0]


class Switch(EnvironmentOption):
    """An option that is on or off, with a form to turn off what its variable turned on."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(f"{name}/--no-{name.removeprefix('--')}", None, description)


class RepeatableOption(EnvironmentOption):
    """An option that may be given several times; commas are between several values, in the variable too."""

    def __init__(self, name: str, metavar: str, description: str) -> None:
        description = f"{description}; may be repeated, or be several with commas"
        super().__init__(name, metavar, description, multiple=True, callback=_parts)

    def value_from_envvar(self, ctx: click.Context) -> Sequence[str] | None:
        value = self.resolve_envvar_value(ctx)
        return None if value is None else [value]


def _parts(_: click.Context, option: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def options_of(context: click.Context) -> SimpleNamespace:
    """Returns the values of the options; `given` has what each was given as that was given."""
    options = [option for option in context.command.params if isinstance(option, EnvironmentOption)]
    given = {o.name: o.given_as(context) for o in options if context.get_parameter_source(o.name) in _GIVEN}
    return SimpleNamespace(**context.params, given=given)
