"""Whose workers run the clients: our own behind gRPC, a Ray cluster, any pool of processes that the user has."""

from fedstack.backends.backend import Backend
from fedstack.backends.backend_executor import BackendExecutorFactory
from fedstack.backends.task_phases import Task

__all__ = ["Backend", "BackendExecutorFactory", "Task"]
