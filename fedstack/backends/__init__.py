"""The backends that run client work: workers behind gRPC, a Ray cluster, or a user's pool of processes."""

from fedstack.backends.backend import Backend
from fedstack.backends.backend_executor import BackendExecutorFactory
from fedstack.backends.task_phases import Task

__all__ = ["Backend", "BackendExecutorFactory", "Task"]
