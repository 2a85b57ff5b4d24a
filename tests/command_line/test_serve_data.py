"""What `fedstack serve` does for a data service."""

from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
from data_reading import read, whole
from dispatching import Peer

from fedstack.command_line import command, serve_command
from fedstack.errors import CarrierError, JournalError
from fedstack.service.data import Dataset
from fedstack.service.data.dispatcher.dispatch_server import DispatchServer
from fedstack.service.host.server_thread import ServerThread


def options_of(*arguments: object) -> SimpleNamespace:
    return command.options_of(serve_command.COMMAND.make_context("serve", list(map(str, arguments))))


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
    with pytest.raises(click.UsageError, match="Cannot use --work-dir without --data-dispatcher"):
        serve_command.make_server(options_of("--work-dir", tmp_path))
    monkeypatch.setenv("FEDSTACK_WORK_DIR", str(tmp_path))
    serve_command.make_server(options_of("--port", 0))


def test_a_data_worker_is_one_more_service_of_the_server_and_reads_below_its_roots(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        np.save(folder / "rows.npy", np.arange(3))
    with DispatchServer() as dispatcher, Peer(dispatcher.target) as peer:
        options = options_of("--port", 0, "--data-worker", dispatcher.target, "--data-root", folders[0])
        assert serve_command.ready_line("h:1", options).endswith(f"; data worker of {dispatcher.target}")
        with ServerThread(serve_command.make_server(options)) as server:
            assert peer.workers() == [server.target]
            inside, outside = (Dataset.from_npy(folder / "rows.npy") for folder in folders)
            assert read(server.target, whole(peer.register_dataset(inside)), inside.element_type) == [0, 1, 2]
            with pytest.raises(CarrierError, match="--data-root"):
                read(server.target, whole(peer.register_dataset(outside)), outside.element_type)


def test_roots_for_no_data_worker_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="Cannot use --data-root without --data-worker"):
        serve_command.make_server(options_of("--data-root", tmp_path))
    with pytest.raises(click.UsageError, match=r"The data root .*missing.* is not a folder"):
        serve_command.make_server(options_of("--data-worker", "h:1", "--data-root", tmp_path / "missing"))
    with pytest.raises(click.UsageError, match="Expected an address with a port"):
        serve_command.make_server(options_of("--data-worker", "h"))
