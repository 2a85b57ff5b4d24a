"""Servers that are killed, stopped, restarted, or not there yet: in processes of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from free_ports import free_port
from freezing import freeze
from served_methods import WALL, add, within_wall

from fedstack.errors import AddressError, DeadlineExceededError, WorkerUnavailableError
from fedstack.service import rpc
from fedstack.service.rpc import Code

pytestmark = pytest.mark.slow

MS = 1000 * WALL
SERVER = Path(__file__).with_name("method_server.py")


@contextlib.contextmanager
def process(port: int | str = 0, kind: str = "first") -> "Iterator[tuple[subprocess.Popen[str], str]]":
    command = [sys.executable, str(SERVER), str(port), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


def kill(running: "subprocess.Popen[str]") -> None:
    running.kill()
    running.wait(WALL)


@pytest.mark.long
def test_a_killed_server_fails_the_call_at_once_and_the_next_one_waits_for_it():
    with process(free_port()) as (first, target), rpc.Client.create("grpc", target, timeout_in_ms=MS) as client:
        running = client.slow(1)
        assert client.add_blocking(1, 2) == 3
        kill(first)
        with pytest.raises(WorkerUnavailableError):
            running.get_value()
        assert running.get_error()[0] == Code.UNAVAILABLE
        assert client.call("add", [1, 2], timeout_in_ms=300).get_error()[0] == Code.UNAVAILABLE
        waiting = client.add(3, 4)
        with process(target.rpartition(":")[2]):
            assert waiting.get_value() == 7


@pytest.mark.long
def test_a_server_started_anew_with_another_method_under_the_name_is_never_guessed_at():
    with process(free_port()) as (first, target), rpc.Client.create("grpc", target, timeout_in_ms=MS) as client:
        assert client.add_blocking(1, 2) == 3
        kill(first)
        with process(target.rpartition(":")[2], "second"):
            code, message = client.call("add", [1, 2]).get_error()
            assert code == Code.INVALID_ARGUMENT
            assert message.startswith("Expected 1 argument (arg: {float32}@CLIENTS), found 2 by position")
            assert client.call("add", [[1.0, 2.0]]).get_value() == 1.5
            assert client.add_blocking([1.0, 3.0]) == 2.0


def test_a_stopped_server_is_noticed_at_the_deadline():
    with process() as (running, target), rpc.Client.create("grpc", target, timeout_in_ms=MS) as client:
        freeze(running.pid)
        try:
            begun = time.monotonic()
            with pytest.raises(DeadlineExceededError):
                client.add_blocking(1, 2, timeout_in_ms=300)
            assert 0.25 < time.monotonic() - begun < WALL
        finally:
            os.kill(running.pid, signal.SIGCONT)
        assert client.add_blocking(1, 2) == 3


def test_a_client_waits_for_a_server_that_is_not_there_yet():
    port = free_port()
    found: list[object] = []

    def work() -> None:
        with rpc.Client.create("grpc", f"localhost:{port}", timeout_in_ms=MS) as client:
            found.append(client.add_blocking(1, 2))

    waiting = threading.Thread(target=work)
    waiting.start()
    with rpc.Client.create("grpc", f"localhost:{port}", list_registered_methods=False) as client:
        result = client.call("add", [2, 3])
        with process(port):
            assert result.get_value() == 5
            waiting.join(WALL)
    assert found == [3]


def test_a_client_waits_no_longer_than_it_was_told():
    begun = time.monotonic()
    with pytest.raises(WorkerUnavailableError, match="no server is listening"):
        rpc.Client.create("grpc", f"localhost:{free_port()}", timeout_in_ms=300)
    assert time.monotonic() - begun < WALL


def test_a_port_that_another_process_has_is_told_at_start():
    with process() as (_, target):
        server = rpc.Server.create("grpc", target)
        with pytest.raises(AddressError, match="in use"):
            server.start()
        server.stop()


def test_a_server_in_this_process_restarts_on_its_port_while_a_client_calls():
    port = free_port()
    with rpc.Client.create("grpc", f"localhost:{port}", list_registered_methods=False, timeout_in_ms=MS) as client:
        for _ in range(3):
            server = rpc.Server.create("grpc", f"localhost:{port}")
            server.register("add", add)
            with server:
                assert client.call("add", [1, 2]).get_value() == 3


@pytest.mark.long
def test_200_clients_opened_and_closed_leave_nothing_behind():
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with process() as (_, target):

        def use() -> None:
            with rpc.Client.create("grpc", target, timeout_in_ms=MS) as client:
                assert client.add_blocking(1, 2) == 3

        use()
        before, threads = descriptors(), threading.active_count()
        for _ in range(200):
            use()
        within_wall(lambda: descriptors() <= before + 3, "descriptors are left open")
        within_wall(lambda: threading.active_count() <= threads + 1, "threads are left")


@pytest.mark.long
def test_large_arrays_and_small_calls_share_a_client():
    with process() as (_, target), rpc.Client.create("grpc", target, timeout_in_ms=MS) as client:
        large = np.random.default_rng(0).random(8 << 20, np.float32)
        results = [client.same(large) for _ in range(2)]
        small = large[: 16 << 10]
        while not all(result.done() for result in results):
            assert np.array_equal(client.same_blocking(small), small)
        assert all(np.array_equal(result.get_value(), large) for result in results)
