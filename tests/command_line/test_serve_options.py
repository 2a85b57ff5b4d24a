"""The options of `fedstack serve`, which are made of the fields of configurations."""

import attrs
import click
import pytest

from fedstack.__main__ import main
from fedstack.command_line.command import EnvironmentOption, options_of
from fedstack.command_line.serve_command import COMMAND
from fedstack.command_line.serve_options import (
    LIMITS,
    SERVE_OPTIONS,
    ServeConfig,
    field_descriptions,
    limits_of,
)
from fedstack.service.host.config import HostConfig


def test_each_option_has_a_group_and_says_what_its_field_is_for() -> None:
    for option in SERVE_OPTIONS:
        assert isinstance(option, EnvironmentOption)
        assert option.group != "Options"
        assert option.help is not None
        assert option.help.partition(" [FEDSTACK_")[0], option.opts


def test_each_field_and_each_limit_is_an_option() -> None:
    names = {option.name for option in SERVE_OPTIONS}
    assert len(names) == len(SERVE_OPTIONS)
    assert {field.name for field in attrs.fields(ServeConfig)} <= names
    for table in LIMITS:
        assert {field.name for field in attrs.fields(table)} - names <= {"chunking"}


@pytest.mark.parametrize("table", [*LIMITS, HostConfig, ServeConfig])
def test_a_class_says_of_each_field_what_it_is(table: type[attrs.AttrsInstance]) -> None:
    assert field_descriptions(table).keys() == {field.name for field in attrs.fields(table)}


@pytest.mark.parametrize("table", LIMITS)
def test_without_options_the_limits_are_those_of_a_program(table: type[attrs.AttrsInstance]) -> None:
    options = options_of(COMMAND.make_context("serve", []))
    assert limits_of(table, options) == table()
    defaults = HostConfig()
    for name in ("host", "unix_socket", "token_file", "insecure", "compression", "grace_seconds"):
        assert getattr(options, name) == getattr(defaults, name)


def test_help_shows_the_options_in_their_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    headings = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    groups = [option.group for option in SERVE_OPTIONS if isinstance(option, EnvironmentOption)]
    assert headings == [*dict.fromkeys(groups), "Options"]
    assert all(option.opts[0] in text for option in SERVE_OPTIONS if isinstance(option, click.Option))
