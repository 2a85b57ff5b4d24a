"""Which worker reads what, where the addresses of workers are known beforehand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import WALL
from free_ports import free_port

from fedstack.errors import InvalidValueError
from fedstack.service.data import (
    Dataset,
    DispatcherConfig,
    DispatchServer,
    ShardingPolicy,
    WorkerConfig,
    WorkerServer,
    distribute,
)

FILES = 7


@pytest.fixture
def ports() -> list[int]:
    return [free_port(), free_port()]


@pytest.fixture
def dispatcher(ports: list[int]) -> Iterator[DispatchServer]:
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with DispatchServer(DispatcherConfig(worker_addresses=tuple(addresses))) as found:
        yield found


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A folder for each worker, which has the files that it is to read and no others."""
    made = [tmp_path / "0", tmp_path / "1"]
    for folder in made:
        folder.mkdir()
    return made


def worker_at(dispatcher: DispatchServer, port: int, *roots: Path) -> WorkerServer:
    found = WorkerConfig(dispatcher.target, port=port, dispatcher_timeout_ms=1000 * WALL, data_roots=roots)
    return WorkerServer(found)


def files_in(folders: list[Path]) -> list[Path]:
    paths = [folders[number % 2] / f"{number}.npy" for number in range(FILES)]
    for number, path in enumerate(paths):
        np.save(path, np.arange(10 * number, 10 * number + 3))
    return paths


def numbers(dataset: Any) -> list[int]:
    return sorted(int(number) for number in dataset)


def test_each_file_is_read_by_the_worker_at_its_address(
    dispatcher: DispatchServer, ports: list[int], folders: list[Path]
) -> None:
    local = Dataset.from_npy(files_in(folders))
    # The second one attends first; each may open files in its own folder only.
    with worker_at(dispatcher, ports[1], folders[1]), worker_at(dispatcher, ports[0], folders[0]):
        by_file = local.apply(distribute(ShardingPolicy.FILE, dispatcher))
        for _ in range(3):
            assert numbers(by_file) == numbers(local)


def test_what_a_worker_that_is_not_there_was_to_read_is_read_by_another(
    dispatcher: DispatchServer, ports: list[int], folders: list[Path]
) -> None:
    local = Dataset.from_npy(files_in(folders))
    with worker_at(dispatcher, ports[1], *folders):
        for policy in (ShardingPolicy.FILE, ShardingPolicy.DATA):
            assert numbers(local.apply(distribute(policy, dispatcher))) == numbers(local)


def test_under_data_each_worker_sends_every_so_many_th_element(dispatcher: DispatchServer, ports: list[int]) -> None:
    local = Dataset.range(41).batch(4).enumerate()
    with worker_at(dispatcher, ports[0]), worker_at(dispatcher, ports[1]):
        dataset = local.apply(distribute(ShardingPolicy.DATA, dispatcher))
        assert sorted(map(str, dataset)) == sorted(map(str, local))
        assert len(dataset) == len(local)


def test_static_sharding_wants_addresses_and_enough_files(
    dispatcher: DispatchServer, ports: list[int], folders: list[Path]
) -> None:
    paths = files_in(folders)
    with (
        DispatchServer() as other,
        pytest.raises(InvalidValueError, match="Expected a dispatcher with worker_addresses"),
    ):
        list(Dataset.range(3).apply(distribute(ShardingPolicy.DATA, other)))
    with worker_at(dispatcher, ports[0], *folders):
        with pytest.raises(
            InvalidValueError, match="at least one file for each of 2 workers under the policy FILE, found 1"
        ):
            list(Dataset.from_npy(paths[:1]).apply(distribute(ShardingPolicy.FILE, dispatcher)))
    for dataset in (Dataset.range(3), Dataset.from_npy(paths).take(3)):
        with pytest.raises(
            InvalidValueError, match="Expected a dataset of files without steps .* as ShardingPolicy.FILE"
        ):
            dataset.apply(distribute(ShardingPolicy.FILE, dispatcher))
