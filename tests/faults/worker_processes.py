"""Workers in processes of their own, which a test can kill, stop, wake and start again."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WALL = 30.0
_FORKER = Path(__file__).with_name("worker_forker.py")


class WorkerProcess:
    """A worker process.

    Attributes:
      pid: Its id.
      target: Its address.
    """

    def __init__(self, lifeline: socket.socket) -> None:
        self._lifeline = lifeline
        with lifeline.makefile() as file:
            line = file.readline()
        assert line, "the worker has ended before it could be dialled"
        said = json.loads(line)
        self.pid: int = said["pid"]
        self.target: str = said["target"]
        self._dead = False

    @property
    def port(self) -> int:
        return int(self.target.rpartition(":")[2])

    def kill(self) -> None:
        """Returns when it is dead."""
        if not self._dead:
            os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ConnectionResetError):
                assert self._lifeline.recv(1) == b""
            self._dead = True

    def stop(self) -> None:
        """It gets no time any more, as if its machine had frozen; its connections stay."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._lifeline.close()

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.pid} at {self.target}>"


class WorkerForker:
    """Starts worker processes quickly."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(_FORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def start(self, port: int = 0, *, extensions: bool = True, **limits: Any) -> WorkerProcess:
        """Returns a worker that can be dialled.

        Args:
          port: Where it listens; 0 for anywhere.
          extensions: Whether it has more than the plain executor service.
          **limits: As of `ServiceLimits`; a heartbeat comes four times a second unless they say otherwise.
        """
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(WALL)
            options = {
                "port": port,
                "extensions": extensions,
                "limits": {"heartbeat_seconds": 0.25, **limits},
                "lifeline": listener.getsockname()[1],
            }
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(options) + "\n")
            self._process.stdin.flush()
            lifeline, _ = listener.accept()
        lifeline.settimeout(WALL)
        return WorkerProcess(lifeline)

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(WALL)


class Fleet:
    """The workers of one test."""

    def __init__(self, forker: WorkerForker) -> None:
        self._forker = forker
        self._workers: list[WorkerProcess] = []

    def start(self, port: int = 0, **options: Any) -> WorkerProcess:
        """Starts one more; see `WorkerForker.start`."""
        self._workers.append(self._forker.start(port, **options))
        return self._workers[-1]

    def restart(self, worker: WorkerProcess, **options: Any) -> WorkerProcess:
        """Kills a worker and starts another one at its address."""
        worker.kill()
        return self.start(worker.port, **options)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


@contextlib.contextmanager
def command_line_worker(*options: str) -> Iterator["subprocess.Popen[str]"]:
    """Runs `fedstack serve` as users do, until the block is left; the attribute `target` says where."""
    command = [sys.executable, "-m", "fedstack", "serve", "--port", "0", "--allow-module", "*", *options]
    folder = str(Path(__file__).parent)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": folder}
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.target = line.split(" serving on ")[1].split(" (")[0]  # type: ignore[attr-defined]
            yield process
        finally:
            process.kill()
