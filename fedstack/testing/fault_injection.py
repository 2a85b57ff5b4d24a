"""Injects delays, errors and lost results into client work, as a seeded plan decides.

plan = FaultPlan(seed=7, latency=0.01, error_rate=0.1, drop_rate=0.05)
factory = fedstack.local_executor_factory(wrap_clients=lambda target: FaultInjectingExecutor(target, plan))
context = fedstack.contexts.SyncExecutionContext(factory, retry_policy=fedstack.RetryPolicy(attempts=20))
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, cast

import attrs
import numpy as np

from fedstack.computations.plan.program import Program
from fedstack.computations.types.language import Executor
from fedstack.computations.values.columns import Column
from fedstack.errors import FedstackError, InvalidValueError, WorkerUnavailableError
from fedstack.executors.base.engines import PassingEngine, ProgramEngine
from fedstack.executors.base.phase_sink import Sink
from fedstack.executors.base.verb_values import VerbValue
from fedstack.executors.base.wrapper_executor import WrapperExecutor
from fedstack.executors.concurrency.coroutines import gather, need_event_loop
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.survivors.client_failures import ClientFailure
from fedstack.foundations.number_checks import (
    check_number,
    check_whole_number,
    number_validator,
    whole_number_validator,
)
from fedstack.foundations.value_text import describe
from fedstack.testing.tracing_executor import check_executor_below

# The maximum number of delayed clients that run at the same time. More clients would only queue for threads.
_MAX_AT_ONCE = 64


@attrs.frozen
class Fault:
    """The fault of one client in one phase.

    Attributes:
      phase: The number of the phase. Phases are counted from 0 over all executors that share the plan.
      client: The index of the client.
      latency: The delay before the client starts, in seconds.
      outcome: `ok`, `error` (nothing of the phase runs) or `drop` (the whole phase runs and its results are lost).
    """

    phase: int
    client: int
    latency: float
    outcome: Literal["ok", "error", "drop"]


def rate_validator(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    """Validates an attrs field that is a rate from 0 to 1."""
    check_number(attribute.name, value)
    if value > 1:
        raise InvalidValueError(f"Expected {attribute.name} to be a rate from 0 to 1, found {value}")


def _makes_errors(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not callable(value):
        raise InvalidValueError(
            f"Expected {attribute.name} to be an exception class or a function that returns an exception for a "
            f"message, found {describe(value)}"
        )


class _Progress:
    """The number of phases that a plan has decided so far, and the number of consecutive failures at their end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.phases = 0
        self.failed_in_a_row = 0


