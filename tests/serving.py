"""Runs `fedstack serve` in a process of its own, for the duration of a block."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from calling import WALL


def told_by(log: str) -> list[str]:
    """Returns the lines of a log but for those that come on a slow machine only."""
    return [line for line in log.splitlines() if "event loop was blocked" not in line]


class Server:
    """A process that serves."""

    def __init__(self, process: "subprocess.Popen[str]", line: str) -> None:
        self.process = process
        self.line = line
        if " serving on " not in line:
            process.kill()
            assert process.stderr is not None, line
            raise AssertionError(f"the server did not start: {line}{process.stderr.read()}")
        self.target = line.split(" serving on ")[1].split(" (")[0]


@contextlib.contextmanager
def served(
    *arguments: object, environment: dict[str, str] | None = None, stderr: Any = subprocess.PIPE
) -> Iterator[Server]:
    """Runs `fedstack serve` until the block is left: at any port, if it is no task of a cluster."""
    listen = [] if "--cluster" in arguments else ["--port", "0"]
    command = [sys.executable, "-m", "fedstack", "serve", *listen, *map(str, arguments)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        try:
            yield Server(process, first_line(process))
        finally:
            process.kill()


def first_line(process: "subprocess.Popen[str]") -> str:
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    thread = threading.Thread(target=lambda: lines.put(process.stdout.readline()))  # type: ignore[union-attr]
    thread.start()
    try:
        return lines.get(timeout=WALL)
    except queue.Empty:
        process.kill()
        raise AssertionError(f"nothing within {WALL} s") from None
    finally:
        thread.join()
