"""The pytest plugin of fedstack: a fixture with a context, and a check that tests leak no resources.

    def test_my_computation(fedstack_context):
        assert my_computation([1.0, 2.0]) == 1.5

The check is off by default. The configuration option `fedstack_leak_check = true` turns it on for all tests, and the
mark `fedstack_leak_check` turns it on for a test, class or module; the mark `fedstack_leak_check(False)` turns it off.
pytest imports this module at startup, so the module imports the rest of fedstack only when a fixture is used.
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
    """Declares the configuration options."""
    parser.addini(_OPTION, "check that tests leak no threads, tasks, files or values", type="bool", default=False)
    parser.addini(_GRACE, "seconds to wait for a test's resources to be released", default="2.0")
    parser.addini(_IGNORED, "regular expressions of leaks to ignore, one per line", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark."""
    config.addinivalue_line(
        "markers",
        f"{_OPTION}(enabled: bool = True): check that the test leaks no threads, tasks, files or values",
    )


@pytest.fixture
def fedstack_context() -> "Iterator[SyncExecutionContext]":
    """Provides a context that runs the test's computations in this process, and closes the context after the test."""
    from fedstack.contexts.local_contexts import create_sync_local_execution_context

    with create_sync_local_execution_context() as context:
        yield context


# An autouse fixture is set up before the test's own fixtures and torn down after them.
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
        pytest.fail(f"Expected the test to release its resources, found {len(left)} leaks:\n  {shown}", pytrace=False)


def _is_on(request: pytest.FixtureRequest) -> bool:
    mark = cast("pytest.Item", request.node).get_closest_marker(_OPTION)
    if mark is None:
        return bool(request.config.getini(_OPTION))
    return bool(mark.args[0]) if mark.args else True
