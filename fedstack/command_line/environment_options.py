"""Lets options of the command line be given as environment variables too, as containers like it.

`--max-sessions` is `FEDSTACK_MAX_SESSIONS`. An option on the command line wins; an empty variable counts as absent.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence

PREFIX = "FEDSTACK_"
# To a pod beside a service that is called fedstack, Kubernetes says FEDSTACK_PORT=tcp://10.0.0.1:8000.
_OF_KUBERNETES = ("tcp://", "udp://", "sctp://")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class _FromEnvironment(str):
    """A value that came from a variable, so that a complaint about it can name that."""

    variable: str


class EnvironmentOptions:
    """Adds options to a parser, each with its variable.

    Args:
      parser: Gets the options.
      environment: Has the variables; the process's own by default.

    The namespace of options tells what was given: in `given` on the command line, in `of_environment` by a variable.
    """

    def __init__(self, parser: argparse.ArgumentParser, environment: Mapping[str, str] | None = None) -> None:
        self._parser = parser
        self._environment = os.environ if environment is None else environment
        self._found: frozenset[str] = frozenset()

    def add(
        self,
        option: str,
        metavar: str,
        description: str,
        *,
        type: Callable[[str], object] = str,
        default: object = None,
    ) -> None:
        """Adds an option with a value."""
        variable, found = self._look_up(option)
        self._parser.add_argument(
            option,
            action=_Given,
            metavar=metavar,
            type=_naming_the_variable(type),
            default=default if found is None else found,
            help=_help(description, variable, default if found is None else found),
        )

    def add_switch(self, option: str, description: str) -> None:
        """Adds an option that is on or off, with a `--no-` form to turn off what the variable turned on."""
        variable, found = self._look_up(option)
        self._parser.add_argument(
            option,
            f"--no-{option.removeprefix('--')}",
            action=_Switch,
            type=_naming_the_variable(_yes_or_no),
            default=False if found is None else found,
            help=_help(description, variable, found),
        )

    def add_repeatable(self, option: str, metavar: str, description: str) -> None:
        """Adds an option that may be given several times; in the variable, commas are between its values."""
        variable, found = self._look_up(option)
        self._parser.add_argument(
            option,
            action=_Repeated,
            metavar=metavar,
            type=_naming_the_variable(_parts),
            default=() if found is None else found,
            help=_help(f"{description}; may be repeated, or be several with commas", variable, found),
        )

    def _look_up(self, option: str) -> tuple[str, _FromEnvironment | None]:
        variable = variable_of(option)
        value = self._environment.get(variable, "").strip()
        if not value or value.startswith(_OF_KUBERNETES):
            return variable, None
        found = _FromEnvironment(value)
        found.variable = variable
        self._found |= {option.removeprefix("--").replace("-", "_")}
        self._parser.set_defaults(of_environment=self._found)
        return variable, found


def variable_of(option: str) -> str:
    """Returns the variable that stands for an option, as in `--max-sessions`."""
    return PREFIX + option.removeprefix("--").replace("-", "_").upper()


class _Given(argparse.Action):
    """An option with a value, which tells that it was given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = getattr(namespace, "given", frozenset[str]()) | {self.dest}


class _Switch(argparse.Action):
    """An option without a value, which has two names."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: object) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)  # type: ignore[arg-type]

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, not (option_string or "").startswith("--no-"))


class _Repeated(argparse.Action):
    """An option that adds its values to those that came before on the command line, not to the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, (*(() if before is self.default else before), *(values or ())))


def _help(description: str, variable: str, default: object) -> str:
    # argparse tells each default that the text does not. Of one that is nothing it tells nothing with this.
    return f"{description} [{variable}]" + ("%(default).0s" if default is None else "")


def one_of(*choices: str) -> Callable[[str], str]:
    """Returns the `type` of an option with a few possible values; argparse's own `choices` lets any default pass."""

    def parse(text: str) -> str:
        if text in choices:
            return text
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(choices)}, found {text!r}")

    return parse


def _yes_or_no(text: str) -> bool:
    if text.lower() in _YES + _NO:
        return text.lower() in _YES
    raise argparse.ArgumentTypeError(f"expected one of {', '.join(_YES + _NO)}, found {text!r}")


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _naming_the_variable(parse: Callable[[str], object]) -> Callable[[str], object]:
    def parse_and_say_where(text: str) -> object:
        try:
            return parse(text)
        except argparse.ArgumentTypeError as error:
            if isinstance(text, _FromEnvironment):
                raise argparse.ArgumentTypeError(f"{error}; in the environment variable {text.variable}") from error
            raise

    return parse_and_say_where
