"""Defines the executor at the top of every stack, which accepts any computation and resolves the names in it."""

import functools

from fedstack.computations.plan.plan import plans
from fedstack.computations.types.language import ConcreteComputation, Executor, computation_pb2
from fedstack.executors.base.one_by_one import VerbEngine
from fedstack.executors.base.verb_executor import FUNCTIONS, Run
from fedstack.executors.base.wrapper_executor import WrapperExecutor


class ReferenceResolvingExecutor(WrapperExecutor):
    """Interprets lambdas, blocks, references, selections and calls.

    Each computation is traced once (`computations.plan.trace`). Tracing unfolds calls of lambdas, turns captured values
    into arguments and removes unused locals. The remaining calls of leaf computations and intrinsics are passed to the
    target: they run on the target's engine or, if the target has no engine, through its four verbs.

    Args:
      target: The executor that runs leaf computations and intrinsics. It is closed with this executor.
    """

    def __init__(self, target: Executor) -> None:
        super().__init__(target, stand_in=VerbEngine)

    def accepts(self, computation: computation_pb2.Computation) -> None:
        """Accepts every computation of the language. Malformed computations are detected when they are traced."""

    def prepared(self, computation: ConcreteComputation) -> Run:
        self.check_open()
        message, engine = computation.to_proto(), self.engine
        if engine is None or message.WhichOneof("computation") not in FUNCTIONS:
            return super().prepared(computation)
        # Callers cannot see intermediate values, so the engine runs the computation directly. Recording the values
        # through the verbs would double the time of a small call.
        return functools.partial(engine.run, plans.plan(message))
