"""The executor that fails."""

import numpy as np
import pytest

import fedstack
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import InvalidValueError, RetryLimitError, WorkerUnavailableError
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.testing import RaisingExecutor
from fedstack.testing.leaves import double


@pytest.mark.parametrize("error", [ValueError("no luck"), ValueError])
async def test_every_verb_raises_the_error(error) -> None:
    executor = RaisingExecutor(error)
    for attempt in (
        lambda: executor.create_value(3, np.int32),
        lambda: executor.create_call(None),
        lambda: executor.create_struct([]),
        lambda: executor.create_selection(None, 0),
    ):
        with pytest.raises(ValueError, match="^no luck$" if isinstance(error, ValueError) else "^$"):
            await attempt()


def test_closing_does_not_raise() -> None:
    executor = RaisingExecutor(ValueError("no luck"))
    executor.close()
    executor.close()
    assert repr(executor) == "<RaisingExecutor of ValueError('no luck')>"


def test_a_context_gives_up_after_its_attempts_and_closes_each_executor() -> None:
    made = []

    class Noted(RaisingExecutor):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    def make(cardinalities):
        made.append(Noted(WorkerUnavailableError("no worker")))
        return made[-1]

    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.0)
    context = SyncExecutionContext(ResourceManagingExecutorFactory(make), retry_policy=policy)
    with fedstack.use_context(context), pytest.raises(RetryLimitError, match=r"3 attempts.*no worker"):
        double(4)
    context.close()
    assert [executor.closed for executor in made] == [1, 1, 1]


@pytest.mark.parametrize("error", [None, "no luck", int])
def test_what_cannot_be_raised_is_refused_when_it_is_given(error) -> None:
    with pytest.raises(InvalidValueError, match="Expected an exception or an exception class to raise, found"):
        RaisingExecutor(error)
