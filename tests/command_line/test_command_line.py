"""The command line: exit codes, what goes where, and how light it is."""

import subprocess
import sys

import click
import pytest

import fedstack
from fedstack.__main__ import COMMANDS, main
from fedstack.command_line.command import run_command_line, subcommand, whole_number
from fedstack.errors import InvalidValueError


def command(outcome: int | BaseException) -> click.Command:
    """A subcommand `try` with that outcome."""

    def run() -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return subcommand("try", run, "Try it.", [])


def run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=30)


def test_the_version_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"fedstack {fedstack.__version__}\n", "")


def test_the_module_runs_as_the_console_script_does() -> None:
    done = run_process("-m", "fedstack", "--version")
    assert (done.returncode, done.stdout) == (0, f"fedstack {fedstack.__version__}\n")


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert [c.name for c in COMMANDS if f"\n  {c.name} " not in text] == []
    for arguments in (["-h"], []):
        assert main(arguments) == 0
        assert capsys.readouterr().out == text


@pytest.mark.parametrize("arguments", [["dance"], ["--dance"], ["demo", "--dance"], ["demo", "--rounds"]])
def test_wrong_usage_has_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedstack")
    assert err.count("\n") == 1
    command = "fedstack demo" if arguments[:1] == ["demo"] else "fedstack"
    assert err.endswith(f"; see '{command} --help'\n")


def test_the_exit_code_is_that_of_the_subcommand() -> None:
    assert run_command_line([command(7)], "1", ["try"]) == 7


def test_options_that_do_not_fit_the_data_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([command(click.UsageError("expected fewer clients"))], "1", ["try"]) == 2
    assert capsys.readouterr().err == "fedstack try: error: expected fewer clients; see 'fedstack try --help'\n"


def test_ctrl_c_has_exit_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([command(KeyboardInterrupt())], "1", ["try"]) == 130
    assert capsys.readouterr().err == "\nfedstack try: interrupted\n"


@pytest.mark.parametrize(
    "error",
    [InvalidValueError("no such thing"), ImportError("no such thing"), FileExistsError("no such thing")],
    ids=lambda error: type(error).__name__,
)
def test_an_expected_error_is_one_line_and_exit_code_1(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([command(error)], "1", ["try"]) == 1
    assert capsys.readouterr() == ("", "fedstack try: error: no such thing\n")


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), ImportError("cannot import", name="fedstack.missing")], ids=["bug", "broken"]
)
def test_an_unexpected_error_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        run_command_line([command(error)], "1", ["try"])


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    program = (
        "import sys; from fedstack.command_line import command as c;"
        "run = lambda: print('x' * 1_000_000) or 0;"
        "sys.exit(c.run_command_line([c.subcommand('try', run, '', [])], '1', ['try']))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize("text", ["-1", "0", "1.5", "many", ""])
def test_a_number_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(click.BadParameter, match="whole number of at least 1"):
        whole_number(1)(text)


def test_a_number_in_range_is_taken() -> None:
    assert whole_number(1)("12") == 12


def test_the_command_line_imports_nothing_heavy_or_optional_before_a_subcommand_runs() -> None:
    heavy = {"cloudpickle", "grpc", "jax", "matplotlib", "rich", "scipy", "sklearn"}
    done = run_process("-c", "import sys, fedstack.__main__; print(*{n.partition('.')[0] for n in sys.modules})")
    assert done.returncode == 0
    assert set(done.stdout.split()) & heavy == set()


def test_a_local_run_does_not_import_grpc() -> None:
    program = (
        "import sys, fedstack, numpy; fedstack.set_sync_local_execution_context();"
        "fedstack.python_computation(numpy.int32, numpy.int32)(lambda x: x)(1); print('grpc' in sys.modules)"
    )
    assert run_process("-c", program).stdout.split() == ["False"]


@pytest.mark.parametrize("command", ["check", "status", "certs", "demo"])
def test_help_tells_the_defaults_that_there_are(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "[default: " in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("arguments", "meant"), [(["demo", "--round", "3"], "--rounds"), (["serve", "--tls_cert", "x"], "--tls-cert")]
)
def test_a_misspelt_option_is_told_what_may_be_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f" {meant}" in err.replace("'", "")
