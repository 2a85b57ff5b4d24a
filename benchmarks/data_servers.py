"""Runs dispatchers and data workers in processes of their own: `python -m benchmarks.data_servers KIND …` serves."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.memory import ROOT
from fedstack.leaves import CarrierPolicy
from fedstack.service.data import Dataset, DispatcherConfig, DispatchServer, WorkerConfig, WorkerServer

ELEMENT_BYTES = 1 << 20


def _megabytes(split: int) -> Iterator[Any]:
    element = np.ones(ELEMENT_BYTES // 8)
    element.flags.writeable = False  # else each would be copied, as the next turn may change it
    while True:
        yield element


def large() -> Dataset:
    """Returns elements of 1 MiB without end; where it is called, data workers have them too."""
    return Dataset.from_generator(_megabytes, fl.TensorType(np.float64, [ELEMENT_BYTES // 8]), name="megabytes")


@fedstack.python_computation([np.int64], np.int64)
def slowly(x: Any) -> Any:
    """Returns a number after half a millisecond."""
    time.sleep(0.0005)
    return x


@fedstack.python_computation([np.int64], fl.TensorType(np.float64, [ELEMENT_BYTES // 8]))
def enlarged(x: Any) -> Any:
    """Returns 1 MiB of a number."""
    return np.full(ELEMENT_BYTES // 8, float(x))


class DataServer:
    """A process with a dispatcher or a worker.

    Args:
      *arguments: `"dispatcher"`, a port, and the folder of its journal; or `"worker"`, the dispatcher's address, and
        folders with clients' states.

    Attributes:
      target: Its address.
    """

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.data_servers", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # as workers have it, see `BareProcess`
        )
        assert self._process.stdout is not None
        self.target = self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "DataServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _serve(kind: str, *arguments: str) -> None:
    if kind == "dispatcher":
        port, folder = arguments
        server: Any = DispatchServer(DispatcherConfig(int(port), work_dir=folder, fault_tolerant_mode=True))
    else:
        large()  # is registered here
        policy = CarrierPolicy(python_code=True)
        server = WorkerServer(WorkerConfig(arguments[0], policy=policy, client_states=arguments[1:]))
    print(server.target, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
