"""Options that can be environment variables too."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import click
import pytest

from fedstack.command_line.command import (
    EnvironmentOption,
    RepeatableOption,
    Switch,
    options_of,
    run_command_line,
    seconds,
    subcommand,
    whole_number,
)

VARIABLES = ["MAX_SESSIONS", "GRACE_SECONDS", "LOG_FORMAT", "INSECURE", "ALLOW_MODULE"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(f"FEDSTACK_{name}", raising=False)
    return monkeypatch


def run(arguments: Sequence[str]) -> tuple[int, list[SimpleNamespace]]:
    """Returns the exit code of a subcommand, and its options if it comes so far."""
    found: list[SimpleNamespace] = []

    @click.pass_context
    def note(context: click.Context, **_: object) -> int:
        found.append(options_of(context))
        return 0

    options = [
        EnvironmentOption("--max-sessions", "N", "how many", type=whole_number(1), default=8),
        EnvironmentOption("--grace-seconds", "S", "how long", type=seconds(0), default=1.5),
        EnvironmentOption("--log-format", "F", "how it looks", type=click.Choice(["text", "json"]), default="text"),
        Switch("--insecure", "do without"),
        RepeatableOption("--allow-module", "M", "what goes"),
    ]
    return run_command_line([subcommand("try", note, "Try it.", options)], "1", ["try", *arguments]), found


def parse(arguments: Sequence[str], variables: Mapping[str, str]) -> dict[str, object]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        code, [found] = run(arguments)
    assert code == 0
    return vars(found)


def test_without_anything_the_defaults_hold() -> None:
    assert parse([], {}) == {
        "max_sessions": 8,
        "grace_seconds": 1.5,
        "log_format": "text",
        "insecure": False,
        "allow_module": (),
        "given": {},
    }


def test_a_variable_stands_for_its_option() -> None:
    environment = {
        "FEDSTACK_MAX_SESSIONS": "3",
        "FEDSTACK_GRACE_SECONDS": " 2 ",
        "FEDSTACK_LOG_FORMAT": "json",
        "FEDSTACK_INSECURE": "Yes",
        "FEDSTACK_ALLOW_MODULE": "a.b, c",
    }
    assert parse([], environment) == {
        "max_sessions": 3,
        "grace_seconds": 2.0,
        "log_format": "json",
        "insecure": True,
        "allow_module": ("a.b", "c"),
        "given": {name.lower(): f"FEDSTACK_{name}" for name in VARIABLES},
    }


def test_an_option_wins_over_its_variable() -> None:
    environment = {"FEDSTACK_MAX_SESSIONS": "3", "FEDSTACK_INSECURE": "1", "FEDSTACK_ALLOW_MODULE": "a"}
    arguments = ["--max-sessions", "4", "--no-insecure", "--allow-module", "b", "--allow-module", "c,d"]
    found = parse(arguments, environment)
    assert [found[name] for name in ("max_sessions", "insecure", "allow_module")] == [4, False, ("b", "c", "d")]
    assert found["given"] == {
        "max_sessions": "--max-sessions",
        "insecure": "--insecure",
        "allow_module": "--allow-module",
    }


def test_an_empty_variable_counts_as_absent() -> None:
    assert parse([], {"FEDSTACK_MAX_SESSIONS": "", "FEDSTACK_INSECURE": " "}) == parse([], {})


def test_what_kubernetes_says_of_a_service_is_no_option() -> None:
    assert parse([], {"FEDSTACK_MAX_SESSIONS": "tcp://10.0.0.1:8000"}) == parse([], {})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FEDSTACK_MAX_SESSIONS", "0"),
        ("FEDSTACK_GRACE_SECONDS", "soon"),
        ("FEDSTACK_GRACE_SECONDS", "nan"),
        ("FEDSTACK_LOG_FORMAT", "xml"),
        ("FEDSTACK_INSECURE", "perhaps"),
    ],
)
def test_a_wrong_value_of_a_variable_is_wrong_usage_that_names_it(
    variable: str, value: str, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv(variable, value)
    assert run([]) == (2, [])
    err = capsys.readouterr().err
    assert err.startswith(f"fedstack try: error: Invalid value for '{variable}': ")
    assert f"'{value}'" in err


@pytest.mark.parametrize("given", ["inf", "nan", "-1"])
def test_a_length_of_time_is_said_to_be_finite(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([f"--grace-seconds={given}"]) == (2, [])
    assert f"expected a finite number of seconds of at least 0, found {given!r}" in capsys.readouterr().err


def test_a_wrong_value_of_an_option_names_the_option(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.setenv("FEDSTACK_LOG_FORMAT", "json")
    assert run(["--log-format", "xml"]) == (2, [])
    assert capsys.readouterr().err == (
        "fedstack try: error: Invalid value for '--log-format': 'xml' is not one of 'text', 'json'; see 'fedstack try "
        "--help'\n"
    )


def test_help_names_the_variables_with_the_defaults_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == (0, [])
    text = " ".join(capsys.readouterr().out.split()).replace("comma- separated", "comma-separated")
    assert "how many [FEDSTACK_MAX_SESSIONS=8] " in text
    assert "what goes; may be repeated, or given as a comma-separated list [FEDSTACK_ALLOW_MODULE] " in text
    assert "--insecure / --no-insecure do without [FEDSTACK_INSECURE] " in text
    assert all(f"[FEDSTACK_{name}" in text for name in VARIABLES)
