"""Plugs fedstack into pytest: a context for a test, and a check that a test leaves nothing behind.

    def test_my_computation(fedstack_context):
        assert my_computation([1.0, 2.0]) == 1.5

The check is off unless the option `fedstack_leak_check` in the configuration is true, or a test, class or module has
the mark `fedstack_leak_check`; `fedstack_leak_check(False)` turns it off for one. pytest imports this module when it
starts, so it imports nothing else until a fixture is used.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from fedstack.contexts.contexts import SyncExecutionContext

_OPTION = "fedstack_leak_check"
_IGNORED = "fedstack_leak_ignore"
_GRACE = "fedstack_leak_grace_seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the options."""
    parser.addini(
        _OPTION, "check that no test leaves threads, tasks, files or values behind", type="bool", default=False
    )
    parser.addini(_GRACE, "how long a test's leftovers have to go away by themselves", default="2.0")
    parser.addini(_IGNORED, "regular expressions for what may be left behind", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark."""
    config.addinivalue_line(
        "markers",
        f"{_OPTION}(enabled: bool = True): check that the test leaves no threads, tasks, files or values behind",
    )


@pytest.fixture
def fedstack_context() -> "Iterator[SyncExecutionContext]":
    """Runs the computations that a test calls, in this process; the context is closed after the test."""
    from fedstack.contexts.local_contexts import create_sync_local_execution_context

    with create_sync_local_execution_context() as context:
        yield context


# Used by every test, so that it is set up before the test's own fixtures and torn down after them.
@pytest.fixture(autouse=True)
def _fedstack_leak_check(request: pytest.FixtureRequest) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    if not _is_on(request):
        yield
        return
    from fedstack.testing.leak_check import LeakCheck

    check = LeakCheck()
    yield
    ignored = [re.compile(pattern) for pattern in cast("list[str]", request.config.getini(_IGNORED))]
    found = check.finish(float(request.config.getini(_GRACE)))
    left = [line for line in found if not any(pattern.search(line) for pattern in ignored)]
    if left:
        shown = "\n  ".join(left)
        pytest.fail(f"Expected the test to leave nothing behind, found {len(left)} leaks:\n  {shown}", pytrace=False)


def _is_on(request: pytest.FixtureRequest) -> bool:
    mark = cast("pytest.Item", request.node).get_closest_marker(_OPTION)
    if mark is None:
        return bool(request.config.getini(_OPTION))
    return bool(mark.args[0]) if mark.args else True
