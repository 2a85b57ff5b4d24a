"""Tools for testing computations and executors.

`check_executor` and `check_stack` are conformance suites with one row per promise. The executors in this package trace
calls, raise errors and inject faults. `SimulatedCluster` runs a program over workers in simulated time. Submodules are
imported on first use, because pytest imports this package with the plugin at startup.
"""

from typing import TYPE_CHECKING

from fedstack.foundations.public_names import lazy_names

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
    "ConformanceError": "testing.conformance",
    "ExecutorRow": "testing.conformance",
    "Fault": "testing.fault_injection",
    "FaultInjectingExecutor": "testing.fault_injection",
    "FaultPlan": "testing.fault_injection",
    "RaisingExecutor": "testing.raising_executor",
    "SimulatedCluster": "testing.simulation.simulated_cluster",
    "SimulatedFaults": "testing.simulation.simulated_network",
    "SimulationError": "testing.simulation.simulated_cluster",
    "StackRow": "testing.conformance",
    "TraceEvent": "testing.tracing_executor",
    "TracingExecutor": "testing.tracing_executor",
    "check_executor": "testing.conformance",
    "check_stack": "testing.conformance",
    "executor_rows": "testing.conformance",
    "stack_rows": "testing.conformance",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
