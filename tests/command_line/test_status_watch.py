"""What `fedstack status` shows of data services, and again and again while servers go and come back."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from free_ports import free_port
from serving import served

from fedstack.__main__ import main
from fedstack.command_line import status_command
from fedstack.contexts.progress_display import PlainText, choose_text_display
from fedstack.errors import WorkerUnavailableError
from fedstack.service.data import Dataset, DispatchServer, WorkerServer, distribute


def _told(target: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    assert main(["status", target, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["status", target]) == 0
    return told, capsys.readouterr().out


def test_status_shows_datasets_passes_and_what_data_workers_read(capsys: pytest.CaptureFixture[str]) -> None:
    with DispatchServer() as dispatcher, WorkerServer(dispatcher_address=dispatcher.target) as worker:
        assert len(list(Dataset.range(1000).apply(distribute("parallel_epochs", dispatcher.target)))) == 1000
        knows, text = _told(dispatcher.target, capsys)
        assert knows["dispatcher"]["datasets"] == 1
        assert knows["dispatcher"]["passes"] >= 0
        assert knows["dispatcher"]["data_workers"] == [worker.target.removeprefix("grpc://")]
        assert "datasets 1, passes " in text
        read, text = _told(worker.target, capsys)
        assert read["data_worker"]["attends"] is True
        assert read["data_worker"]["elements"] == 1000
        assert read["data_worker"]["bytes"] >= 8000
        assert read["data_worker"]["ranges"] >= 1
        assert read["limits"]["max_streams"] == 1000
        assert "data worker, registered with its dispatcher: streams " in text


def _lines(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    return map(json.loads, process.stdout)


@pytest.mark.long
def test_watch_goes_on_while_a_server_goes_and_comes_back_and_ends_with_ctrl_c() -> None:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "fedstack",
        "status",
        f"localhost:{port}",
        "--watch",
        "--json",
        "--interval",
        "0.1",
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as watch:
        lines = _lines(watch)
        try:
            assert next(lines)["ok"] is False
            with served("--port", port) as server:
                assert next(line for line in lines if line["ok"])["max_threads"] >= 32
                server.process.terminate()
                server.process.wait(30)
            assert "no server is listening" in next(line for line in lines if not line["ok"])["error"]
            with served("--port", port):
                assert next(line for line in lines if line["ok"])["sessions"] == []
            watch.send_signal(signal.SIGINT)
            _, errors = watch.communicate(timeout=30)
            assert (watch.returncode, errors) == (0, "")
        finally:
            watch.kill()


def test_watch_draws_in_place_in_a_terminal_and_prints_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choose_text_display(), PlainText)
    monkeypatch.setattr("fedstack.contexts.progress_display.is_terminal", lambda stream: True)
    with choose_text_display() as display:
        assert type(display).__name__ == "LiveText"
        display.show("one")
        display.show("[two]")


def test_watch_shows_texts_without_escapes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    texts = iter(["one", "\x1b[2J", WorkerUnavailableError("away"), KeyboardInterrupt()])

    def ask(*_: object) -> Any:
        found = next(texts)
        if isinstance(found, BaseException):
            raise found
        return type("Found", (), {"as_text": lambda self, target: found})()

    monkeypatch.setattr(status_command, "ask", ask)
    assert main(["status", "localhost:1", "--watch", "--interval", "0.1"]) == 0
    assert capsys.readouterr().out == "one\n\\x1b[2J\nlocalhost:1: away\n"
