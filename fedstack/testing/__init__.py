"""What users test their computations and executors with.

`check_executor` and `check_stack` are conformance suites with a row per promise; the executors trace, raise and inject
faults; `SimulatedCluster` runs a program over workers on simulated time. Importing this package imports none of it,
because pytest loads it with the plugin when it starts.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstack.testing.conformance import (
        ConformanceError,
        ExecutorRow,
        StackRow,
        check_executor,
        check_stack,
        executor_rows,
        stack_rows,
    )
    from fedstack.testing.fault_injection import Fault, FaultInjectingExecutor, FaultPlan
    from fedstack.testing.raising_executor import RaisingExecutor
    from fedstack.testing.simulation.simulated_cluster import SimulatedCluster, SimulationError
    from fedstack.testing.simulation.simulated_network import SimulatedFaults
    from fedstack.testing.tracing_executor import TraceEvent, TracingExecutor

__all__ = [
    "ConformanceError",
    "ExecutorRow",
    "Fault",
    "FaultInjectingExecutor",
    "FaultPlan",
    "RaisingExecutor",
    "SimulatedCluster",
    "SimulatedFaults",
    "SimulationError",
    "StackRow",
    "TraceEvent",
    "TracingExecutor",
    "check_executor",
    "check_stack",
    "executor_rows",
    "stack_rows",
]

_MODULES = {
    "ConformanceError": "conformance",
    "ExecutorRow": "conformance",
    "Fault": "fault_injection",
    "FaultInjectingExecutor": "fault_injection",
    "FaultPlan": "fault_injection",
    "RaisingExecutor": "raising_executor",
    "SimulatedCluster": "simulation.simulated_cluster",
    "SimulatedFaults": "simulation.simulated_network",
    "SimulationError": "simulation.simulated_cluster",
    "StackRow": "conformance",
    "TraceEvent": "tracing_executor",
    "TracingExecutor": "tracing_executor",
    "check_executor": "conformance",
    "check_stack": "conformance",
    "executor_rows": "conformance",
    "stack_rows": "conformance",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
