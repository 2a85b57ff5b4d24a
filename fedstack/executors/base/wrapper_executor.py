"""Defines the base of executors that wrap one other and change a single thing about it."""

import abc

from fedstack.computations.types.language import Executor, computation_pb2
from fedstack.executors.base.engines import Engine, ProgramEngine
from fedstack.executors.base.forwarding import ForwardingRecorder
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import ForeignEngine
from fedstack.executors.base.verb_executor import VerbExecutor, engine_of


class TargetExecutor(VerbExecutor):
    """An executor over any one other: it runs on an engine or, where there is none, by the verbs of its target.

    Args:
      target: The executor below. It is closed with this one.
      engine: What runs traced functions.
    """

    def __init__(self, target: Executor, engine: Engine | None) -> None:
        super().__init__(ForwardingRecorder(target) if engine is None else LazyRecorder(engine), target)
        self.target = target

    def accepts(self, computation: computation_pb2.Computation) -> None:
        if isinstance(self.target, VerbExecutor):
            self.target.accepts(computation)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.target!r}>"


class WrapperExecutor(TargetExecutor):
    """Changes how the programs of its target run, and passes everything else through.

    Over an executor that has no engine it passes the verbs on; what it changes there, it changes as values pass.

    Args:
      target: The executor below. It is closed with this one.
    """

    def __init__(self, target: Executor) -> None:
        engine = engine_of(target)
        super().__init__(target, None if engine is None else engine.over(self.wrap))
        self._foreign = ForeignEngine(target) if self.engine is None else None
        if self._foreign is not None:
            self._owned = (*self._owned, self._foreign)

    @abc.abstractmethod
    def wrap(self, engine: ProgramEngine) -> ProgramEngine:
        """Returns what runs programs in place of the target's engine."""

    @property
    def programs(self) -> ProgramEngine | None:
        # Below executors that have clients programs are counted, slowed down and so on as over any target.
        return super().programs if self._foreign is None else self.wrap(self._foreign)
