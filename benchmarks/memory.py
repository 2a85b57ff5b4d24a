"""Measures memory: what a call allocates, and what a whole process holds at its peak."""

import gc
import json
import mmap
import os
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MEGABYTE = 1e6


def allocated_peak(call: Callable[[], object]) -> int:
    """Returns the most bytes that a call held at once of what it allocated itself, NumPy's buffers included.

    The call is made twice and the second time counts, so that what caches keep is not taken for scratch space.
    """
    call()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before


def resident_bytes(process: int | None = None) -> int:
    """Returns how much memory a process holds now; this one by default."""
    return _status("VmRSS", process)


def peak_resident_bytes(process: int | None = None) -> int:
    """Returns how much memory a process held at its peak; this one by default."""
    return _status("VmHWM", process)


def _status(key: str, process: int | None) -> int:
    status = Path(f"/proc/{'self' if process is None else process}/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    # Elsewhere only the peak of this process can be had without another package.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if process is None else 0
    return peak if sys.platform == "darwin" else peak * 1024


def warm_memory(size: int) -> None:
    """Touches so many bytes and gives them back, so that whoever takes memory next, in any process, finds it in place.

    A virtual machine may return free memory to its host within seconds; to have it back costs more than to fill it,
    and would be the misfortune of whichever side is the first to need it.
    """
    np.empty(size, np.uint8)[:: mmap.PAGESIZE] = 1


def in_fresh_process(module: str, function: str, *arguments: object) -> object:
    """Returns what a function returns in a process of its own; arguments and result have to fit JSON."""
    call = f"{function}(*json.loads({json.dumps(arguments)!r}))"
    return json.loads(run_python(f"import json\nfrom {module} import {function}\nprint(json.dumps({call}))"))


def run_python(program: str) -> str:
    """Runs a program in a fresh interpreter and returns the last line that it prints.

    Raises:
      RuntimeError: If it fails.
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Expected a program to run, found\n{done.stderr}")
    return done.stdout.strip().splitlines()[-1]
