"""Writes computations that functions by value refer to: a leaf of a script may call another computation of the script.

A computation is written as its message, whose leaf functions travel as in any other message, and with the Python
containers of its types, which messages do not have.
"""

from typing import NamedTuple, cast

from fedstack.computations.function_pickles import Reduced, register_reducer
from fedstack.computations.language import (
    ConcreteComputation,
    FunctionType,
    Type,
    computation_pb2,
    get_context_stack,
)
from fedstack.computations.python_containers import Containers, containers_of, with_containers
from fedstack.computations.travel import portable
from fedstack.computations.type_structure import type_from_proto


class WrittenType(NamedTuple):
    """A type without federated functions, in what can be pickled."""

    content: bytes
    containers: Containers | None

    def read(self) -> Type:
        """Returns the type."""
        found = type_from_proto(computation_pb2.Type.FromString(self.content))
        return cast(Type, with_containers(found, self.containers))


def write_type(type_spec: Type | None) -> WrittenType | None:
    """Returns what stands for a type; `None` for none."""
    if type_spec is None:
        return None
    return WrittenType(type_spec.to_proto().SerializeToString(), containers_of(type_spec))


def read_type(written: WrittenType | None) -> Type | None:
    """Returns the type that was written."""
    return None if written is None else written.read()


def _reduce(computation: ConcreteComputation) -> Reduced:
    message = portable(computation.to_proto(), allow_by_value=True)
    signature = computation.type_signature
    types = write_type(signature.parameter), write_type(signature.result)
    return _rebuilt, (message.SerializeToString(deterministic=True), *types)


def _rebuilt(content: bytes, parameter: WrittenType | None, result: WrittenType) -> ConcreteComputation:
    return ConcreteComputation(
        computation_proto=computation_pb2.Computation.FromString(content),
        context_stack=get_context_stack(),
        annotated_type=FunctionType(read_type(parameter), result.read()),
    )


register_reducer(ConcreteComputation, _reduce)
