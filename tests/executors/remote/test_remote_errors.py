"""An error is the same wherever it was raised: class, message, the user's own lines, the client."""

import inspect
import traceback

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack import errors
from fedstack.computations.types.language import ExecutorFactory, RetryableError
from fedstack.contexts import SyncExecutionContext
from fedstack.executors import RemoteExecutor
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing import RaisingExecutor
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.status import Code, RemoteTraceback, StatusError

INT = fl.TensorType(np.int32)
INTS = fl.FederatedType(np.int32, fl.CLIENTS)
CLASSES = sorted(
    (c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.FedstackError)),
    key=lambda c: c.__name__,
)
KEPT = (*CLASSES, RetryableError)
SERIOUS = "the message, with ünïcödé and\nanother line"
_to_raise: list[Exception] = []


@fedstack.python_computation([np.int32], np.int32)
def raises_what_is_wanted(x):
    raise _to_raise[0]


def inner(x):
    return 10 // (x - 3)  # this line is the user's own


@fedstack.python_computation([np.int32], np.int32)
def divides_by_zero(x):
    return np.int32(inner(int(x)))


@fedstack.python_computation([np.int32], np.int32)
def returns_text(x):
    return "a text"


@fl.federated_computation(INTS)
def divide_at_clients(values):
    return fl.federated_sum(fl.federated_map(divides_by_zero, values))


@pytest.fixture(params=[True, False], ids=["extended", "plain"])
def remote(request, make_remote):
    return make_remote(3, extensions=request.param)


async def raised_there(executor, error):
    _to_raise[:] = [error]
    try:
        function = await executor.create_value(raises_what_is_wanted)
        value = await executor.create_call(function, await executor.create_value(1, INT))
        with pytest.raises((errors.FedstackError, RetryableError)) as caught:
            await value.compute()
        return caught.value
    finally:
        _to_raise.clear()


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.__name__)
async def test_an_error_of_ours_keeps_its_class_and_message_and_brings_its_traceback(remote, kind):
    found = await raised_there(remote, kind(SERIOUS))
    assert type(found) is kind
    # Workers may differ in what they let in, and in their limits.
    is_limit = kind in (errors.CarrierError, errors.ResourceLimitError)
    named = "; this is a restriction of the worker at memory" if is_limit else ""
    assert str(found) == SERIOUS + named
    cause = found.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert cause.address == "memory"
    assert "raise _to_raise[0]" in cause.text
    assert kind.__name__ in cause.text


async def test_a_remote_error_keeps_its_code(remote):
    found = await raised_there(remote, errors.RemoteError("no", code="DATA_LOSS"))
    assert found.code == "DATA_LOSS"


async def test_a_status_becomes_the_error_that_stands_for_it(remote):
    assert type(await raised_there(remote, StatusError(Code.OUT_OF_RANGE, "far"))) is errors.RemoteError
    assert type(await raised_there(remote, StatusError(Code.UNAVAILABLE, "far"))) is errors.WorkerUnavailableError


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyError, AssertionError, StopIteration, MemoryError])
async def test_what_a_function_raises_is_a_leaf_error_with_its_class_and_text(remote, kind):
    found = await raised_there(remote, kind("a text"))
    assert type(found) is errors.LeafError
    assert f" raised {kind.__name__}: " in str(found)
    assert "a text" in str(found)
    assert found.computation_name == "raises_what_is_wanted"
    assert found.client_index is None


async def test_a_leaf_error_has_the_lines_of_the_user_and_not_ours(remote):
    function = await remote.create_value(divides_by_zero)
    value = await remote.create_call(function, await remote.create_value(3, INT))
    with pytest.raises(errors.LeafError) as caught:
        await value.compute()
    assert "ZeroDivisionError" in str(caught.value)
    assert "return 10 // (x - 3)  # this line is the user's own" in str(caught.value)
    assert "fedstack/executors" not in str(caught.value)
    assert "return 10 // (x - 3)  # this line is the user's own" in caught.value.__cause__.text


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_that_the_message_tells_whole_brings_no_traceback_of_the_workers_inside(count):
    context, services = workers(count)
    try:
        with fedstack.use_context(context), pytest.raises(errors.TypeMismatchError, match="client 0") as caught:
            fl.federated_computation(lambda values: fl.federated_sum(fl.federated_map(returns_text, values)), INTS)(
                [1, 2, 3]
            )
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert caught.value.__cause__.text == ""
    finally:
        context.close()
        for service in services:
            io_loop.run_sync(service.close())


@pytest.mark.parametrize("count", [0, 1])
def test_the_cause_of_a_leaf_error_begins_with_the_users_function(count):
    context, services = workers(count) if count else (fedstack.create_sync_local_execution_context(), [])
    try:
        with fedstack.use_context(context), pytest.raises(errors.LeafError) as caught:
            divide_at_clients([1, 3])
        printed = "".join(traceback.format_exception(caught.value.__cause__))
        assert "return 10 // (x - 3)" in printed
        assert "python_functions.py" not in printed
    finally:
        context.close()
        for service in services:
            io_loop.run_sync(service.close())


async def test_a_leaf_error_tells_the_client(remote):
    function = await remote.create_value(divide_at_clients)
    value = await remote.create_call(function, await remote.create_value([1, 3, 5], INTS))
    with pytest.raises(errors.LeafError, match="at client 1") as caught:
        await value.compute()
    assert caught.value.client_index == 1


def workers(count, **options):
    """Makes a context over workers in this process, and what closes it and them."""
    services = [ExecutorService(fedstack.local_executor_factory()) for _ in range(count)]
    stubs = [ExecutorStub(InMemoryConnection(service, f"worker-{k}"), **options) for k, service in enumerate(services)]
    context = SyncExecutionContext(
        fedstack.remote_executor_factory(stubs), retry_policy=fedstack.RetryPolicy(attempts=1)
    )
    return context, services


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("options", [{}, {"extensions": False, "keeps_handles": True}], ids=["extended", "plain"])
def test_clients_are_counted_over_all_workers(count, options):
    context, services = workers(count, **options)
    try:
        with fedstack.use_context(context):
            for bad in (0, 4, 6):
                values = [1] * 7
                values[bad] = 3
                with pytest.raises(errors.LeafError) as caught:
                    divide_at_clients(values)
                assert "ZeroDivisionError" in str(caught.value)
                assert "# this line is the user's own" in str(caught.value)
                if not options:  # a plain peer counts its own
                    assert caught.value.client_index == bad
                    assert f"at client {bad}" in str(caught.value)
    finally:
        context.close()
        for service in services:
            io_loop.run_sync(service.close())


class FactoryOf(ExecutorFactory):
    """A factory of another origin."""

    def __init__(self, executor):
        self.executor = executor

    def create_executor(self, cardinalities):
        return self.executor

    def clean_up_executor(self, cardinalities):
        return None


@pytest.mark.parametrize("extensions", [True, False], ids=["extended", "plain"])
async def test_what_nobody_has_foreseen_is_an_internal_error_that_names_it(extensions):
    service = ExecutorService(FactoryOf(RaisingExecutor(OSError("disk full"))))
    executor = RemoteExecutor(ExecutorStub(InMemoryConnection(service), extensions=extensions, keeps_handles=True))
    executor.set_cardinalities({})
    with pytest.raises(errors.RemoteError, match="OSError: disk full") as caught:
        await executor.create_value(divides_by_zero)
    assert caught.value.code == "INTERNAL"
    executor.close()
    io_loop.run_sync(service.close())
