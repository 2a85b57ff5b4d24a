"""Runs the example of federated averaging, `examples/federated_averaging.py`, and records each round.

The example is the one text of that computation: readers copy it, the demo runs it. A wheel carries it next to this
module.
"""

import contextlib
import importlib.util
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.backends.ray_cluster.ray_contexts import create_sync_ray_execution_context
from fedstack.backends.remote_contexts import create_sync_remote_execution_context
from fedstack.contexts.local_contexts import create_sync_local_execution_context
from fedstack.contexts.progress_display import ProgressSnapshot, display

_FILE = "federated_averaging.py"
_IN_WHEEL = Path(__file__).parent / "examples" / _FILE
_IN_CHECKOUT = Path(__file__).parents[2] / "examples" / _FILE

Images = Mapping[str, NDArray[Any]]
Batches = Iterable[Images]


class FederatedAveraging(Protocol):
    """The functions of the example."""

    def load_clients(self, num_clients: int, seed: int) -> tuple[list[Images], list[Batches]]:
        """Returns each client's images to train on, and its batches to evaluate on.

        Raises:
          ModuleNotFoundError: If scikit-learn, which has the images, is not installed.
        """
        ...

    def train(
        self, training: list[Images], evaluation: list[Batches], num_rounds: int, seed: int
    ) -> Iterator[Mapping[str, float]]:
        """Yields `accuracy` and `loss` after each round."""
        ...


@attrs.frozen
class Round:
    """What a round came to.

    Attributes:
      number: The number of the round, from 1.
      accuracy: The share of the held-out images that the model names rightly after this round.
      loss: The mean cross-entropy of these images, in nats.
      seconds: How long the round took, training and evaluation.
      clients_per_second: How many clients were trained per second of the round.
    """

    number: int
    accuracy: float
    loss: float
    seconds: float
    clients_per_second: float


def load_example() -> FederatedAveraging:
    """Imports the example."""
    path = _IN_WHEEL if _IN_WHEEL.is_file() else _IN_CHECKOUT
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(FederatedAveraging, module)


def counted(number: int, noun: str) -> str:
    """Says how many there are."""
    return f"{number} {noun}{'s' * (number != 1)}"


def describe_clients(training: Sequence[Images]) -> str:
    """Says how unevenly the images are dealt out."""
    digits = [client["digit"] for client in training]
    sizes = [len(held) for held in digits]
    kinds = float(np.mean([len(np.unique(held)) for held in digits]))
    least, most = min(sizes), max(sizes)
    each = f"{counted(least, 'handwritten digit')}" if least == most else f"{least} to {most} handwritten digits"
    return f"{counted(len(digits), 'client')} with {each} each, of {kinds:.1f} kinds on average"


@contextlib.contextmanager
def _context(num_workers: int, engine: str) -> Generator[None, None, None]:
    """Puts a context in this process, or over new workers, in force for the block."""
    if engine == "ray":
        from fedstack.backends.ray_cluster.ray_api import ray  # needs an extra

        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        with create_sync_ray_execution_context(num_workers=num_workers or None):
            yield
        return
    if not num_workers:
        with create_sync_local_execution_context():
            yield
        return
    from fedstack.service.pool.worker_pool import local_worker_pool  # those without workers need no gRPC

    with local_worker_pool(num_workers) as workers, create_sync_remote_execution_context(workers):
        yield


def run_rounds(
    example: FederatedAveraging,
    training: list[Images],
    evaluation: list[Batches],
    num_rounds: int,
    seed: int,
    num_workers: int = 0,
    engine: str = "fedstack",
) -> list[Round]:
    """Trains and evaluates for some rounds, with a progress bar: in this process, in worker processes, or on Ray.

    The same arguments give the same accuracies and losses, to the bit, whatever the number of workers.
    """
    rounds: list[Round] = []

    def snapshot() -> ProgressSnapshot:
        return ProgressSnapshot(len(rounds), num_rounds, f"accuracy {rounds[-1].accuracy:.4f}" if rounds else "")

    with _context(num_workers, engine), display("Training", "rounds", snapshot):
        begin = time.perf_counter()
        for metrics in example.train(training, evaluation, num_rounds, seed):
            end = time.perf_counter()
            rounds.append(
                Round(
                    number=len(rounds) + 1,
                    accuracy=float(metrics["accuracy"]),
                    loss=float(metrics["loss"]),
                    seconds=end - begin,
                    clients_per_second=len(training) / (end - begin),
                )
            )
            begin = end
    return rounds
