import asyncio
import logging
import time

from fedstack.service.host import status
from fedstack.service.host.status import StallCounts, StallMeter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def beats(counts: StallCounts, clock: Clock, *lateness: float) -> list[float | None]:
    told = []
    for late in lateness:
        counts.expect(1.0)
        clock.now += 1.0 + late
        told.append(counts.beat())
    return told


def test_beats_that_come_in_time_are_no_stalls():
    clock = Clock()
    counts = StallCounts(clock)
    assert beats(counts, clock, 0.0, 0.05, 0.09) == [None, None, None]
    assert (counts.stalls, counts.longest_seconds) == (0, 0.0)


def test_late_beats_are_counted_and_the_longest_is_kept():
    clock = Clock()
    counts = StallCounts(clock)
    beats(counts, clock, 0.5, 2.0, 0.0, 1.0)
    assert counts.stalls == 3
    assert round(counts.longest_seconds, 6) == 2.0


def test_stalls_are_told_once_a_minute_at_most():
    clock = Clock()
    counts = StallCounts(clock)
    assert [late is not None for late in beats(counts, clock, 1.5, 1.5, 55.0, 1.5, 1.5)] == [
        True, False, False, True, False,
    ]  # fmt: skip


def test_stalls_of_less_than_a_second_are_counted_in_silence():
    clock = Clock()
    counts = StallCounts(clock)
    assert beats(counts, clock, 0.2, 0.9) == [None, None]
    assert counts.stalls == 2
    assert beats(counts, clock, 1.1) != [None]


async def test_a_loop_that_stands_still_is_noticed_and_logged(caplog):
    meter = StallMeter()
    meter.start()
    try:
        with caplog.at_level(logging.WARNING, status.__name__):
            time.sleep(1.2)  # noqa: ASYNC251  what the meter is there to notice
            for _ in range(500):
                if meter.counts.stalls:
                    break
                await asyncio.sleep(0.01)
    finally:
        meter.stop()
    assert meter.counts.stalls == 1
    assert meter.counts.longest_seconds > 1
    assert "event loop was blocked" in caplog.text
