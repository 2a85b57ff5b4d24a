"""Defines the executor that transforms computations before it passes them to its target."""

from collections.abc import Callable
from typing import cast

from fedstack.computations.types.language import ComputationBuildingBlock, Executor, Type, computation_pb2
from fedstack.errors import InvalidComputationError
from fedstack.executors.base.engines import Engine
from fedstack.executors.base.verb_values import Source, VerbValue
from fedstack.executors.base.wrapper_executor import WrapperExecutor
from fedstack.foundations.value_text import describe

Transformation = Callable[[ComputationBuildingBlock], ComputationBuildingBlock]


class TransformingExecutor(WrapperExecutor):
    """Applies a function to the building block of each computation, and passes on values unchanged.

    Args:
      transformation_fn: Returns a building block of an equivalent type for a given building block.
      target: The executor below. It is closed with this executor.
    """

    def __init__(self, transformation_fn: Transformation, target: Executor) -> None:
        super().__init__(target)
        self._transformation_fn = transformation_fn

    @property
    def engine(self) -> Engine | None:
        return None  # so that other executors use the verbs, which apply the transformation

    async def embed(self, computation: computation_pb2.Computation, declared: Type | None, source: Source) -> VerbValue:
        block = ComputationBuildingBlock.from_proto(computation)
        changed = cast(object, self._transformation_fn(block))
        if not isinstance(changed, ComputationBuildingBlock):
            raise InvalidComputationError(
                f"Expected the transformation to return a building block, found {describe(changed)}; return the "
                "original block if no change is needed"
            )
        if not changed.type_signature.is_equivalent_to(block.type_signature):
            raise InvalidComputationError(
                f"Expected the transformation to preserve the type {block.type_signature}, found "
                f"{changed.type_signature}; return a building block of an equivalent type"
            )
        return await super().embed(changed.to_proto(), declared, source)
