"""Tasks at any free port find each other through a file, or learn who is missing."""

import threading

import pytest

from fedstack.errors import AddressError, DeadlineExceededError, InvalidValueError
from fedstack.service import ClusterSpec, Server, ServerConfig, wait_for_addresses
from fedstack.service.cluster.task import append_address

CLUSTER = {"worker": ["localhost:0", "localhost:0"], "ps": ["localhost:7000"]}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "addresses"


def test_addresses_of_tasks_without_a_port_come_from_the_file(file):
    append_address(file, "worker", 1, "grpc://localhost:5001")
    append_address(file, "worker", 0, "grpc://localhost:5000")
    append_address(file, "ps", 0, "localhost:7000")
    assert wait_for_addresses(CLUSTER, file, 0) == {
        "worker": ["grpc://localhost:5000", "grpc://localhost:5001"],
        "ps": ["localhost:7000"],
    }


def test_a_cluster_whose_ports_are_known_needs_no_file(file):
    assert wait_for_addresses({"worker": ["localhost:1"]}, file, 0) == {"worker": ["localhost:1"]}


def test_the_last_line_of_a_task_counts(file):
    for port in (5000, 5002, 5003):
        append_address(file, "worker", 0, f"localhost:{port}")
        append_address(file, "worker", 1, f"localhost:{port + 100}")
    assert wait_for_addresses(CLUSTER, file, 0).job_tasks("worker") == ["localhost:5003", "localhost:5103"]


def test_whoever_had_an_address_before_another_task_is_missing(file):
    append_address(file, "worker", 1, "localhost:5000")
    append_address(file, "worker", 0, "localhost:5000")
    with pytest.raises(DeadlineExceededError, match="found none for task 1 of job 'worker'; start the missing"):
        wait_for_addresses(CLUSTER, file, 0)


def test_a_line_without_an_end_is_still_being_written(file):
    file.write_text("worker 0 localhost:5000\nworker 1 localhost:50")
    with pytest.raises(DeadlineExceededError, match="found none for task 1 of job 'worker'"):
        wait_for_addresses(CLUSTER, file, 0)
    with file.open("a") as more:
        more.write("01\n")
    assert wait_for_addresses(CLUSTER, file, 0).task_address("worker", 1) == "localhost:5001"


def test_the_wait_ends_with_the_names_of_the_missing(file):
    with pytest.raises(
        TimeoutError, match=r"within 0.2 s, found none for task 0 of job 'worker', task 1 of job 'worker'"
    ):
        wait_for_addresses(CLUSTER, file, 0.2)
    with pytest.raises(InvalidValueError, match="Expected timeout of at least 0, found -1"):
        wait_for_addresses(CLUSTER, file, -1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("worker 0", "not enough values"),
        ("worker zero localhost:1", "invalid literal"),
        ("worker 2 localhost:1", "Expected the index of a task of job 'worker' (0, 1), found 2"),
        ("chief 0 localhost:1", "Expected a job of the cluster"),
        ("worker 0 localhost:0", "Expected a port from 1 to 65535"),
    ],
)
def test_a_file_of_something_else_is_refused_with_the_line(file, line, reason):
    file.write_text(f"worker 0 localhost:5000\n{line}\n")
    with pytest.raises(InvalidValueError) as caught:
        wait_for_addresses(CLUSTER, file, 0)
    assert f" in line 2 of {file}, found {line!r}: " in str(caught.value)
    assert reason in str(caught.value)


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path):
    with pytest.raises(InvalidValueError, match="Cannot read addresses of tasks from"):
        wait_for_addresses(CLUSTER, tmp_path, 0)
    with pytest.raises(AddressError, match="Cannot append an address to the file .*none/file: No such file"):
        append_address(tmp_path / "none" / "file", "worker", 0, "localhost:1")


def test_lines_of_many_writers_stay_whole(file):
    cluster = {"worker": ["localhost:0"] * 20}
    writers = [
        threading.Thread(
            target=lambda index=index: [
                append_address(file, "worker", index, f"localhost:{10_000 + 100 * index + time}") for time in range(50)
            ]
        )
        for index in range(20)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(file.read_text().splitlines()) == 1000
    assert wait_for_addresses(cluster, file, 0).job_tasks("worker") == [
        f"localhost:{10_000 + 100 * index + 49}" for index in range(20)
    ]


def test_servers_at_any_port_find_each_other(file):
    spec = ClusterSpec({"worker": ["localhost:0", "localhost:0"]})
    config = ServerConfig(addresses_file=file)
    with Server(spec, "worker", 0, config=config) as first:
        found = []
        waiting = threading.Thread(target=lambda: found.append(wait_for_addresses(spec, file, 20)))
        waiting.start()  # before the second is there
        with Server(spec, "worker", 1, config=config) as second:
            waiting.join()
            assert found == [{"worker": [first.target, second.target]}]


def test_a_server_that_cannot_add_its_address_does_not_stay(tmp_path):
    config = ServerConfig(addresses_file=tmp_path / "none" / "file")
    with pytest.raises(AddressError, match="Cannot append an address to the file"):
        Server({"worker": ["localhost:0"]}, config=config)
