"""`with context:` and `use_context`: which context is in force where, and when one is closed."""

import asyncio
import contextlib
import copy
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.types.language import get_context_stack
from fedstack.errors import ClosedError, ContextError
from fedstack.executors import LeafExecutor

LIMIT = 20.0
KINDS = {
    "sync": fedstack.create_sync_local_execution_context,
    "async": fedstack.create_async_local_execution_context,
}


@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x + x


@pytest.fixture(params=KINDS)
def make_context(request):
    return KINDS[request.param]


def in_force():
    return get_context_stack().current


def is_closed(context) -> bool:
    try:
        with fedstack.use_context(context):
            called = double(1)
            if asyncio.iscoroutine(called):
                asyncio.run(called)
    except ClosedError:
        return True
    return False


@contextlib.contextmanager
def everything_is_taken_off():
    """Checks that a block leaves the thread's contexts as they were."""
    before = in_force()
    yield
    assert in_force() is before


@pytest.fixture(autouse=True)
def no_context_stays():
    with everything_is_taken_off():
        yield


def test_a_block_puts_its_context_in_force_and_closes_it_at_its_end(make_context):
    with make_context() as context:
        assert in_force() is context
        with context:
            assert in_force() is context
        assert in_force() is context
        assert not is_closed(context)
    assert is_closed(context)
    with pytest.raises(ClosedError, match="create a new context"), context:
        pass


def test_use_context_leaves_the_context_open(make_context):
    context = make_context()
    for _ in range(2):
        with fedstack.use_context(context) as given:
            assert given is context
            assert in_force() is context
    assert not is_closed(context)
    context.close()


def test_blocks_of_several_contexts_may_be_inside_each_other(make_context):
    default = fedstack.create_sync_local_execution_context()
    stack = get_context_stack()
    bottom = stack.current
    with make_context() as outer, fedstack.use_context(default), make_context() as inner:
        assert in_force() is inner
        with outer:
            assert in_force() is outer
        assert in_force() is inner
        stack.set_default_context(default)
        assert in_force() is inner
    assert in_force() is default
    stack.set_default_context(bottom)
    default.close()


def test_a_context_that_several_threads_have_entered_is_closed_when_the_last_of_them_leaves():
    both, one_left = threading.Barrier(2), threading.Event()
    context = fedstack.create_sync_local_execution_context()

    def first():
        with context:
            both.wait(LIMIT)
        one_left.set()

    def second():
        with context:
            both.wait(LIMIT)
            assert one_left.wait(LIMIT)
            return double(3)

    with ThreadPoolExecutor(2) as threads:
        works = [threads.submit(first), threads.submit(second)]
        assert works[1].result(LIMIT) == 6
        works[0].result(LIMIT)
    assert is_closed(context)


async def test_tasks_of_one_loop_share_a_context_and_the_last_one_closes_it():
    context = fedstack.create_async_local_execution_context()
    everybody = asyncio.Barrier(4) if sys.version_info >= (3, 11) else None

    async def doubled(number):
        async with context:
            if everybody is not None:
                await everybody.wait()
            await asyncio.sleep(0)
            return await double(number)

    async with context:
        assert await asyncio.gather(*(doubled(number) for number in range(4))) == [0, 2, 4, 6]
        assert in_force() is context
        assert await double(1) == 2
    with pytest.raises(ClosedError), fedstack.use_context(context):
        await double(1)


class Crossed:
    """Two tasks of one loop: a block of the first ends while one of the second, which began later, goes on."""

    def __init__(self, enter) -> None:
        self.enter = enter
        self.contexts = [fedstack.create_async_local_execution_context() for _ in range(2)]
        self.begun, self.crossed, self.over, self.end = (asyncio.Event() for _ in range(4))

    async def older(self):
        with self.enter(self.contexts[0]):
            self.begun.set()
            await self.end.wait()

    async def newer(self):
        await self.begun.wait()
        with self.enter(self.contexts[1]):
            self.crossed.set()
            await self.over.wait()
            return await double(4)

    async def run(self, end):
        """Runs both; `end` ends the older one when the newer one is inside its block."""
        older, newer = asyncio.ensure_future(self.older()), asyncio.ensure_future(self.newer())
        await asyncio.wait_for(self.crossed.wait(), LIMIT)
        end(older)
        await asyncio.wait([older], timeout=LIMIT)
        self.over.set()
        outcomes = await asyncio.gather(older, newer, return_exceptions=True)
        for context in self.contexts:
            context.close()
        return outcomes


@pytest.mark.parametrize("enter", [lambda context: context, fedstack.use_context], ids=["with context", "use_context"])
async def test_a_block_that_ends_before_a_newer_one_raises_and_says_what_to_do(enter):
    crossed = Crossed(enter)
    with everything_is_taken_off():
        older, newer = await crossed.run(lambda task: crossed.end.set())
    assert isinstance(older, ContextError)
    assert "one context per event loop, or create the coroutine in a block of fedstack.use_context" in str(older)
    assert newer == 8


