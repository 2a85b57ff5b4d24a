"""Runs the tests in several processes: a file at a time, the longest first, and what shares a cluster in one.

A plugin of pytest's, for `pytest -n auto`.
"""

import os
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# One cluster of Ray serves all tests of engines, and starting it takes longer than most of them. It changes what
# `breakpoint()` does and logs from threads of its own, so its process runs nothing else.
TOGETHER = "tests/engines"
# So that no process is left alone at the end with what takes long.
FIRST = (
    TOGETHER,
    "tests/executors/test_conformance.py",
    "tests/project/test_readme.py",
    "tests/faults",
    "tests/demo",
    "tests/project",
    "tests/command_line",
    "tests/executors",
    "tests/service",
)


def pytest_xdist_auto_num_workers() -> int:
    # Servers and faults are waited for half of their time.
    return 2 * (os.cpu_count() or 1)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "FileScheduling":
    return FileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return

    def rank(item: pytest.Item) -> int:
        return next((rank for rank, path in enumerate(FIRST) if item.nodeid.startswith(path)), len(FIRST))

    items.sort(key=rank)


class FileScheduling(LoadScopeScheduling):
    """Gives a file to the process that is free, and what is left of it to another if that process ends.

    Version 3.8 of xdist runs the test again that ended the process, and hands out files in which nothing is left:
    https://github.com/pytest-dev/pytest-xdist/issues/1378, https://github.com/pytest-dev/pytest-xdist/pull/1371.
    """

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if nodeid.startswith(TOGETHER) else nodeid.split("::", 1)[0]

    def schedule(self) -> None:
        super().schedule()
        # A process that takes over waits for a second file, or for word that there is none, before it begins.
        for node in self.nodes:
            self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        if TOGETHER in self.assigned_work[node] and len(self.nodes) > 1:
            node.shutdown()  # once it has done what it has
        else:
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        left = {file: tests for file, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
        if not left:
            return None
        running = next(iter(left.values()))
        ended = next(test for test, done in running.items() if not done)
        running[ended] = True
        self.workqueue.update({file: tests for file, tests in left.items() if not all(tests.values())})
        for other in self.nodes:
            self._reschedule(other)
        return ended
