"""The backends that run clients: workers behind gRPC, a Ray cluster, or any process pool of the user."""

from fedstack.backends.backend import Backend
from fedstack.backends.backend_executor import BackendExecutorFactory
from fedstack.backends.task_phases import Task

__all__ = ["Backend", "BackendExecutorFactory", "Task"]
