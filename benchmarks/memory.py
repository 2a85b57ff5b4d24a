"""Measures memory: what a call allocates, and what a whole process holds at its peak."""

import gc
import json
import os
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_STATUS = Path("/proc/self/status")
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


def resident_bytes() -> int:
    """Returns how much memory this process holds now."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """Returns how much memory this process held at its peak."""
    return _status("VmHWM")


def _status(key: str) -> int:
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    # Elsewhere only the peak can be had without another package.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


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
