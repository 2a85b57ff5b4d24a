"""Runs the rounds of the demo while clients fail, and kills a worker process in one of them."""

import functools
import os
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from fedstack.contexts.local_contexts import create_sync_local_execution_context
from fedstack.data.client_data import from_generator
from fedstack.executors.survivors.client_failures import ClientFailures
from fedstack.executors.survivors.ending import ranges_of
from fedstack.executors.survivors.outcomes import client_outcomes
from fedstack.foundations.error_text import counted
from fedstack.observe.client_events import ClientsRetried
from fedstack.observe.events import Event, PhaseStarted
from fedstack.observe.observers import Observer, add_observer

Model = Any
TrainRound = Callable[[Model, Sequence[Any]], Model]
# Windows has no SIGKILL, and ends processes at once with any signal.
_SIGNAL = getattr(signal, "SIGKILL", signal.SIGTERM)
_MOST_RANGES = 3


class Workers(Protocol):
    """Worker processes: what a `WorkerPool` is here, whose module imports gRPC."""

    targets: tuple[str, ...]

    @property
    def pids(self) -> tuple[int, ...]: ...


@attrs.frozen
class Kill:
    """What a killed worker process has cost.

    Attributes:
      round: The number of the round, from 1.
      worker: The number of the worker in its pool, from 0.
      pid: The id of the process.
      lost: The clients that were lost with the worker.
      by: The numbers of the workers that ran them again.
      same_bits: Whether the round gives the same model, to the bit, if nothing is killed.
    """

    round: int
    worker: int
    pid: int
    lost: Sequence[int]
    by: Sequence[int]
    same_bits: bool

    @property
    def others(self) -> str:
        """The numbers of the workers that ran the clients again."""
        return " and ".join(f"{number}{' (started anew)' * (number == self.worker)}" for number in self.by)

    def __str__(self) -> str:
        found = [f"{one[0]} to {one[-1]}" if one[1:] else str(one[0]) for one in ranges_of(self.lost)]
        lost = ", ".join(found[:_MOST_RANGES]) + ", …" * (len(found) > _MOST_RANGES)
        bits = "has the same bits as" if self.same_bits else "DIFFERS from that"
        had = f"{counted(len(self.lost), 'client')} ({lost})"
        return (
            f"Round {self.round}: worker {self.worker} (process {self.pid}) was killed while it had {had}. They ran "
            f"again on worker {self.others}, and the round went on. The model {bits} without the kill."
        )


def number_of_failing(share: float, num_clients: int) -> int:
    """Returns how many clients fail in each round: at least one if the share is not 0, but never all."""
    return min(max(1, round(share * num_clients)), num_clients - 1) if share else 0


class FaultyRounds(Observer):
    """Runs the rounds of an example. A share of the clients fails in each round, and a worker is killed in one.

    Args:
      train_round: The computation of the example.
      num_clients: The number of clients.
      seed: Decides which clients fail.
      share: The share of the clients that fail in each round, from 0 to 1.
      kill_in: The number of the round in which a worker is killed, from 1; 0 for none.

    Attributes:
      first: The model before the first round; `None` before it.
      last: The model after the last round so far.
      failed: The clients that failed in the last round.
      kill: What the kill has cost; `None` before it.
      pool: The workers of which one is killed.
    """

    def __init__(
        self, train_round: TrainRound, num_clients: int, seed: int, share: float = 0.0, kill_in: int = 0
    ) -> None:
        self._train_round = train_round
        self._failing = number_of_failing(share, num_clients)
        self._random = np.random.default_rng([seed, num_clients])
        self._kill_in = kill_in
        self._number = 0
        self._is_armed = False
        self._victim = (-1, -1)
        self._lost: list[int] = []
        self.first: Model = None
        self.last: Model = None
        self.failed: Sequence[int] = ()
        self.kill: Kill | None = None
        self.pool: Workers | None = None

    @property
    def policy(self) -> ClientFailures | None:
        """The policy for the context: as many clients may fail as will. `None` if none fails."""
        return ClientFailures(tolerate=self._failing) if self._failing else None

    def __call__(self, model: Model, data: Sequence[Any]) -> Model:
        """Runs a round.

        Args:
          model: The model at the server.
          data: The batches of each client.

        Returns:
          The next model.
        """
        self._number += 1
        self.first = model if self.first is None else self.first
        data = list(data)
        for client in self._random.choice(len(data), self._failing, replace=False):
            data[client] = from_generator(functools.partial(_broken_off, data[client]))
        if self._number == self._kill_in and self.pool is not None:
            self.last = self._run_and_kill(self.pool, model, data)
        elif self._failing:
            self.last, _ = self._run(model, data)
        else:
            self.last = self._train_round(model, data)
        return self.last

    def _run(self, model: Model, data: Sequence[Any]) -> tuple[Model, dict[int, str]]:
        """Returns the next model, and the worker of each client that is done."""
        with client_outcomes() as outcomes:
            model = self._train_round(model, data)
        self.failed = [one.client for one in outcomes.of_kind("failed")]
        return model, {one.client: one.worker for one in outcomes.of_kind("done")}

    def _run_and_kill(self, pool: Workers, model: Model, data: Sequence[Any]) -> Model:
        self._is_armed = True
        with add_observer(self, direct=True):
            found, workers = self._run(model, data)
        with create_sync_local_execution_context(client_failures=self.policy):
            expected = self._train_round(model, data)
        lost = sorted(set(self._lost))
        self.kill = Kill(
            round=self._number,
            worker=self._victim[0],
            pid=self._victim[1],
            lost=lost,
            by=sorted({pool.targets.index(workers[client]) for client in lost if client in workers}),
            same_bits=all(found[name].tobytes() == expected[name].tobytes() for name in expected),
        )
        return found

    def observe(self, event: Event) -> None:
        """Kills the first worker that gets clients, and notes which clients were lost."""
        if isinstance(event, PhaseStarted) and event.worker and self._is_armed and self.pool is not None:
            self._is_armed = False
            number = self.pool.targets.index(event.worker)
            self._victim = number, self.pool.pids[number]
            os.kill(self._victim[1], _SIGNAL)
        elif isinstance(event, ClientsRetried):
            self._lost += range(event.first_client, event.first_client + event.clients)


def _broken_off(data: Iterable[Any]) -> Generator[Any]:
    for batch in data:
        yield batch
        raise ConnectionError("the client is offline")
