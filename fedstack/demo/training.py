"""Runs the federated averaging examples, `examples/federated_averaging*.py`, and records and reports each round.

The computation is defined only in the examples, for readers to copy and for the demo to run. In a wheel, the examples
are installed next to this module.
"""

import contextlib
import csv
import importlib.util
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.backends.ray_cluster.ray_contexts import create_sync_ray_execution_context
from fedstack.backends.remote_contexts import create_sync_remote_execution_context
from fedstack.contexts.local_contexts import create_sync_local_execution_context
from fedstack.contexts.progress_display import ProgressSnapshot, display, is_terminal
from fedstack.foundations.error_text import counted

_FILES = {"python": "federated_averaging.py", "jax": "federated_averaging_jax.py"}
_IN_WHEEL = Path(__file__).parent / "examples"
_IN_CHECKOUT = Path(__file__).parents[2] / "examples"

Images = Mapping[str, NDArray[Any]]

_HEADER = ("round", "accuracy", "loss", "seconds", "clients/s")
_MOST_ROWS = 10


@attrs.frozen
class Round:
    """The results of a round.

    Attributes:
      number: The number of the round, from 1.
      accuracy: The fraction of the held-out images that the model classifies correctly after this round.
      loss: The mean cross-entropy on these images, in nats.
      seconds: The duration of training and evaluation in this round.
      clients_per_second: The number of trained clients divided by `seconds`.
    """

    number: int
    accuracy: float
    loss: float
    seconds: float
    clients_per_second: float


def load_example(leaf: str = "python") -> Any:
    """Returns the module of the example.

    Args:
      leaf: What the functions of clients are written in: `"python"` or `"jax"`. With JAX, the module imports the one
        with Python.

    Raises:
      ImportError: If JAX is not installed, and the functions are written in it.

    The module's `load_clients(num_clients, seed)` returns training images and evaluation batches for each client. The
    function raises ModuleNotFoundError if scikit-learn, which contains the images, is not installed. The module's
    `train(training, evaluation, num_rounds, seed)` yields `accuracy` and `loss` after each round.
    """
    if leaf != "python":
        sys.modules.setdefault(Path(_FILES["python"]).stem, load_example())
    path = (_IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT) / _FILES[leaf]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def describe_clients(training: Sequence[Images]) -> str:
    """Returns a sentence about how unevenly the images are distributed over the clients."""
    digits = [client["digit"] for client in training]
    sizes = [len(held) for held in digits]
    kinds = float(np.mean([len(np.unique(held)) for held in digits]))
    least, most = min(sizes), max(sizes)
    each = counted(least, "handwritten digit") if least == most else f"{least} to {most} handwritten digits"
    return f"{counted(len(digits), 'client')} with {each} each, of {kinds:.1f} kinds on average"


@contextlib.contextmanager
def _context(num_workers: int, engine: str) -> Generator[None, None, None]:
    """Runs the block in a context that computes in this process, on new worker processes, or on Ray."""
    if engine == "ray":
        from fedstack.backends.ray_cluster.ray_api import ray  # an optional dependency

        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        with create_sync_ray_execution_context(num_workers=num_workers or None):
            yield
        return
    if not num_workers:
        with create_sync_local_execution_context():
            yield
        return
    from fedstack.service.pool.worker_pool import local_worker_pool  # only workers need gRPC

    with local_worker_pool(num_workers) as workers, create_sync_remote_execution_context(workers):
        yield


def run_rounds(
    example: Any,
    training: list[Images],
    evaluation: list[Iterable[Images]],
    num_rounds: int,
    seed: int,
    num_workers: int = 0,
    engine: str = "fedstack",
) -> list[Round]:
    """Trains and evaluates for `num_rounds` rounds and shows a progress bar.

    The work runs in this process, in worker processes, or on Ray. Accuracies and losses are bit-for-bit reproducible
    and do not depend on the number of workers.
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


def print_table(rounds: Sequence[Round]) -> None:
    """Prints the first round, the last round and some rounds between them to standard output."""
    every = -(-len(rounds) // _MOST_ROWS)
    rows = [
        (str(r.number), f"{r.accuracy:.4f}", f"{r.loss:.4f}", f"{r.seconds:.3f}", f"{r.clients_per_second:,.0f}")
        for r in rounds
        if r.number % every == 0 or r.number in (1, len(rounds))
    ]
    if is_terminal(sys.stdout):
        with contextlib.suppress(ImportError):
            from fedstack.contexts.rich_display import draw_table

            draw_table(_HEADER, rows)
            return
    widths = [max(map(len, column)) for column in zip(_HEADER, *rows)]
    for row in (_HEADER, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def write_csv(rounds: Sequence[Round], path: Path) -> None:
    """Writes all rounds to a CSV file, with full precision."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in attrs.fields(Round))
        writer.writerows(attrs.astuple(r) for r in rounds)
