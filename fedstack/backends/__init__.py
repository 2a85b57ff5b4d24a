"""The engine that a user already has runs the clients: a Ray cluster, any pool of processes."""

from fedstack.backends.backend import Backend, Task
from fedstack.backends.backend_factory import BackendExecutorFactory

__all__ = ["Backend", "BackendExecutorFactory", "Task"]
