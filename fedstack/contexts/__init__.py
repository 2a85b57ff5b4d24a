"""Who asks: execution contexts, over any factory of executors."""

from fedstack.contexts.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.executors.concurrency.progress import ProgressCounts, ProgressListener
from fedstack.executors.stacks.resource_factory import ResourceManagingExecutorFactory

__all__ = [
    "AsyncExecutionContext",
    "ProgressCounts",
    "ProgressListener",
    "ResourceManagingExecutorFactory",
    "SyncExecutionContext",
]
