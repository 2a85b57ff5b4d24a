"""The plugin, as pytest sees it when it is installed with the package."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]
# Each test starts pytest; those that check for leaks do so inside of this one.
pytestmark = [pytest.mark.slow, pytest.mark.fedstack_leak_check(False)]

COMPUTATION = """
import fedstack
import federated_language as fl
import numpy as np
import pytest
import threading

@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def my_mean(x):
    return fl.federated_mean(x)
"""
LEAK = """
import threading

def leave_a_thread():
    end = threading.Event()
    threading.Thread(target=end.wait, args=(5,), name="left behind", daemon=True).start()
"""


@pytest.fixture
def pytester(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nfedstack_leak_grace_seconds = 0.1")
    return pytester


def test_a_context_is_one_fixture_away(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        COMPUTATION
        + """
def test_without():
    with pytest.raises(RuntimeError):
        my_mean([1.0, 2.0])

def test_with(fedstack_context):
    assert my_mean([1.0, 2.0]) == 1.5
    assert isinstance(fedstack_context, fedstack.contexts.SyncExecutionContext)

async def test_with_a_loop(fedstack_context):
    assert my_mean([1.0, 3.0]) == 2.0

def test_without_again():
    with pytest.raises(RuntimeError):
        my_mean([1.0, 2.0])
"""
    )
    pytester.runpytest_inprocess("--asyncio-mode=auto").assert_outcomes(passed=4)


def test_the_context_is_closed_after_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        COMPUTATION
        + """
kept = []

def test_first(fedstack_context):
    kept.append(fedstack_context)
    assert my_mean([1.0, 2.0]) == 1.5

def test_second(fedstack_context):
    assert fedstack_context is not kept[0]
    with fedstack.use_context(kept[0]), pytest.raises(fedstack.FedstackError, match="closed"):
        my_mean([1.0, 2.0])
    assert my_mean([1.0, 2.0]) == 1.5
"""
    )
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=2)


def test_the_leak_check_is_off_unless_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LEAK + "def test_leak():\n    leave_a_thread()\n")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_the_option_turns_the_leak_check_on_for_all_tests(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfedstack_leak_check = true\n"
        "fedstack_leak_grace_seconds = 0.1"
    )
    pytester.makepyfile(
        LEAK
        + """
import pytest

def test_leak():
    leave_a_thread()

def test_no_leak():
    pass

@pytest.mark.fedstack_leak_check(False)
def test_leak_that_is_meant():
    leave_a_thread()
"""
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        ["*Expected the test to release its resources, found 1 leaks:*", "*thread 'left behind'*"]
    )


def test_the_mark_turns_the_leak_check_on_for_one_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        LEAK
        + """
import pytest

@pytest.mark.fedstack_leak_check
def test_checked():
    leave_a_thread()

def test_not_checked():
    leave_a_thread()
"""
    )
    pytester.runpytest_inprocess("--strict-markers").assert_outcomes(passed=2, errors=1)


def test_what_fixtures_of_the_test_clean_up_is_no_leak(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import threading
import pytest

pytestmark = pytest.mark.fedstack_leak_check

@pytest.fixture
def thread():
    end = threading.Event()
    running = threading.Thread(target=end.wait)
    running.start()
    yield
    end.set()

@pytest.fixture(scope="module")
def module_thread():
    end = threading.Event()
    running = threading.Thread(target=end.wait)
    running.start()
    yield
    end.set()
    running.join()

def test_one(thread, module_thread):
    pass

def test_two(module_thread, thread):
    pass
"""
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_what_is_known_to_stay_can_be_ignored(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfedstack_leak_check = true\n"
        "fedstack_leak_grace_seconds = 0.1\nfedstack_leak_ignore =\n    thread 'other'\n    thread 'left .*'"
    )
    pytester.makepyfile(LEAK + "def test_leak():\n    leave_a_thread()\n")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_loading_the_plugin_imports_nothing_but_pytest_beside_the_package() -> None:
    program = (
        "import sys, pytest, fedstack; before = set(sys.modules); import fedstack.testing.pytest_plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert found == ["fedstack.testing", "fedstack.testing.pytest_plugin"]


def test_the_package_imports_its_parts_when_they_are_asked_for() -> None:
    program = (
        "import sys, fedstack.testing as t; assert 'fedstack.testing.conformance' not in sys.modules; "
        "assert set(t.__all__) <= set(dir(t)); [getattr(t, name) for name in t.__all__]; "
        "assert 'fedstack.testing.conformance' in sys.modules; "
        "\ntry:\n    t.nothing\nexcept AttributeError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "module 'fedstack.testing' has no attribute 'nothing'"
