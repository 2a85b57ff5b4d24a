"""A worker's log has one line for each call that failed: whose function, at which client, and none of its values."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from calling import WALL
from serving import served, told_by
from watching import watched

import fedstack
from fedstack.errors import (
    CarrierError,
    FedstackError,
    InvalidValueError,
    LeafError,
    ResourceLimitError,
    TypeMismatchError,
    WorkerUnavailableError,
)
from fedstack.observe import CallStarted
from fedstack.service.host.calls.call_log import CallLog
from fedstack.transport.wire.status import Code, StatusError

PEER = "ipv4:10.0.0.1:50000"
METHOD = "fedstack.v1.ExecutorExtensions/RunPhase"
SECRET = 271828


def at_clients(function: Any) -> Any:
    leaf = fedstack.python_computation([np.int32], np.int32)(function)
    return fl.federated_computation(lambda xs: fl.federated_map(leaf, xs), fl.FederatedType(np.int32, fl.CLIENTS))


def picking() -> Any:
    def picky(x: Any) -> Any:  # local, so that it goes by value
        if x == 271828:
            raise ValueError(f"cannot use\n{x}")
        return x

    return at_clients(picky)


def leaf_error(name: str = "picky", client: int | None = 1, cause: Exception | None = None) -> LeafError:
    error = LeafError(f"{name!r} raised ValueError: {SECRET}", computation_name=name, client_index=client)
    error.__cause__ = cause
    return error


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + WALL
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_failed_call_is_one_line_with_function_and_client_in_the_log_of_a_worker(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        served("--allow-python-code", stderr=stderr) as server,
        fedstack.create_sync_remote_execution_context(server.target) as context,
        fedstack.use_context(context),
    ):
        picked = picking()
        for _ in range(2):
            with pytest.raises(LeafError):
                picked([1, SECRET, 3])
        assert picked([1, 2]) == [1, 2]
    lines = told_by(log.read_text())
    expected = "WARNING fedstack.service.host.calls.call_log: RunPhase failed: "
    assert [line.partition(expected)[2] for line in lines] == [
        "'picky' raised ValueError at client 1; called from ipv4:127.0.0.1"
    ] * 2
    assert str(SECRET) not in log.read_text()


def test_an_error_of_fedstack_that_a_client_raises_is_no_failure_of_the_worker(tmp_path: Path) -> None:
    def raising(x: Any) -> Any:
        raise FedstackError(f"cannot use {x}")

    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        served("--allow-python-code", stderr=stderr) as server,
        fedstack.create_sync_remote_execution_context(server.target),
    ):
        with pytest.raises(FedstackError, match="cannot use 1; in the computation 'raising' at client 0"):
            at_clients(raising)([1])
    (line,) = told_by(log.read_text())
    assert "WARNING fedstack.service.host.calls.call_log: RunPhase failed: 'raising' failed with FedstackError" in line


def test_a_line_of_json_has_function_and_client_of_a_result_that_does_not_fit_and_the_id_of_the_call(
    tmp_path: Path,
) -> None:
    def widened(x: Any) -> Any:
        return np.int64(x) if x == 2 else x

    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        served("--allow-python-code", "--log-format", "json", stderr=stderr) as server,
        fedstack.create_sync_remote_execution_context(server.target),
    ):
        computation = at_clients(widened)
        with watched() as diary, pytest.raises(TypeMismatchError) as caught:
            computation([1, 2, 3])
        with pytest.raises(TypeMismatchError):
            computation([1, 2, 3])  # which nobody watches
    assert (caught.value.computation_name, caught.value.client_index) == ("widened", 1)
    first, second = [json.loads(line) for line in log.read_text().splitlines() if "call_log" in line]
    assert first["message"].startswith("RunPhase failed: 'widened' failed with TypeMismatchError at client 1; called")
    assert (first["function"], first["client"], first["call"]) == ("widened", 1, diary.the(CallStarted).call)
    assert "call" not in second


def test_a_call_that_its_client_cancels_is_none_that_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    door, entered = tmp_path / "door", tmp_path / "entered"

    def wait(x: Any) -> Any:
        import time

        entered.touch()
        while not door.exists():
            time.sleep(0.01)
        return x

    async def run() -> None:
        with (
            fedstack.create_async_remote_execution_context(server.target) as context,
            fedstack.use_context(context),
        ):
            call = asyncio.ensure_future(at_clients(wait)([1]))
            await asyncio.to_thread(wait_for, entered)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            door.touch()
            assert await picking()([1]) == [1]  # the worker has seen it by now

    with (
        log.open("w") as stderr,
        served("--allow-python-code", "--log-format", "json", stderr=stderr) as server,
    ):
        asyncio.run(run())
    assert [json.loads(line) for line in log.read_text().splitlines() if "call_log" in line] == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (leaf_error(cause=ValueError(SECRET)), "'picky' raised ValueError at client 1"),
        (leaf_error(client=None, cause=KeyError(SECRET)), "'picky' raised KeyError"),
        (leaf_error(cause=type("Odd\nname", (Exception,), {})()), "'picky' raised Odd name at client 1"),
        (leaf_error(), "'picky' failed at client 1"),
        (leaf_error("a\nb" + "c" * 1000), f"'a\\nb{'c' * 197}[… 803 more …]' failed at client 1"),
        (InvalidValueError(f"found {SECRET}"), "InvalidValueError"),
        (CarrierError("Expected a function,\nfound none"), "CarrierError: Expected a function, found none"),
        (ResourceLimitError("x" * 10_000), "ResourceLimitError: " + "x" * 50),
    ],
)
def test_a_line_says_what_failed_without_values(
    error: FedstackError, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    CallLog().failed(PEER, METHOD, error)
    [found] = lines_of(caplog)
    assert found.startswith(f"RunPhase failed: {line}")
    assert "\n" not in found
    assert str(SECRET) not in found
    assert len(found) < 1000


@pytest.mark.parametrize(
    "error",
    [WorkerUnavailableError("stopping"), StatusError(Code.NOT_FOUND, "no such value"), RuntimeError("not foreseen")],
)
def test_what_is_worth_another_attempt_or_logged_elsewhere_is_left_out(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    CallLog().failed(PEER, METHOD, error)
    assert lines_of(caplog) == []


def test_a_client_that_fails_again_and_again_fills_no_disk(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = CallLog(lambda: now)
    for _ in range(1000):
        log.failed(PEER, METHOD, leaf_error())
    log.failed("ipv4:10.0.0.2:50000", METHOD, leaf_error())
    assert [line.rpartition(":")[2] for line in lines_of(caplog)] == ["10.0.0.1"] * 30 + ["10.0.0.2"]
    now = 61.0
    log.failed(PEER, METHOD, leaf_error())
    assert lines_of(caplog)[-1].endswith("called from ipv4:10.0.0.1 (970 more since the last line)")
    for index in range(2000):
        log.failed(f"ipv4:10.1.{index // 250}.{index % 250}:1", METHOD, leaf_error())
    assert repr(log) == "<CallLog of 0 peers refused, 1000 whose calls failed>"
