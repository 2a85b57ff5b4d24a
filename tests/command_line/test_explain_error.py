"""`fedstack explain-error`, and docs/errors.md, which has a paragraph about every error."""

import io
import re
import subprocess
import sys

import pytest
from click import ClickException, UsageError
from federated_language.framework import RetryableError

import fedstack
import fedstack.testing
from fedstack.__main__ import main
from fedstack.command_line.explain_error_command import paragraphs
from fedstack.data.headed_file import DamagedStateError
from fedstack.errors import FedstackError

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
fedstack.errors.WorkerUnavailableError: Expected a worker at localhost:8000, found none; LeafError is not what it is

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
fedstack.errors.NoWorkersError: None of the workers can be reached:
  localhost:8000: WorkerUnavailableError
"""


EXPLAINED = paragraphs()
PUBLIC = {
    name: error
    for module in (fedstack.errors, fedstack.testing)
    for name in getattr(module, "__all__", vars(module))
    if isinstance(error := getattr(module, name), type) and issubclass(error, (AssertionError, FedstackError))
}
ELSEWHERE: dict[str, type[Exception]] = {"DamagedStateError": DamagedStateError, "UsageError": UsageError}


def test_every_public_error_has_a_paragraph() -> None:
    assert {"LeafError", "ConformanceError"} < set(PUBLIC)
    assert sorted(set(PUBLIC) - set(EXPLAINED)) == ["FedstackError"]


def test_every_paragraph_is_about_an_error_and_names_its_other_classes() -> None:
    for name, text in EXPLAINED.items():
        error = ELSEWHERE.get(name) or PUBLIC[name]
        others = [base for base in error.__bases__ if base not in (FedstackError, RetryableError, ClickException)]
        assert [base.__name__ for base in others if not re.search(rf"[`.]{base.__name__}`", text)] == [], name


def test_what_a_command_prints_leads_to_a_paragraph(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["demo", "--rounds", "-1"]) == 2
    printed = capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(printed))
    assert main(["explain-error", "-"]) == 0
    assert capsys.readouterr().out.startswith("UsageError: What `fedstack` prints")


@pytest.mark.parametrize(
    "arguments",
    [["LeafError"], ["fedstack.errors.LeafError:", "'f' raised", "ValueError"], ["a LeafError of mine"], ["leaferror"]],
)
def test_a_class_or_a_message_leads_to_the_paragraph(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-error", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.startswith("LeafError: Also a `RuntimeError`. Your function raised an exception")
    assert "an error in a function (page 'troubleshooting' of the documentation)" in out
    assert "](" not in out


def test_of_a_traceback_it_is_the_last_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(TRACEBACK))
    assert main(["explain-error", "-"]) == 0
    assert capsys.readouterr().out.startswith("NoWorkersError: ")


def test_a_real_traceback_leads_to_its_paragraph(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import fedstack\nfedstack.RetryPolicy(attempts=0)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    monkeypatch.setattr(sys, "stdin", io.StringIO(done.stderr))
    assert main(["explain-error", "-"]) == 0
    assert capsys.readouterr().out.startswith("InvalidValueError: ")


@pytest.mark.parametrize(("word", "advice"), [("LeaveError", "did you mean LeafError?"), ("x", "such as LeafError")])
def test_what_is_no_error_of_fedstack_is_refused(word: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain-error", word]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert advice in err