@attrs.frozen(kw_only=True)
class FaultPlan:
    """A plan of the faults to inject. Plans with the same seed inject the same faults into the same sequence of phases.

    A phase is the work of all clients between two aggregations. Executors that share a plan share its sequence of
    phases, so a retry meets different faults than the first attempt.

    Attributes:
      seed: The seed of the random decisions.
      latency: The maximum delay before a client starts, in seconds. Delays are drawn uniformly between zero and this
        maximum.
      error_rate: The probability that a client fails before it starts, from 0 to 1.
      drop_rate: The probability that a client's result is lost after its work, from 0 to 1.
      failures_in_a_row: The maximum number of consecutive phases that fail. The phase after them succeeds.
      dropout_rate: The probability that a client does not take part in a round, from 0 to 1; see `present`.
      delay: The mean of the time that a client takes longer, in seconds; see `delays` and `client_seconds`.
      error: An exception class, or a function that returns an exception for a message. By default the error is
        retryable.
      injected: The faults injected so far. Clients without a delay, an error or a lost result are left out.

    Raises:
      InvalidValueError: If a value is out of its range, or the sum of the two rates is greater than 1.
    """

    seed: int = attrs.field(default=0, validator=whole_number_validator(0))
    latency: float = attrs.field(default=0.0, validator=number_validator())
    error_rate: float = attrs.field(default=0.0, validator=rate_validator)
    drop_rate: float = attrs.field(default=0.0, validator=rate_validator)
    dropout_rate: float = attrs.field(default=0.0, validator=rate_validator)
    delay: float = attrs.field(default=0.0, validator=number_validator())
    failures_in_a_row: int = attrs.field(default=3, validator=whole_number_validator(0))
    error: Callable[[str], Exception] = attrs.field(default=WorkerUnavailableError, validator=_makes_errors)
    injected: list[Fault] = attrs.field(factory=list[Fault], init=False, eq=False, repr=False)
    _progress: _Progress = attrs.field(factory=_Progress, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.error_rate + self.drop_rate > 1:
            raise InvalidValueError(
                "Expected the sum of error_rate and drop_rate to be at most 1, because a client has at most one fault, "
                f"found {self.error_rate} and {self.drop_rate}; lower one of the rates"
            )

    @classmethod
    def none(cls) -> "FaultPlan":
        """Returns a plan without faults."""
        return cls()

    def present(self, values: Sequence[Any], number: int) -> list[Any]:
        """Returns the values of a round's clients, with a `ClientFailure` in the place of each client that drops out.

        Dropouts depend only on the seed, the round and the client, so that they are the same on any stack.

        Args:
          values: The values of all clients.
          number: The number of the round.

        Raises:
          InvalidValueError: If `number` is not a whole number from 0 on.
        """
        number = check_whole_number("number", number, 0)
        return [
            ClientFailure() if _chance(self.seed, number, client, 0).random() < self.dropout_rate else value
            for client, value in enumerate(values)
        ]

    def delays(self, clients: int, number: int) -> list[float]:
        """Returns how much longer each client takes in a round, in seconds, to pass to functions that wait.

        Args:
          clients: The number of clients.
          number: The number of the round.

        Raises:
          InvalidValueError: If an argument is not a whole number from 0 on.
        """
        clients, number = check_whole_number("clients", clients, 0), check_whole_number("number", number, 0)
        return [self.client_seconds(self.seed, number, client) for client in range(clients)]

    def client_seconds(self, seed: int, number: int, client: int) -> float:
        """Returns how long a client takes, for the option `client_seconds` of a `SimulatedCluster`."""
        return float(_chance(seed, number, client, 1).exponential(self.delay))

    def next_phase(self, clients: range) -> list[Fault]:
        """Returns the fault of each of the clients in the next phase."""
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


def _chance(seed: int, number: int, client: int, what: int) -> np.random.Generator:
    return np.random.default_rng([seed, number, client, what])


class FaultEngine(PassingEngine):
    """An engine that injects the faults of a plan into client work; see `FaultInjectingExecutor`."""

    def __init__(self, target: ProgramEngine, plan: FaultPlan) -> None:
        super().__init__(target)
        self._plan = plan

    @property
    def leaf_threads(self) -> LeafThreads | None:
        return None  # so that no column is folded on these threads, past the plan

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
    """Yields the faults of the clients in the next phase.

    Raises the plan's error before the block if a client fails, and after the block if a client's result is lost.
    """
    faults = plan.next_phase(clients)
    for fault in faults:
        if fault.outcome == "error":
            raise plan.error(f"Expected client {fault.client} to run, found its worker unavailable (injected fault)")
    yield faults
    for fault in faults:
        if fault.outcome == "drop":
            raise plan.error(f"Expected the result of client {fault.client}, found it lost in transit (injected fault)")


class FaultInjectingExecutor(WrapperExecutor):
    """An executor that injects the faults of a plan into the client work of its target.

    If the target has no engine that runs client work, each `compute()` counts as the work of client 0.

    Args:
      target: The executor that runs the client work. It is closed together with this executor.
      plan: The plan of the faults.

    Raises:
      InvalidValueError: If `target` is not an executor or `plan` is not a `FaultPlan`.
    """

    def __init__(self, target: Executor, plan: FaultPlan) -> None:
        check_executor_below(target)
        if not isinstance(cast(object, plan), FaultPlan):
            raise InvalidValueError(
                f"Expected a FaultPlan, found {describe(plan)}; pass FaultPlan.none() to inject no faults"
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
    """A sink that discards the results of a phase."""

    def feed(self, start: int, results: Sequence[Column]) -> None:
        pass

    def stream(self, start: int) -> "_Nowhere":
        return self

    def add(self, results: list[object]) -> None:
        pass

    def close(self) -> None:
        pass

    def check(self, start: int, results: Sequence[Column]) -> None:
        pass

    def took(self, clients: range, seconds: float) -> None:
        pass

    def skip(self, clients: range, failures: Mapping[int, FedstackError]) -> None:
        pass

    def leave_out(self, client: int, error: FedstackError) -> None:
        pass

    def claim(self, stop: int) -> int:
        return stop

    def reached(self, client: int) -> None:
        pass
