"""Runs a round of a recipe of the gallery, beside a bare loop over the recipe's own function of a client."""

import contextlib
import io
import runpy
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.harness import Effort, Measurement, compare
from benchmarks.stack import running

_RECIPE = Path(__file__).parents[1] / "examples" / "recipes" / "fedavg_own_files.py"


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures FedAvg over 20 clients with handwritten digits, on one thread and with what a user gets."""
    recipe = _after_one_round()
    model, clients = recipe["model"], recipe["training"][: effort.pick(3, 20, 20)]
    train, train_round = recipe["train_on_client"].__wrapped__, recipe["train_round"]

    def loop() -> Any:
        total, rows = np.zeros_like(model), np.float32(0)
        for client in clients:
            trained = train(model, client)
            total += trained["model"] * trained["rows"]
            rows += trained["rows"]
        return total / rows

    for threads, name in ((1, "1 thread"), (None, "default threads")):
        with running(threads):
            assert np.allclose(train_round(model, clients), loop(), atol=1e-5)
            yield compare(
                f"recipe of FedAvg, {len(clients)} clients, {name}",
                loop,
                lambda: train_round(model, clients),
                effort,
                times=1.15,
            )


def _after_one_round() -> Mapping[str, Any]:
    """Runs the recipe for a round, and returns its names."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(mock.patch.object(sys, "argv", [str(_RECIPE), "--rounds", "1", "--out", folder]))
        return runpy.run_path(str(_RECIPE))
