"""The executors, one concern each, and what puts them together.

Stacks are made by the factories; each executor can also be used, wrapped and tested on its own.
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
