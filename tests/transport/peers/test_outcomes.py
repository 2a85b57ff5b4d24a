"""What comes of work is told once, whoever waits for it and from wherever."""

import concurrent.futures
import threading

import pytest

from fedstack.transport.peers.io_loop import Outcome

LIMIT = 30


def told(result: object, error: BaseException | None = None) -> Outcome[object]:
    outcome = Outcome[object]()
    outcome.set(result, error)
    return outcome


def test_what_is_known_is_told_again_and_again():
    known = told(1)
    assert known.done()
    assert not known.cancel()
    assert [known.result(), known.result(), known.exception()] == [1, 1, None]
    failed = told(None, ValueError("no"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            failed.result()
    assert told(None, concurrent.futures.CancelledError()).cancelled()


def test_threads_wait_until_it_is_told():
    outcome, found, waiting = Outcome[int](), list[int](), threading.Barrier(9)

    def wait() -> None:
        waiting.wait(LIMIT)
        found.append(outcome.result(LIMIT))

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    waiting.wait(LIMIT)
    outcome.set(7, None)
    for thread in threads:
        thread.join(LIMIT)
    assert found == [7] * 8


def test_waiting_ends_when_it_takes_too_long_and_may_begin_again():
    outcome = Outcome[int]()
    with pytest.raises(concurrent.futures.TimeoutError):
        outcome.result(0.001)
    outcome.set(7, None)
    assert outcome.result(0.001) == 7


def test_callbacks_are_called_once_each_whenever_they_come():
    for _ in range(200):
        outcome, called = Outcome[int](), list[int]()
        outcome.add_done_callback(lambda _: called.append(0))  # noqa: B023
        teller = threading.Thread(target=outcome.set, args=(1, None))
        teller.start()
        for number in range(1, 4):
            outcome.add_done_callback(lambda _, number=number: called.append(number))  # noqa: B023
        teller.join(LIMIT)
        assert sorted(called) == [0, 1, 2, 3]


def test_an_error_that_was_raised_does_not_keep_what_it_is_the_outcome_of():
    failed = told(None, ValueError("no"))
    with pytest.raises(ValueError, match="no") as caught:
        failed.result()
    frame = caught.value.__traceback__
    while frame is not None:
        assert frame.tb_frame.f_locals.get("self") is not failed
        frame = frame.tb_next
