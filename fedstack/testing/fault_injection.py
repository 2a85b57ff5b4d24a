"""Makes client work slow, fail and get lost, by a plan that a seed decides.

plan = FaultPlan(seed=7, latency=0.01, error_rate=0.1, drop_rate=0.05)
factory = fedstack.local_executor_factory(wrap_clients=lambda target: FaultInjectingExecutor(target, plan))
context = fedstack.contexts.SyncExecutionContext(factory, retry_policy=fedstack.RetryPolicy(attempts=20))
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, cast

import attrs
import numpy as np

from fedstack.computations.plan.program import Program
from fedstack.computations.types.language import Executor
from fedstack.computations.values.columns import Column
from fedstack.errors import InvalidValueError, WorkerUnavailableError
from fedstack.executors.base.engines import PassingEngine, ProgramEngine
from fedstack.executors.base.phase_sink import Sink
from fedstack.executors.base.verb_values import VerbValue
from fedstack.executors.base.wrapper_executor import WrapperExecutor
from fedstack.executors.concurrency.coroutines import gather, need_event_loop
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.foundations.number_checks import check_number, number_validator, whole_number_validator
from fedstack.foundations.value_text import describe
from fedstack.testing.tracing_executor import check_executor_below

# Slow clients are driven one by one; more than this at a time would only queue up for threads.
_MAX_AT_ONCE = 64


@attrs.frozen
class Fault:
    """What happens to one client in one phase.

    Attributes:
      phase: The number of the phase, from 0, over all executors that share the plan.
      client: The index of the client.
      latency: How long it waits before it begins, in seconds.
      outcome: `ok`; `error`, nothing of the phase runs; or `drop`, everything runs and the results are lost.
    """

    phase: int
    client: int
    latency: float
    outcome: Literal["ok", "error", "drop"]


def rate_validator(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    """Checks a field of attrs that says how often something happens, from 0 to 1."""
    check_number(attribute.name, value)
    if value > 1:
        raise InvalidValueError(f"Expected {attribute.name} from 0 to 1, found {value}")


def _makes_errors(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not callable(value):
        raise InvalidValueError(
            f"Expected {attribute.name} as a class of exceptions or a function that makes one out of a message, found "
            f"{describe(value)}"
        )


class _Progress:
    """What a plan has handed out so far."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.phases = 0
        self.failed_in_a_row = 0


