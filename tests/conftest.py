"""What all tests have in common: none may leave threads, tasks, open files or values of executors behind.

pytest puts this folder on the path, so tests in every folder can import the modules beside this file
(`reference_interpreter`).
"""

import logging
import signal
from typing import Any

import free_ports  # noqa: F401  # it holds a file as long as the process lives, which no test leaves behind
import pytest
from hypothesis import settings
from thread_starts import ThreadStarts

from fedstack.transport.stream.found_connection import FoundConnection

pytest_plugins = ["out_of_time", "side_by_side"]

# A loaded machine is slow; no test depends on speed.
settings.register_profile("fedstack", deadline=None)
# For `make matrix`: random examples look for values that are treated wrongly, and every Python treats them alike.
settings.register_profile("few", deadline=None, max_examples=20)
settings.load_profile("fedstack")
# What a shell starts in the background ignores Ctrl-C, and hands that on to its children; tests send it to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Nor does one fail because a server of this process logs that such a machine held up its loop.
logging.getLogger("fedstack.service.host.status").setLevel(logging.ERROR)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--transport", default="auto", help="how clients of tests that do not say it reach servers")
    parser.addoption("--leaves", default="python", help="jax makes the functions of conformance rows JAX functions")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--leaves") == "jax":
        import jax_leaves

        jax_leaves.use_jax()
    transport = config.getoption("--transport")
    if transport != "auto":
        make = FoundConnection.__init__

        def made(self: FoundConnection, *arguments: Any, **options: Any) -> None:
            chosen = options.pop("transport", "auto")
            make(self, *arguments, transport=transport if chosen == "auto" else chosen, **options)

        FoundConnection.__init__ = made


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("fedstack_leak_check") is None:
        item.add_marker(pytest.mark.fedstack_leak_check)


@pytest.fixture
def thread_starts(monkeypatch: pytest.MonkeyPatch) -> ThreadStarts:
    """No thread of fedstack's starts any more, unless the test says so."""
    return ThreadStarts(monkeypatch)
