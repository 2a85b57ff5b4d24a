"""Workers and clients in processes of their own, which a test can kill, stop, wake and start again."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WALL = 30.0
_FORKER = Path(__file__).with_name("process_forker.py")


class Process:
    """A process that the test can kill, stop and wake.

    Attributes:
      pid: Its id.
    """

    def __init__(self, lifeline: socket.socket) -> None:
        self._lifeline = lifeline
        self._file = lifeline.makefile()
        self._dead = False
        self.said = self.listen()
        self.pid: int = self.said["pid"]

    def listen(self) -> dict[str, Any]:
        """Returns the next that it says."""
        line = self._file.readline()
        assert line, "the process has ended"
        said: dict[str, Any] = json.loads(line)
        assert "error" not in said, said["error"]
        return said

    def nod(self) -> None:
        """Lets a process go on that waits for it."""
        self._lifeline.sendall(b"!")

    def kill(self) -> None:
        """Returns when it is dead."""
        if not self._dead and not self._has_ended():
            os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ConnectionResetError):
                while self._lifeline.recv(1000):
                    pass
        self._dead = True

    def _has_ended(self) -> bool:
        """Tells whether it has ended by itself; its id may be another process's by now."""
        self._lifeline.setblocking(False)
        try:
            return self._lifeline.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        finally:
            self._lifeline.settimeout(WALL)

    def stop(self) -> None:
        """It gets no time any more, as if its machine had frozen; its connections stay."""
        from freezing import freeze  # the processes load this module, too, and have no path to that one

        freeze(self.pid)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._file.close()
        self._lifeline.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.said}>"


class WorkerProcess(Process):
    """A worker.

    Attributes:
      target: Its address.
    """

    def __init__(self, lifeline: socket.socket) -> None:
        super().__init__(lifeline)
        self.target: str = self.said["target"]

    @property
    def port(self) -> int:
        return int(self.target.rpartition(":")[2])


class ProcessForker:
    """Starts processes quickly."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(_FORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def start(self, **options: Any) -> socket.socket:
        """Starts a process and returns its lifeline."""
        token = secrets.token_hex(8)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(WALL)
            lifeline = {"port": listener.getsockname()[1], "token": token}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({**options, "lifeline": lifeline}) + "\n")
            self._process.stdin.flush()
            while True:
                found, _ = listener.accept()
                found.settimeout(WALL)
                if found.recv(len(token), socket.MSG_WAITALL) == token.encode():
                    return found
                found.close()  # a client of another test, which dials a server that was here before

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(WALL)


def _free_port() -> int:
    from free_ports import free_port  # the processes load this module, too, and have no path to that one

    return free_port()


class Fleet:
    """The workers and clients of one test."""

    def __init__(self, forker: ProcessForker, *, streams: bool = True) -> None:
        self._forker = forker
        self._processes: list[Process] = []
        self._streams = streams
        self._stream_ports: dict[int, int] = {}  # a worker that is started again has the same

    def start(
        self, port: int = 0, *, extensions: bool = True, threads: int | None = None, **limits: Any
    ) -> WorkerProcess:
        """Starts a worker, which can be dialled.

        Args:
          port: Where it listens; 0 for a port that nobody has.
          extensions: Whether it has more than the plain executor service.
          threads: The most threads that run functions; by default as many as usual.
          **limits: As of `ServiceLimits`; a heartbeat comes every second unless they say otherwise.
        """
        limits = {"heartbeat_seconds": 1.0, **limits}
        port = port or _free_port()
        options: dict[str, Any] = {
            "port": port,
            "stream_port": self._stream_ports.setdefault(port, _free_port()) if self._streams else 0,
            "extensions": extensions,
            "threads": threads,
            "limits": limits,
        }
        return self._add(WorkerProcess(self._forker.start(role="worker", **options)))

    def restart(self, worker: WorkerProcess, **options: Any) -> WorkerProcess:
        """Kills a worker and starts another one at its address."""
        worker.kill()
        return self.start(worker.port, **options)

    def start_task(self, cluster: dict[str, list[str]], job: str, index: int) -> WorkerProcess:
        """Starts a task of a cluster, which can be dialled; a heartbeat comes every second."""
        return self._add(WorkerProcess(self._forker.start(role="task", cluster=cluster, job=job, index=index)))

    def start_dispatcher(self, port: int = 0, **config: Any) -> WorkerProcess:
        """Starts a dispatcher of the data service; see `DispatcherConfig`."""
        return self._add(WorkerProcess(self._forker.start(role="dispatcher", port=port or _free_port(), **config)))

    def start_data_worker(self, dispatcher: WorkerProcess, port: int = 0) -> WorkerProcess:
        """Starts a data worker, which attends at a dispatcher five times a second."""
        options = {
            "dispatcher_address": dispatcher.target,
            "port": port or _free_port(),
            "heartbeat_interval_ms": 200,
        }
        return self._add(WorkerProcess(self._forker.start(role="data_worker", **options)))

    def _add(self, process: WorkerProcess) -> WorkerProcess:
        self._processes.append(process)
        return process

    def start_client(self, role: str, **options: Any) -> Process:
        """Starts a client; `client_roles` has the roles."""
        self._processes.append(Process(self._forker.start(role=role, **options)))
        return self._processes[-1]

    def close(self) -> None:
        for process in self._processes:
            process.close()


@contextlib.contextmanager
def command_line_worker(*options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Runs `fedstack serve` as users do, until the block is left; yields the process and its address."""
    command = [sys.executable, "-m", "fedstack", "serve", "--port", "0", "--allow-module", "fault_leaves", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " serving on " in line, line
            yield process, line.split(" serving on ")[1].split(" (")[0]
        finally:
            process.kill()
