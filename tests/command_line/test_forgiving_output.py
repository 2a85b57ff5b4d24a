"""How what functions print is cut into lines of the log: at their ends, whoever prints them in how many pieces."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from fedstack.command_line.output import all_output_to_standard_error


def _bracketed(text: bytes) -> bytes:
    return b"".join(b"[" + line + b"]\n" for line in text.splitlines())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@contextmanager
def _bracketed_into(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    with log.open("w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", file)
        with all_output_to_standard_error(_bracketed) as out:
            yield out


def test_what_follows_the_end_of_a_line_in_a_call_of_print_is_one_line(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _bracketed_into(log, monkeypatch):
        print("a\nb", 7)
        print("x" * 100_000, 8)
        print("c", "d", sep="\n", end="")
        print("e")
    assert log.read_text() == f"[a]\n[b 7]\n[{'x' * 100_000} 8]\n[c]\n[de]\n"


def test_lines_that_threads_have_begun_are_apart(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _bracketed_into(log, monkeypatch):
        sys.stdout.write("one")
        thread = threading.Thread(target=print, args=("two", 2))
        thread.start()
        thread.join()
        sys.stdout.write(" 1\n")
    assert log.read_text() == "[two 2]\n[one 1]\n"


def test_a_line_without_end_is_written_at_a_flush_and_at_the_end(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _bracketed_into(log, monkeypatch):
        print("half", end="", flush=True)
        assert log.read_text() == "[half]\n"
        thread = threading.Thread(target=print, args=("the rest",), kwargs={"end": ""})
        thread.start()
        thread.join()
        assert log.read_text() == "[half]\n"
    assert log.read_text() == "[half]\n[the rest]\n"


def test_a_line_that_does_not_end_is_cut_before_it_fills_memory(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _bracketed_into(log, monkeypatch):
        for _ in range(3):
            print("." * 2**19, end="")
        assert log.read_text() == f"[{'.' * 2**20}]\n"
    assert log.read_text() == f"[{'.' * 2**20}]\n[{'.' * 2**19}]\n"


def test_what_the_server_says_itself_is_not_converted(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _bracketed_into(log, monkeypatch) as out:
        print("begun", end="")
        print("{}", file=out)
    assert log.read_text() == "{}\n[begun]\n"
