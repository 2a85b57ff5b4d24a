"""Re-exports the parts of Federated Language that fedstack uses. No other module imports the language.

The language does not ship a `py.typed` file. Its type stubs are in `typings/` and are installed by the wheel.
"""

from typing import Any

from federated_language import CLIENTS as CLIENTS
from federated_language import SERVER as SERVER
from federated_language import FederatedType as FederatedType
from federated_language import FunctionType as FunctionType
from federated_language import PlacementType as PlacementType
from federated_language import SequenceType as SequenceType
from federated_language import StructType as StructType
from federated_language import StructWithPythonType as StructWithPythonType
from federated_language import TensorType as TensorType
from federated_language import Type as Type
from federated_language import Value as Value
from federated_language import to_type as to_type
from federated_language.common_libs import tracing as _tracing
from federated_language.common_libs.serializable import Serializable as Serializable
from federated_language.common_libs.structure import Struct as Struct
from federated_language.common_libs.structure import iter_elements as _iter_elements
from federated_language.common_libs.tracing import TracedFunctionThrew as TracedFunctionThrew
from federated_language.common_libs.tracing import TracedSpan as TracedSpan
from federated_language.common_libs.tracing import TraceResult as TraceResult
from federated_language.common_libs.tracing import TracingProvider as TracingProvider
from federated_language.framework import AsyncContext as AsyncContext
from federated_language.framework import CardinalitiesType as CardinalitiesType
from federated_language.framework import ComputationBuildingBlock as ComputationBuildingBlock
from federated_language.framework import ConcreteComputation as ConcreteComputation
from federated_language.framework import Executor as Executor
from federated_language.framework import ExecutorFactory as ExecutorFactory
from federated_language.framework import ExecutorValue as ExecutorValue
from federated_language.framework import PlacementLiteral as PlacementLiteral
from federated_language.framework import RetryableError as RetryableError
from federated_language.framework import SyncContext as SyncContext
from federated_language.framework import get_context_stack as get_context_stack
from federated_language.framework import infer_type as infer_type
from federated_language.framework import set_default_context as set_default_context
from federated_language.program import FederatedContext as FederatedContext
from federated_language.program import FederatedDataSource as FederatedDataSource
from federated_language.program import FederatedDataSourceIterator as FederatedDataSourceIterator
from federated_language.program import MaterializableValueReference as MaterializableValueReference
from federated_language.program import ProgramStateExistsError as ProgramStateExistsError
from federated_language.program import ProgramStateManager as ProgramStateManager
from federated_language.program import ProgramStateNotFoundError as ProgramStateNotFoundError
from federated_language.program import ReleaseManager as ReleaseManager
from federated_language.program import contains_only_server_placed_data as contains_only_server_placed_data
from federated_language.program import materialize_value as materialize_value
from federated_language.program.structure_utils import flatten_with_name as flatten_with_name
from federated_language.program.structure_utils import unflatten_as as unflatten_as
from federated_language.proto import array_pb2 as array_pb2
from federated_language.proto import computation_pb2 as computation_pb2
from federated_language.proto import data_type_pb2 as data_type_pb2

# The language has a public function that sets its tracing providers, but no public function that returns them.
_module: Any = _tracing


def struct_elements(struct: Struct) -> list[tuple[str | None, object]]:
    """Returns the (name, value) pairs of the language's `Struct`."""
    return list(_iter_elements(struct))


def tracing_providers() -> list[TracingProvider[object]]:
    """Returns the language's list of tracing providers."""
    return _module._global_tracing_providers


def current_tracing_yields() -> list[object]:
    """Returns the values that this task's or thread's open spans have yielded, one value per tracing provider."""
    try:
        return _module._current_span_yields()
    except AssertionError:  # the providers were replaced while the span was open
        return []
