"""The blocking forms of methods: on the thread of the caller, with what a call that is awaited promises."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from await_until import await_until
from served_methods import WALL, add, calls_of, mean

from fedstack.errors import ClosedError, DeadlineExceededError, LeafError, TypeMismatchError, WorkerUnavailableError
from fedstack.service import rpc
from fedstack.service.host.limits import ServerLimits
from fedstack.transport.peers.io_loop import io_loop

MS = 1000 * WALL
CALLER = Path(__file__).with_name("blocking_caller.py")


@pytest.fixture
def awaited(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is handed to the transport's loop from now on."""
    found: list[object] = []
    run = io_loop.run_sync

    def noted(coroutine, timeout=None):
        found.append(coroutine)
        return run(coroutine, timeout)

    monkeypatch.setattr(io_loop, "run_sync", noted)
    return found


def test_a_small_call_has_no_part_for_the_loop(client, awaited):
    assert client.add_blocking(1, 2) == 3
    awaited.clear()  # the loop has asked where the server accepts streams
    assert client.mean_blocking([1.0, 3.0]) == 2.0
    assert client.nothing_blocking() is None
    assert np.array_equal(client.double_blocking(np.arange(20_000, dtype=np.float32)), np.arange(0, 40_000, 2))
    with pytest.raises(LeafError, match="3 is no good"):
        client.fail_blocking(3)
    assert not awaited


@pytest.mark.long
def test_a_call_that_goes_on_is_waited_for_on_the_loop(server, client, gate, awaited):
    opening = threading.Timer(2.5, gate.opened.set)  # later than the server answers that the call goes on
    opening.start()
    assert client.wait_blocking(5) == 5
    opening.join()
    assert [one.__qualname__ for one in awaited].count("MethodCalls.call") == 1
    assert calls_of(server)["wait"].ended == 1


def test_what_is_too_large_for_one_message_goes_in_pieces(client, awaited):
    array = np.ones(1 << 20, np.float32)
    assert np.array_equal(client.double_blocking(array), array * 2)
    assert len(awaited) == 1


def test_a_result_that_is_too_large_for_one_message_comes_in_pieces(client):
    array = np.arange(260_000, dtype=np.float32)  # a megabyte with what is around it
    for size in (200_000, 260_000, 280_000):
        array = np.arange(size, dtype=np.float32)
        assert np.array_equal(client.double_blocking(array), array * 2)


def test_the_deadline_ends_a_call_here_and_at_the_server(server, client, gate):
    with pytest.raises(DeadlineExceededError, match="Expected an answer to a call of 'wait' .* within 0.2 seconds"):
        client.wait_blocking(1, timeout_in_ms=200)
    await_until(lambda: calls_of(server)["wait"].running == 0)
    with pytest.raises(DeadlineExceededError, match="within 1.5 seconds"):  # goes on, and ends then
        client.wait_blocking(1, timeout_in_ms=1500)
    await_until(lambda: calls_of(server)["wait"].running == 0)


def test_a_deadline_that_has_passed_is_told_in_its_own_words_whatever_the_clock_says(client, gate, monkeypatch):
    monkeypatch.setattr(io_loop, "time", lambda: 0.0)  # some clocks stand still for 16 milliseconds at a time
    with pytest.raises(DeadlineExceededError, match="Expected an answer to a call of 'wait' .* within 0.1 seconds"):
        client.wait_blocking(1, timeout_in_ms=100)


def test_closing_the_client_ends_the_calls_of_other_threads(server, client, gate):
    errors: list[BaseException] = []

    def call() -> None:
        try:
            client.wait_blocking(1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert gate.come.acquire(timeout=WALL)
    client.close()
    for thread in threads:
        thread.join(WALL)
    assert [type(error) for error in errors] == [ClosedError] * 3
    with pytest.raises(ClosedError):
        client.add_blocking(1, 2)


def test_many_threads_call_side_by_side(client):
    found: list[list[int]] = []

    def call(first: int) -> None:
        found.append([client.add_blocking(first, i) for i in range(30)])

    threads = [threading.Thread(target=call, args=(100 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WALL)
    assert sorted(found) == [[100 * i + k for k in range(30)] for i in range(8)]


def test_a_server_that_is_started_anew_is_called_at_once_and_with_its_own_methods():
    server = rpc.Server.create("grpc", "localhost:0")
    server.register("add", add)
    server.start()
    with rpc.Client.create("grpc", server.target, timeout_in_ms=MS) as client:
        assert client.add_blocking(1, 2) == 3
        for method in (add, mean, add):
            server.stop(0)
            server = rpc.Server.create("grpc", client.target)
            server.register("add", method)
            with server:
                if method is mean:  # found out by a call that does not fit any more
                    with pytest.raises(TypeMismatchError, match="Expected 1 argument"):
                        client.add_blocking(1, 2)
                    assert client.add_blocking([1.0, 2.0]) == 1.5
                    client.refresh()
                else:
                    client.refresh()
                    assert client.add_blocking(1, 2) == 3


def test_a_server_that_is_away_is_waited_for_as_long_as_the_caller_says(client, server):
    assert client.add_blocking(1, 2) == 3
    server.stop(0)
    with pytest.raises(WorkerUnavailableError, match="no server is listening"):
        client.add_blocking(1, 2, timeout_in_ms=300)


@pytest.mark.long
def test_ctrl_c_ends_a_call_here_and_at_the_server(server, gate):
    command = [sys.executable, str(CALLER), server.target, "interrupted"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as caller:
        try:
            assert gate.come.acquire(timeout=WALL)
            caller.send_signal(signal.SIGINT)
            assert caller.communicate(timeout=WALL)[0].split() == ["interrupted", "3"]
        finally:
            caller.kill()
    await_until(lambda: calls_of(server)["wait"].running == 0)


@pytest.mark.long
def test_a_process_that_stood_still_is_not_told_that_its_server_hangs(server, gate):
    command = [sys.executable, str(CALLER), server.target, "stopped"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as caller:
        try:
            assert gate.come.acquire(timeout=WALL)
            os.kill(caller.pid, signal.SIGSTOP)
            gate.opened.set()
            await_until(lambda: calls_of(server)["wait"].running == 0)
            threading.Event().wait(2.0)  # longer than the call may take in that process
            os.kill(caller.pid, signal.SIGCONT)
            found = caller.communicate(timeout=WALL)[0]
        finally:
            caller.kill()
    assert found.startswith(("1", "This process was suspended for")), found


def test_a_server_that_takes_no_second_connection_is_called_over_the_first():
    limits = ServerLimits(max_connections=1)
    with rpc.Server.create("grpc", "127.0.0.1:0", limits=limits) as server:
        server.register("add", add)
        with rpc.Client.create("grpc", server.target, timeout_in_ms=MS) as client:
            assert [client.add_blocking(1, number) for number in range(4)] == [1, 2, 3, 4]


def test_a_client_that_is_dropped_during_a_call_gets_its_result(server, gate):
    found: list[int] = []

    def call() -> None:
        found.append(rpc.Client.create("grpc", server.target, timeout_in_ms=MS).wait_blocking(4))

    thread = threading.Thread(target=call)
    thread.start()
    assert gate.come.acquire(timeout=WALL)
    gate.opened.set()
    thread.join(WALL)
    assert found == [4]
