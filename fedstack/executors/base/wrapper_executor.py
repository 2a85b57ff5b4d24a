"""Defines the base of executors that wrap one other and change a single thing about it."""

from collections.abc import Callable
from typing import TypeAlias

from fedstack.computations.types.language import Executor, computation_pb2
from fedstack.executors.base.engines import Engine, ProgramEngine
from fedstack.executors.base.forwarding import ForwardingRecorder
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import ForeignEngine
from fedstack.executors.base.verb_executor import VerbExecutor, engine_of

Wrap: TypeAlias = Callable[[ProgramEngine], ProgramEngine]


class WrapperExecutor(VerbExecutor):
    """Runs on the engine of its target, changed by `wrap`, or, where there is none, by the verbs of its target.

    What a wrapper changes without an engine, it changes as values pass: in `create_known`, `embed` and `computed`.

    Args:
      target: The executor below, of any origin. It is closed with this one.
      wrap: Returns what runs programs in place of the target's engine; `None` to change nothing there.
      stand_in: Makes the engine over a target that has none; `None` to pass the verbs on.
    """

    def __init__(
        self, target: Executor, wrap: Wrap | None = None, stand_in: Callable[[Executor], Engine] | None = None
    ) -> None:
        engine = engine_of(target)
        if engine is None:
            engine = None if stand_in is None else stand_in(target)
        elif wrap is not None:
            engine = engine.over(wrap)
        recorder = ForwardingRecorder(target) if engine is None else LazyRecorder(engine)
        self._below: ProgramEngine | None = None
        if engine is None and wrap is not None:
            # Below executors that have clients programs are counted, slowed down and so on as over any target.
            foreign = ForeignEngine(target)
            self._below = wrap(foreign)
            super().__init__(recorder, target, foreign)
        else:
            super().__init__(recorder, target)
        self.target = target

    @property
    def programs(self) -> ProgramEngine | None:
        return super().programs if self._below is None else self._below

    def accepts(self, computation: computation_pb2.Computation) -> None:
        if isinstance(self.target, VerbExecutor):
            self.target.accepts(computation)