async def test_an_error_in_such_a_block_is_what_is_raised():
    crossed = Crossed(lambda context: context)
    with everything_is_taken_off():
        older, newer = await crossed.run(lambda task: task.cancel())
    assert isinstance(older, asyncio.CancelledError)
    assert newer == 8


def test_a_block_that_ends_in_another_thread_raises_and_closes():
    context = fedstack.create_sync_local_execution_context()
    context.__enter__()
    with (
        ThreadPoolExecutor(1) as threads,
        pytest.raises(ContextError, match="ended in the thread .*, but began in a different thread"),
    ):
        threads.submit(context.__exit__, None, None, None).result(LIMIT)
    assert is_closed(context)
    assert in_force() is context
    context.__exit__(None, None, None)


@pytest.mark.parametrize("enter", [lambda context: context, fedstack.use_context], ids=["with context", "use_context"])
def test_the_end_of_a_block_that_has_not_begun_says_so(enter):
    context = fedstack.create_sync_local_execution_context()
    with pytest.raises(
        ContextError, match="no open block that could end in the thread 'MainThread'; use the context in a `with`"
    ):
        enter(context).__exit__(None, None, None)
    assert not is_closed(context)
    context.close()


async def test_the_end_of_a_block_that_has_not_begun_leaves_the_context_usable():
    context = fedstack.create_sync_local_execution_context()
    with pytest.raises(ContextError):
        context.__exit__(None, None, None)
    with pytest.raises(ContextError):
        await context.__aexit__(None, None, None)
    context.__exit__(ValueError, ValueError("more interesting than that"), None)
    with context:
        assert double(4) == 8
    assert is_closed(context)


def test_what_use_context_returns_serves_many_blocks_inside_each_other_and_in_threads():
    context = fedstack.create_sync_local_execution_context()
    use = fedstack.use_context(context)

    @use
    def quadruple(x):
        return double(double(x))

    for _ in range(2):
        with use as outer, use as inner:
            assert outer is inner is context
            assert in_force() is context
            assert quadruple(1) == 4
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(quadruple, range(4))) == [0, 4, 8, 12]
    assert not is_closed(context)
    context.close()


def test_a_context_of_the_languages_own_may_stand_above(make_context):
    class Other(fl.framework.SyncContext):
        def invoke(self, comp, arg):
            return "other"

    with make_context(), get_context_stack().install(Other()):
        assert double(1) == "other"
        with fedstack.create_sync_local_execution_context():
            assert double(1) == 2
        assert double(1) == "other"


def test_an_error_in_a_block_is_raised_and_the_context_closed(make_context):
    context = make_context()
    with pytest.raises(ZeroDivisionError), context:
        raise ZeroDivisionError
    assert is_closed(context)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize(
    "make", [*KINDS.values(), fedstack.local_executor_factory, LeafExecutor], ids=[*KINDS, "factory", "executor"]
)
def test_nothing_with_threads_is_copied_or_pickled(make, copied):
    made = make()
    with pytest.raises(TypeError, match=f"^This {type(made).__name__} cannot be copied or pickled, because its"):
        copied(made)
    made.close()


# In processes of their own: the language's default is replaced once per process.

NO_CONTEXT = """
import threading
import federated_language as fl
import numpy as np
import fedstack

def said(call):
    try:
        return call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"

def in_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(said(call)), name="mine")
    thread.start()
    thread.join()
    return found[0]
"""
CASES = {
    "after a leaf": (
        """
@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x + x

print(said(lambda: double(1)))
print(in_thread(lambda: double(1)))
with fedstack.create_sync_local_execution_context():
    print(said(lambda: double(1)), in_thread(lambda: double(1)))
""",
        [
            r"ContextError: .* for calling 'double', found none in the thread 'MainThread'; .*set_sync_.*use_context",
            r"ContextError: .* for calling 'double', found none in the thread 'mine'; .*set_sync_local_.*use_context",
            r"2 ContextError: .* for calling 'double', found none in the thread 'mine'",
        ],
    ),
    "after a context": (
        """
@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def total(x):
    return fl.federated_sum(x)

print(said(lambda: total([1])))
fedstack.create_sync_local_execution_context().close()
print(said(lambda: total([1])))
fl.framework.set_no_default_context()
print(said(lambda: total([1])))
""",
        [
            r"RuntimeError: No default context installed\.",
            r"ContextError: .* for calling a computation, found none in the thread 'MainThread'",
            r"RuntimeError: No default context installed\.",
        ],
    ),
    "where another default is set": (
        """
class Other(fl.framework.SyncContext):
    def invoke(self, comp, arg):
        return "other"

fl.framework.set_default_context(Other())

@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x + x

print(said(lambda: double(1)))
""",
        ["other"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_without_a_context_says_what_to_do(case):
    source, expected = CASES[case]
    run = subprocess.run([sys.executable, "-c", NO_CONTEXT + source], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected):
        assert re.match(pattern, line), line
