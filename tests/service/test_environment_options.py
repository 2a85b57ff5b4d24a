"""Options that can be environment variables too."""

import argparse
from collections.abc import Mapping, Sequence

import pytest

from fedstack.command_line.command import seconds, whole_number
from fedstack.command_line.environment_options import EnvironmentOptions, one_of


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="try", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options = EnvironmentOptions(parser, environment)
    options.add("--max-sessions", "N", "how many", type=whole_number(1), default=8)
    options.add("--grace-seconds", "S", "how long", type=seconds(0), default=1.5)
    options.add("--log-format", "F", "how it looks", type=one_of("text", "json"), default="text")
    options.add_switch("--insecure", "do without")
    options.add_repeatable("--allow-module", "M", "what goes")
    return parser.parse_args(arguments)


def test_without_anything_the_defaults_hold() -> None:
    assert vars(parse([], {})) == {
        "max_sessions": 8,
        "grace_seconds": 1.5,
        "log_format": "text",
        "insecure": False,
        "allow_module": (),
    }


def test_a_variable_stands_for_its_option() -> None:
    environment = {
        "FEDSTACK_MAX_SESSIONS": "3",
        "FEDSTACK_GRACE_SECONDS": " 2 ",
        "FEDSTACK_LOG_FORMAT": "json",
        "FEDSTACK_INSECURE": "Yes",
        "FEDSTACK_ALLOW_MODULE": "a.b, c",
    }
    assert vars(parse([], environment)) == {
        "max_sessions": 3,
        "grace_seconds": 2.0,
        "log_format": "json",
        "insecure": True,
        "allow_module": ("a.b", "c"),
        "of_environment": {"max_sessions", "grace_seconds", "log_format", "insecure", "allow_module"},
    }


def test_an_option_wins_over_its_variable() -> None:
    environment = {"FEDSTACK_MAX_SESSIONS": "3", "FEDSTACK_INSECURE": "1", "FEDSTACK_ALLOW_MODULE": "a"}
    arguments = ["--max-sessions", "4", "--no-insecure", "--allow-module", "b", "--allow-module", "c,d"]
    found = parse(arguments, environment)
    assert (found.max_sessions, found.insecure, found.allow_module) == (4, False, ("b", "c", "d"))


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
    variable: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse([], {variable: value})
    assert exit_info.value.code == 2
    assert f"found '{value}'; in the environment variable {variable}\n" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["inf", "nan", "-1"])
def test_a_length_of_time_is_said_to_be_finite(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([f"--grace-seconds={given}"], {})
    assert f"expected a finite number of seconds of at least 0, found {given!r}" in capsys.readouterr().err


def test_a_wrong_value_of_an_option_does_not_speak_of_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--log-format", "xml"], {})
    assert capsys.readouterr().err.endswith("expected one of text, json, found 'xml'\n")


def test_help_tells_the_defaults_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], {})
    text = " ".join(capsys.readouterr().out.split())
    assert "how many [FEDSTACK_MAX_SESSIONS] (default: 8)" in text
    assert "what goes; may be repeated, or be several with commas [FEDSTACK_ALLOW_MODULE]" in text
    assert text.count("(default") == 3


def test_help_names_the_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], {})
    text = capsys.readouterr().out
    for name in ("MAX_SESSIONS", "GRACE_SECONDS", "LOG_FORMAT", "INSECURE", "ALLOW_MODULE"):
        assert f"[FEDSTACK_{name}]" in text
    assert "--insecure, --no-insecure" in text
