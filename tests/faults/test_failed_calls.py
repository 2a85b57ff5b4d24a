"""What calls were about that have failed is gone with them, even if the garbage collector never comes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import failed_calls
import pytest


class Failing:
    """A process that fails in the ways that it is told, one after the other; after its end there is another."""

    def __init__(self) -> None:
        self._process = self._started()

    @staticmethod
    def _started() -> "subprocess.Popen[str]":
        # What is large is mapped, and goes back to the system when it is freed: malloc would keep room for the next.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(failed_calls.BYTES // 2)}
        return subprocess.Popen(
            [sys.executable, failed_calls.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
            env=environment,
        )

    def kept_by(self, way: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{way}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self.close()
            self._process = self._started()
            raise AssertionError(f"Expected an answer, found that the process ended with {code}; see its stderr")
        return json.loads(line)

    def close(self) -> int:
        self._process.communicate(timeout=failed_calls.WALL)
        return self._process.returncode


@pytest.fixture(scope="module")
def failing() -> Iterator[Failing]:
    made = Failing()
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.parametrize("way", failed_calls.WAYS)
def test_failed_calls_keep_nothing_of_size(way: str, failing: Failing) -> None:
    found = failing.kept_by(way)
    assert found["circles"] == []
    assert found["grown"] < failed_calls.MOST_BYTES
