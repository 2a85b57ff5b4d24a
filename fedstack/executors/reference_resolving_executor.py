"""Defines the executor at the top of every stack: it takes any computation and resolves the names in it."""

import functools

from fedstack.computations.plan.plan import plans
from fedstack.computations.types.language import ConcreteComputation, Executor, computation_pb2
from fedstack.executors.base.one_by_one import VerbEngine
from fedstack.executors.base.verb_executor import FUNCTIONS, Run
from fedstack.executors.base.wrapper_executor import WrapperExecutor


class ReferenceResolvingExecutor(WrapperExecutor):
    """Interprets lambdas, blocks, references, selections and calls, and passes everything else to its target.

    A computation is traced once (`computations.trace`): calls of lambdas are unfolded, captured values have become
    arguments, unused locals are gone. What remains are calls of leaf computations and intrinsics, and those are the
    target's: its engine runs them or, where it has none, its four verbs.

    Args:
      target: The executor that runs them. It is closed with this one.
    """

    def __init__(self, target: Executor) -> None:
        super().__init__(target, stand_in=VerbEngine)

    def accepts(self, computation: computation_pb2.Computation) -> None:
        """Takes every computation of the language; tracing finds malformed ones."""

    def prepared(self, computation: ConcreteComputation) -> Run:
        self.check_open()
        message, engine = computation.to_proto(), self.engine
        if engine is None or message.WhichOneof("computation") not in FUNCTIONS:
            return super().prepared(computation)
        # Intermediate values are not visible, so none are recorded: the verbs would double the time of a small call.
        return functools.partial(engine.run, plans.plan(message))
