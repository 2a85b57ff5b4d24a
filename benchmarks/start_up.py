"""Starts a Python that runs one computation: the time and memory of the whole process."""

import json
from collections.abc import Iterator
from typing import TypedDict, cast

from benchmarks.harness import Effort, Measurement, compare
from benchmarks.memory import MEGABYTE, run_python

_MOST_BYTES = 70 * MEGABYTE
_TIMES = 1.8
_REPORT = """
import json, sys
from benchmarks.memory import peak_resident_bytes
grpc = sum(name.partition(".")[0] == "grpc" for name in sys.modules)
print(json.dumps({"peak": peak_resident_bytes(), "grpc": grpc}))
"""
_FLOOR = "import federated_language"
_SUBJECT = """
import federated_language as fl
import numpy as np
import fedstack

fedstack.set_sync_local_execution_context()

@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def mean(values):
    return fl.federated_mean(values)

assert mean([1.0, 2.0, 3.0]) == 2.0
"""


class _Report(TypedDict):
    peak: int
    grpc: int


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures hello world beside an import of the language alone."""
    yield compare(
        "hello world, whole process",
        lambda: run_python(_FLOOR + "\nprint(0)"),
        lambda: run_python(_SUBJECT + "\nprint(0)"),
        effort,
        times=_TIMES,
    )
    floor, subject = (cast(_Report, json.loads(run_python(program + _REPORT))) for program in (_FLOOR, _SUBJECT))
    yield Measurement("hello world, peak memory", subject["peak"], floor["peak"], _MOST_BYTES, "≤ 70 MB", "bytes")
    yield Measurement("hello world, modules of grpc", subject["grpc"], None, 0, "none", "count")
