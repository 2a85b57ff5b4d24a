"""What heartbeats of a phase tell: how far it is, and which clients run, in case the worker ends."""

from fedstack.executors.concurrency.phase_report import PhaseReport
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.transport.wire.frames import Heartbeat, Work


def test_the_clients_that_the_last_heartbeat_named_are_remembered() -> None:
    counts = ProgressCounts()
    report = PhaseReport(counts, 10)
    assert list(report.running) == []
    report.heard(Heartbeat(done=3, work=(Work(13, 2, "train", 2.0), Work(20, 1, "train", 1.0))))
    assert list(report.running) == [13, 14, 20]
    report.heard(Heartbeat(done=5))
    assert list(report.running) == [13, 14, 20]
    report.heard(Heartbeat(done=5, work=(Work(15, 1 << 40, "train", 1.0),)))
    assert report.running[0] == 15
    assert len(report.running) == 1000
    assert counts.done == 5
