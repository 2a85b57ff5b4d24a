"""What a worker tells of calls that a coordinator has scheduled there."""

import numpy as np
import pytest

import fedstack
from fedstack.command_line.status_command import show
from fedstack.errors import LeafError
from fedstack.service import ExecutorService, GrpcServer, ServerThread
from fedstack.service.coordinator import ClusterCoordinator


@fedstack.python_computation([np.int32], np.int32)
def check(x):
    if x < 0:
        raise ValueError("negative")
    return x


def test_status_counts_scheduled_calls_by_session(capsys: pytest.CaptureFixture[str]) -> None:
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
        show("here", status)
    assert "scheduled calls of  in flight  ended  failed  live values" in capsys.readouterr().out
