"""A process that uses C++ libraries ends when the functions that it runs have returned."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, pathlib, sys, threading, time, types
import federated_language as fl, numpy as np
import fedstack
from fedstack.executors.concurrency import exit_wait

marker, library, most = sys.argv[1:]
sys.modules[library] = types.ModuleType(library)
exit_wait._MOST_SECONDS = float(most)
exit_wait._SILENT_SECONDS = 0.0
begun = threading.Event()

@fedstack.python_computation(np.float32, np.float32)
def slow(x):
    begun.set()
    for _ in range(30):
        time.sleep(0.05)
    pathlib.Path(marker).touch()
    return x

@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def total(values):
    return fl.federated_sum(fl.federated_map(slow, values))

async def main():
    call = asyncio.ensure_future(total([1.0]))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    raise KeyError("a bug of the program")

fedstack.set_async_local_execution_context()
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("library", "most", "waits"), [("torch", 30.0, True), ("numbers_only", 30.0, False), ("jaxlib", 0.1, False)]
)
def test_a_process_with_such_a_library_ends_when_its_functions_have_returned(
    tmp_path: Path, library: str, most: float, *, waits: bool
) -> None:
    marker = tmp_path / "returned"
    command = [sys.executable, "-c", PROGRAM, str(marker), library, str(most)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 1
    assert "KeyError: 'a bug of the program'" in found.stderr
    assert marker.exists() == waits
    assert ("Waiting for 1 function of clients to return" in found.stderr) == (library != "numbers_only")


FREES = """
import ctypes, pathlib, sys, threading, time, types
from fedstack.executors.concurrency.leaf_threads import LeafThreads

sys.modules["jaxlib"] = types.ModuleType("jaxlib")
marker, threads = pathlib.Path(sys.argv[1]), LeafThreads(1)

class Array:
    def __del__(self):
        ctypes.CDLL(None).usleep(50_000)  # without the interpreter lock, like a library that frees memory
        marker.touch()

event = threading.Event()  # whose wait has no frames of users, like that of a thread that watches a run
event.array = Array()
threads.submit(event.wait)
while not event._cond._waiters:
    time.sleep(0.01)
event.set()
del event
"""


def test_a_process_ends_when_a_thread_that_was_just_woken_has_freed_what_it_holds(tmp_path: Path) -> None:
    marker = tmp_path / "freed"
    command = [sys.executable, "-c", FREES, str(marker)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert marker.exists()
