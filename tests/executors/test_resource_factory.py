"""Keeping executors for re-use."""

import numpy as np
import pytest

from fedstack.computations.types.language import CLIENTS
from fedstack.errors import ClosedError, InvalidValueError
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory


class FakeExecutor:
    def __init__(self, cardinalities):
        self.cardinalities = cardinalities
        self.closed = 0

    def close(self):
        self.closed += 1


@pytest.fixture
def factory():
    return ResourceManagingExecutorFactory(FakeExecutor, max_executors=2)


def test_equal_cardinalities_give_the_same_executor(factory):
    executor = factory.create_executor({CLIENTS: 3})
    assert factory.create_executor({CLIENTS: 3}) is factory.create_executor({CLIENTS: np.int64(3)}) is executor


def test_missing_clients_are_the_default_number(factory):
    assert factory.create_executor({}) is factory.create_executor({CLIENTS: 0})


def test_the_least_recently_used_executor_is_evicted_and_closed(factory):
    first = factory.create_executor({CLIENTS: 1})
    second = factory.create_executor({CLIENTS: 2})
    factory.create_executor({CLIENTS: 1})
    factory.create_executor({CLIENTS: 3})
    assert (first.closed, second.closed) == (0, 1)


def test_a_leased_executor_is_closed_only_when_it_is_released(factory):
    leased = factory.lease({CLIENTS: 1})
    for clients in (2, 3, 4):
        factory.create_executor({CLIENTS: clients})
    assert leased.closed == 0
    factory.release(leased, failed=False)
    assert leased.closed == 1


def test_a_failed_lease_retires_the_executor_and_the_last_user_closes_it(factory):
    first, second = factory.lease({CLIENTS: 1}), factory.lease({CLIENTS: 1})
    assert first is second
    factory.release(first, failed=True)
    assert factory.create_executor({CLIENTS: 1}) is not first
    assert first.closed == 0
    factory.release(second, failed=False)
    assert first.closed == 1


def test_clean_up_forgets_and_closes_and_unknown_cardinalities_are_no_error(factory):
    executor = factory.create_executor({CLIENTS: 1})
    factory.clean_up_executor({CLIENTS: 1})
    factory.clean_up_executor({CLIENTS: 7})
    assert executor.closed == 1
    assert factory.create_executor({CLIENTS: 1}) is not executor


def test_negative_cardinalities_are_refused(factory):
    with pytest.raises(InvalidValueError, match="at least 0, found -1"):
        factory.create_executor({CLIENTS: -1})


def test_close_closes_everything_once_and_refuses_more(factory):
    executor, leased = factory.create_executor({CLIENTS: 1}), factory.lease({CLIENTS: 2})
    factory.close()
    factory.close()
    assert (executor.closed, leased.closed) == (1, 0)
    factory.release(leased, failed=False)
    assert leased.closed == 1
    with pytest.raises(ClosedError):
        factory.create_executor({CLIENTS: 1})
