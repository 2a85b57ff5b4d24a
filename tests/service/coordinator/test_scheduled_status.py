"""What a worker tells of calls that a coordinator has scheduled there."""

import threading
import time

import numpy as np
import pytest

import fedstack
from fedstack.command_line.status_command import status_lines
from fedstack.errors import LeafError
from fedstack.service import ExecutorService, GrpcServer, ServerThread
from fedstack.service.coordinator import ClusterCoordinator

WALL = 30.0


@fedstack.python_computation([np.int32], np.int32)
def check(x):
    if x < 0:
        raise ValueError("negative")
    return x


def test_status_counts_scheduled_calls_by_session() -> None:
    service = ExecutorService(fedstack.local_executor_factory())
    with (
        ServerThread(GrpcServer([service])) as server,
        ClusterCoordinator(server.target, on_error="continue") as coordinator,
    ):
        values = [coordinator.schedule(check, (number,)) for number in range(-2, 8)]
        with pytest.raises(LeafError):
            coordinator.join()
        assert [value.done() for value in values] == [True] * 10
        status = service.status()
        [session] = status.session
        assert (session.started_running, session.started_ended, session.started_failed) == (0, 10, 2)
    header = "scheduled calls of  waiting  in flight  ended  failed  live values"
    assert header in "\n".join(status_lines("here", status))


def test_status_counts_what_waits_at_the_coordinator() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    @fedstack.python_computation([], np.int32)
    def wait():
        begun.set()
        goes_on.wait(WALL)
        return 1

    def waiting() -> int:
        return max(session.started_waiting for session in service.sessions)

    service = ExecutorService(fedstack.local_executor_factory())
    with (
        ServerThread(GrpcServer([service])) as server,
        ClusterCoordinator(server.target, max_running=2) as coordinator,
    ):
        values = [coordinator.schedule(wait) for _ in range(2)]
        assert begun.wait(WALL)
        values += [coordinator.schedule(wait) for _ in range(7)]
        end = time.monotonic() + WALL
        while waiting() != 7:
            assert time.monotonic() < end
            time.sleep(0.01)
        goes_on.set()
        assert coordinator.fetch(values) == [1] * 9
        assert waiting() == 0
