"""Runs the federated averaging examples, `examples/federated_averaging*.py`, and records each round.

The computation is defined only in the examples, for readers to copy and for the demo to run. In a wheel, the examples
are installed next to this module.
"""

import contextlib
import importlib.util
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from numpy.typing import NDArray

from fedstack.backends.ray_cluster.ray_contexts import create_sync_ray_execution_context
from fedstack.backends.remote_contexts import create_sync_remote_execution_context
from fedstack.contexts.local_contexts import create_sync_local_execution_context
from fedstack.contexts.progress_display import ProgressSnapshot, display
from fedstack.demo.faults import FaultyRounds, Workers
from fedstack.demo.live_view import draw_clients, draw_curve
from fedstack.executors.survivors.client_failures import ClientFailures

_FILES = {"python": "federated_averaging.py", "jax": "federated_averaging_jax.py"}
_IN_WHEEL = Path(__file__).parent / "examples"
_IN_CHECKOUT = Path(__file__).parents[2] / "examples"

Images = Mapping[str, NDArray[Any]]


@attrs.frozen
class Round:
    """The results of a round.

    Attributes:
      number: The number of the round, from 1.
      accuracy: The fraction of the held-out images that the model classifies correctly after this round.
      loss: The mean cross-entropy on these images, in nats.
      seconds: The duration of training and evaluation in this round.
      clients_per_second: The number of trained clients divided by `seconds`.
      failed: The number of clients that failed in this round.
      seed: The seed of the run.
    """

    number: int
    accuracy: float
    loss: float
    seconds: float
    clients_per_second: float
    failed: int = 0
    seed: int = 0


def load_example(leaf: str = "python") -> Any:
    """Returns the module of the example.

    Args:
      leaf: What the functions of clients are written in: `"python"` or `"jax"`. With JAX, the module imports the one
        with Python.

    Raises:
      ImportError: If JAX is not installed, and the functions are written in it.

    The module's `load_clients(num_clients, seed)` returns training images and evaluation batches for each client. The
    function raises ModuleNotFoundError if scikit-learn, which contains the images, is not installed. The module's
    `train(training, evaluation, num_rounds, seed, train_round)` yields `accuracy` and `loss` after each round.
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


@contextlib.contextmanager
def _context(
    num_workers: int, engine: str, client_failures: ClientFailures | None
) -> Generator[Workers | None, None, None]:
    """Runs the block in a context that computes in this process, on new worker processes, or on Ray.

    Yields:
      The worker processes of fedstack, if there are any.
    """
    if engine == "ray":
        from fedstack.backends.ray_cluster.ray_api import ray  # an optional dependency

        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        with create_sync_ray_execution_context(num_workers=num_workers or None, client_failures=client_failures):
            yield None
        return
    if not num_workers:
        with create_sync_local_execution_context(client_failures=client_failures):
            yield None
        return
    from fedstack.service.pool.worker_pool import local_worker_pool  # only workers need gRPC

    with (
        local_worker_pool(num_workers) as workers,
        create_sync_remote_execution_context(workers, client_failures=client_failures),
    ):
        yield workers


def run_rounds(
    example: Any,
    training: list[Images],
    evaluation: list[Iterable[Images]],
    num_rounds: int,
    seed: int,
    num_workers: int = 0,
    engine: str = "fedstack",
    faults: FaultyRounds | None = None,
) -> list[Round]:
    """Trains and evaluates for `num_rounds` rounds, and shows the progress.

    The work runs in this process, in worker processes, or on Ray. Accuracies and losses are bit-for-bit reproducible
    and do not depend on the number of workers, or on a worker that is killed.

    Args:
      example: The module of the example.
      training: The images of each client.
      evaluation: The batches of held-out images of each client.
      num_rounds: The number of rounds.
      seed: The seed of the initial model and of the order of images.
      num_workers: The number of worker processes; 0 for none.
      engine: `"fedstack"` or `"ray"`.
      faults: What runs each round, and may let clients fail; by default nothing fails.
    """
    rounds: list[Round] = []
    run_round = FaultyRounds(example.train_round, len(training), seed) if faults is None else faults

    def snapshot() -> ProgressSnapshot:
        done = list(rounds)  # the work goes on meanwhile
        if not done:
            return ProgressSnapshot(0, num_rounds)
        notes = [f"accuracy {done[-1].accuracy:.4f}"]
        lines = list(draw_curve([r.accuracy for r in done], num_rounds))
        if failed := run_round.failed:
            notes.append(f"{len(failed)} failed")
        if failed or run_round.kill is not None:
            lines += draw_clients(len(training), failed, run_round.kill)
        return ProgressSnapshot(len(done), num_rounds, ", ".join(notes), below="\n".join(lines))

    with (
        _context(num_workers, engine, run_round.policy) as run_round.pool,
        display("Training", "rounds", snapshot),
    ):
        begin = time.perf_counter()
        for metrics in example.train(training, evaluation, num_rounds, seed, run_round):
            end = time.perf_counter()
            rounds.append(
                Round(
                    number=len(rounds) + 1,
                    accuracy=float(metrics["accuracy"]),
                    loss=float(metrics["loss"]),
                    seconds=end - begin,
                    clients_per_second=(len(training) - len(run_round.failed)) / (end - begin),
                    failed=len(run_round.failed),
                    seed=seed,
                )
            )
            begin = end
    return rounds
