"""What heartbeats of a phase tell: how far it is, and which clients run, in case the worker ends."""

import pytest

from fedstack.errors import LeafError, WorkerUnavailableError
from fedstack.executors.concurrency.progress import PhaseReport, ProgressCounts
from fedstack.transport.wire.frames import Heartbeat, RunningClients


def told() -> tuple[list[tuple[str, int, int]], ProgressCounts]:
    """Returns counts, and the list of what they are told."""
    calls: list[tuple[str, int, int]] = []

    class Told(ProgressCounts):
        def failed(self, clients: int, given_up: int = 0) -> None:
            calls.append(("failed", clients, given_up))
            super().failed(clients, given_up)

    return calls, Told()


@pytest.mark.parametrize(
    ("error", "failed", "given_up"),
    [
        (LeafError("'f' raised", computation_name="f", client_index=7), 1, 4),
        (WorkerUnavailableError("lost"), 0, 5),
        (KeyboardInterrupt(), 0, 5),
    ],
)
def test_of_a_part_that_fails_only_what_is_known_to_have_failed_counts_as_that(
    error: BaseException, failed: int, given_up: int
) -> None:
    calls, counts = told()
    with pytest.raises(type(error)), PhaseReport(counts, 10) as report:
        report.heard(Heartbeat(done=3, running=5))
        raise error
    assert calls == [("failed", failed, given_up)]
    assert (counts.done, counts.running, counts.failures) == (3, 0, failed)


def test_a_client_that_fails_before_the_worker_has_told_of_any_counts() -> None:
    calls, counts = told()
    with pytest.raises(LeafError), PhaseReport(counts, 10):
        raise LeafError("'f' raised", computation_name="f", client_index=7)
    assert calls == [("failed", 1, 0)]
    assert (counts.total, counts.running) == (10, 0)


def test_the_clients_that_the_last_heartbeat_named_are_remembered() -> None:
    counts = ProgressCounts()
    report = PhaseReport(counts, 10)
    assert list(report.running) == []
    report.heard(Heartbeat(done=3, work=(RunningClients(13, 2, "train", 2.0), RunningClients(20, 1, "train", 1.0))))
    assert list(report.running) == [13, 14, 20]
    report.heard(Heartbeat(done=5))
    assert list(report.running) == [13, 14, 20]
    report.heard(Heartbeat(done=5, work=(RunningClients(15, 1 << 40, "train", 1.0),)))
    assert report.running[0] == 15
    assert len(report.running) == 1000
    assert counts.done == 5