@attrs.frozen(kw_only=True)
class FaultPlan:
    """Decides what goes wrong. Two plans of one seed decide the same for the same sequence of phases.

    A phase is what all clients do between two aggregations. Executors that share a plan share its sequence of phases,
    so that a second attempt meets other faults than the first.

    Attributes:
      seed: What the decisions are drawn from.
      latency: The longest wait of a client before it begins, in seconds; drawn evenly from zero on.
      error_rate: How often a client fails before it begins, from 0 to 1.
      drop_rate: How often the result of a client gets lost after its work is done, from 0 to 1.
      failures_in_a_row: After so many phases that failed one after the other, one succeeds.
      error: Makes the error out of its message; a retryable one by default.
      injected: What was decided so far, but for clients to whom nothing happened.

    Raises:
      InvalidValueError: If a value is out of its range, or the two rates are more than 1 together.
    """

    seed: int = attrs.field(default=0, validator=whole_number_validator(0))
    latency: float = attrs.field(default=0.0, validator=number_validator())
    error_rate: float = attrs.field(default=0.0, validator=rate_validator)
    drop_rate: float = attrs.field(default=0.0, validator=rate_validator)
    failures_in_a_row: int = attrs.field(default=3, validator=whole_number_validator(0))
    error: Callable[[str], Exception] = attrs.field(default=WorkerUnavailableError, validator=_makes_errors)
    injected: list[Fault] = attrs.field(factory=list[Fault], init=False, eq=False, repr=False)
    _progress: _Progress = attrs.field(factory=_Progress, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.error_rate + self.drop_rate > 1:
            raise InvalidValueError(
                "Expected error_rate and drop_rate of at most 1 together, since one client has one fault, found "
                f"{self.error_rate} and {self.drop_rate}"
            )

    @classmethod
    def none(cls) -> "FaultPlan":
        """Returns the plan in which nothing goes wrong."""
        return cls()

    def next_phase(self, clients: range) -> list[Fault]:
        """Decides what happens to each of some clients in the next phase."""
        with self._progress.lock:
            phase = self._progress.phases
            self._progress.phases += 1
            spared = self._progress.failed_in_a_row >= self.failures_in_a_row
            faults = self._draw(phase, clients, spared)
            failed = any(fault.outcome != "ok" for fault in faults)
            self._progress.failed_in_a_row = self._progress.failed_in_a_row + 1 if failed else 0
            self.injected.extend(fault for fault in faults if fault.latency or fault.outcome != "ok")
        return faults

    def _draw(self, phase: int, clients: range, spared: bool) -> list[Fault]:
        generator = np.random.default_rng([self.seed, phase, clients.start])
        waits = generator.uniform(0, self.latency, len(clients)) if self.latency else np.zeros(len(clients))
        draws = generator.uniform(size=len(clients))
        faults: list[Fault] = []
        for client, wait, draw in zip(clients, waits.tolist(), draws.tolist()):
            outcome: Literal["ok", "error", "drop"] = "ok"
            if not spared and draw < self.error_rate:
                outcome = "error"
            elif not spared and draw < self.error_rate + self.drop_rate:
                outcome = "drop"
            faults.append(Fault(phase, client, wait, outcome))
        return faults


class FaultEngine(PassingEngine):
    """Lets a plan decide what goes wrong in the work of clients; see `FaultInjectingExecutor`."""

    def __init__(self, target: ProgramEngine, plan: FaultPlan) -> None:
        super().__init__(target)
        self._plan = plan

    @property
    def leaf_threads(self) -> LeafThreads | None:
        return None  # so that nothing is folded past the plan

    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        with _faults(self._plan, clients) as faults:
            into = _Nowhere() if any(fault.outcome == "drop" for fault in faults) else sink
            if any(fault.latency for fault in faults):
                await self._run_one_by_one(program, inputs, faults, into)
            else:
                await self.target.run_clients(program, inputs, clients, into)

    async def _run_one_by_one(
        self, program: Program, inputs: Sequence[Column], faults: Sequence[Fault], sink: Sink
    ) -> None:
        await need_event_loop()
        slots = asyncio.Semaphore(_MAX_AT_ONCE)

        async def run(position: int, fault: Fault) -> None:
            async with slots:
                await asyncio.sleep(fault.latency)
                own = [column.slice(position, position + 1) for column in inputs]
                await self.target.run_clients(program, own, range(fault.client, fault.client + 1), sink)

        await gather([run(position, fault) for position, fault in enumerate(faults)])


@contextlib.contextmanager
def _faults(plan: FaultPlan, clients: range) -> Generator[Sequence[Fault], None, None]:
    """Decides what happens to some clients in the block, and raises before it or after it if their results get lost."""
    faults = plan.next_phase(clients)
    for fault in faults:
        if fault.outcome == "error":
            raise plan.error(f"Expected client {fault.client} to answer, found that its worker is gone")
    yield faults
    for fault in faults:
        if fault.outcome == "drop":
            raise plan.error(f"Expected a result of client {fault.client}, found that it got lost on its way")


class FaultInjectingExecutor(WrapperExecutor):
    """Lets a plan decide what goes wrong in client work, and leaves the rest to its target.

    Over an executor that shows no clients, each `compute()` is the work of client 0.

    Args:
      target: The executor of client work. It is closed with this one.
      plan: Decides.

    Raises:
      InvalidValueError: If an argument is of the wrong kind.
    """

    def __init__(self, target: Executor, plan: FaultPlan) -> None:
        check_executor_below(target)
        if not isinstance(cast(object, plan), FaultPlan):
            raise InvalidValueError(
                f"Expected a FaultPlan, found {describe(plan)}; give FaultPlan.none() for no faults"
            )
        super().__init__(target, lambda engine: FaultEngine(engine, plan))
        self.plan = plan

    async def computed(self, value: VerbValue) -> object:
        if self.engine is not None:
            return await super().computed(value)
        with _faults(self.plan, range(1)) as (fault,):
            await asyncio.sleep(fault.latency)
            return await super().computed(value)

    def __repr__(self) -> str:
        return f"<FaultInjectingExecutor of {self.plan!r} over {self.target!r}>"


class _Nowhere:
    """Takes results that get lost."""

    ordered = False

    def feed(self, start: int, results: Sequence[Column]) -> None:
        pass

    def stream(self, start: int) -> "_Nowhere":
        return self

    def add(self, results: list[object]) -> None:
        pass

    def close(self) -> None:
        pass
