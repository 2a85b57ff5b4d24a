"""Runs a function in a bare process of its own: the floor of what runs on workers.

`python -m benchmarks.bare_process MODULE FUNCTION` answers each line of arguments with a line, both in JSON.
"""

import importlib
import json
import subprocess
import sys

from benchmarks.memory import ROOT


class BareProcess:
    """A process that knows one function.

    Args:
      module: Where it is defined; the process imports that and what that imports.
      function: Its name; arguments and result have to fit JSON.
    """

    def __init__(self, module: str, function: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_process", module, function],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Linux deals out cores by sessions, when they are scarce, and each worker of a pool has one of its own.
            start_new_session=True,
        )

    def start(self, *arguments: object) -> None:
        """Calls the function and does not wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()

    def finish(self) -> object:
        """Returns what the function returned."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> "BareProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _answer_all(module: str, function: str) -> None:
    call = getattr(importlib.import_module(module), function)
    for line in sys.stdin:
        print(json.dumps(call(*json.loads(line))), flush=True)


if __name__ == "__main__":
    _answer_all(*sys.argv[1:])
