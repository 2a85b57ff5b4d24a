"""Runs computations in execution contexts, on executors that a factory creates."""

from fedstack.contexts.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.contexts.language_tracing import use_language_tracing
from fedstack.executors.concurrency.progress import ProgressCounts, ProgressListener
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory

__all__ = [
    "AsyncExecutionContext",
    "ProgressCounts",
    "ProgressListener",
    "ResourceManagingExecutorFactory",
    "SyncExecutionContext",
    "use_language_tracing",
]
