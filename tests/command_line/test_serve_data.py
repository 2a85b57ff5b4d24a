"""What `fedstack serve` does for a data service."""

from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from dispatching import Peer

from fedstack.command_line import environment_options
from fedstack.command_line.serving import serve_command
from fedstack.errors import JournalError
from fedstack.service.server.server_thread import ServerThread


def options_of(*arguments: object) -> SimpleNamespace:
    return environment_options.options_of(serve_command.COMMAND.make_context("serve", list(map(str, arguments))))


def test_a_dispatcher_is_one_more_service_of_the_server_and_keeps_its_journal(tmp_path: Path) -> None:
    options = options_of("--port", 0, "--data-dispatcher", "--work-dir", tmp_path, "--max-datasets", 1)
    assert serve_command.ready_line("h:1", options).endswith(f"; data dispatcher with its journal in {tmp_path}")
    with ServerThread(serve_command.make_server(options)) as server, Peer(server.target) as peer:
        peer.register(dataset_id="numbers")
        with pytest.raises(JournalError, match="Another dispatcher uses this journal"):
            serve_command.make_server(options)
    with ServerThread(serve_command.make_server(options)) as server, Peer(server.target) as peer:
        assert peer.describe("numbers").num_splits == 10


def test_without_a_folder_it_keeps_nothing() -> None:
    options = options_of("--port", 0, "--data-dispatcher")
    assert serve_command.ready_line("h:1", options).endswith("; data dispatcher")


def test_a_folder_for_no_dispatcher_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.UsageError, match="Expected --data-dispatcher beside --work-dir, found none"):
        serve_command.make_server(options_of("--work-dir", tmp_path))
    monkeypatch.setenv("FEDSTACK_WORK_DIR", str(tmp_path))
    serve_command.make_server(options_of("--port", 0))
