"""The executors and the factories that combine them into stacks.

Each executor has a single responsibility, and can also be used, wrapped and tested without a factory.
"""

from fedstack.executors.composing_executor import ComposingExecutor
from fedstack.executors.data_executor import DataBackend, DataExecutor
from fedstack.executors.federating_executor import FederatingExecutor
from fedstack.executors.leaf_executor import LeafExecutor
from fedstack.executors.reference_resolving_executor import ReferenceResolvingExecutor
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.executors.sequence_executor import SequenceExecutor
from fedstack.executors.sizing_executor import SizeInfo, SizingExecutor
from fedstack.executors.transforming_executor import TransformingExecutor

__all__ = [
    "ComposingExecutor",
    "DataBackend",
    "DataExecutor",
    "FederatingExecutor",
    "LeafExecutor",
    "ReferenceResolvingExecutor",
    "RemoteExecutor",
    "SequenceExecutor",
    "SizeInfo",
    "SizingExecutor",
    "TransformingExecutor",
]
