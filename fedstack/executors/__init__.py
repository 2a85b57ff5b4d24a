"""The executors and the factories that combine them into stacks.

Each executor has a single responsibility, and can also be used, wrapped and tested without a factory.

The names are imported when they are first asked for, so that a local run does not load what sends work elsewhere.
"""

from typing import TYPE_CHECKING

from fedstack.foundations.public_names import lazy_names

if TYPE_CHECKING:
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

_MODULES = {
    "ComposingExecutor": "executors.composing_executor",
    "DataBackend": "executors.data_executor",
    "DataExecutor": "executors.data_executor",
    "FederatingExecutor": "executors.federating_executor",
    "LeafExecutor": "executors.leaf_executor",
    "ReferenceResolvingExecutor": "executors.reference_resolving_executor",
    "RemoteExecutor": "executors.remote_executor",
    "SequenceExecutor": "executors.sequence_executor",
    "SizeInfo": "executors.sizing_executor",
    "SizingExecutor": "executors.sizing_executor",
    "TransformingExecutor": "executors.transforming_executor",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
