"""Defines the executor that rewrites computations before its target sees them."""

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
    """Applies a function to the building block of each computation that it is given; values pass as they are.

    Args:
      transformation_fn: From a building block to one of an equivalent type.
      target: The executor below. It is closed with this one.
    """

    def __init__(self, transformation_fn: Transformation, target: Executor) -> None:
        super().__init__(target)
        self._transformation_fn = transformation_fn

    @property
    def engine(self) -> Engine | None:
        return None  # other executors have to use the verbs, which apply the transformation

    async def embed(self, computation: computation_pb2.Computation, declared: Type | None, source: Source) -> VerbValue:
        block = ComputationBuildingBlock.from_proto(computation)
        changed = cast(object, self._transformation_fn(block))
        if not isinstance(changed, ComputationBuildingBlock):
            raise InvalidComputationError(
                f"Expected the transformation to return a building block, found {describe(changed)}; return the block "
                "itself if there is nothing to change"
            )
        if not changed.type_signature.is_equivalent_to(block.type_signature):
            raise InvalidComputationError(
                f"Expected the transformation to keep the type {block.type_signature}, found {changed.type_signature}"
            )
        return await super().embed(changed.to_proto(), declared, source)
