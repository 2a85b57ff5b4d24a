"""Says what the demo has found: a table of rounds, a CSV file, and the last lines."""

import contextlib
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np

from fedstack.contexts.progress_display import is_terminal
from fedstack.demo.baselines import Comparison, Images
from fedstack.demo.faults import Kill
from fedstack.demo.training import Round
from fedstack.foundations.error_text import counted

_HEADER = ("round", "accuracy", "loss", "seconds", "clients/s")
_MOST_ROWS = 10


def describe_clients(training: Sequence[Images]) -> str:
    """Returns a sentence about how unevenly the images are distributed over the clients."""
    digits = [client["digit"] for client in training]
    sizes = [len(held) for held in digits]
    kinds = float(np.mean([len(np.unique(held)) for held in digits]))
    least, most = min(sizes), max(sizes)
    each = counted(least, "handwritten digit") if least == most else f"{least} to {most} handwritten digits"
    return f"{counted(len(digits), 'client')} with {each} each, of {kinds:.1f} kinds on average"


def print_table(rounds: Sequence[Round]) -> None:
    """Prints the first round, the last round and some rounds between them to standard output."""
    every = -(-len(rounds) // _MOST_ROWS)
    header = (*_HEADER, "failed") if any(r.failed for r in rounds) else _HEADER
    rows = [
        # Without failures, there is no column for them.
        (
            str(r.number),
            f"{r.accuracy:.4f}",
            f"{r.loss:.4f}",
            f"{r.seconds:.3f}",
            f"{r.clients_per_second:,.0f}",
            str(r.failed),
        )[: len(header)]
        for r in rounds
        if r.number % every == 0 or r.number in (1, len(rounds))
    ]
    if is_terminal(sys.stdout):
        with contextlib.suppress(ImportError):
            from fedstack.contexts.rich_display import draw_table

            draw_table(header, rows)
            return
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    for row in (header, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def write_csv(rounds: Sequence[Round], path: Path) -> None:
    """Writes all rounds to a CSV file, with full precision."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in attrs.fields(Round))
        writer.writerows(attrs.astuple(r) for r in rounds)


def last_lines(
    runs: Sequence[Sequence[Round]], compared: Comparison, kill: Kill | None, seconds: float
) -> Iterator[str]:
    """Yields what to remember of the runs, in a few lines.

    Args:
      runs: The rounds of each seed.
      compared: The accuracies of the first seed's clients, and of other models.
      kill: The worker that was killed.
      seconds: The duration of the demo.
    """
    *_, last = runs[0]
    found = [run[-1].accuracy for run in runs]
    text = f"Held-out accuracy {sum(found) / len(found):.1%} after {counted(len(runs[0]), 'round')}"
    if len(runs) > 1:
        text += f" on average of {len(runs)} seeds, {min(found):.1%} to {max(found):.1%}"
    yield f"{text}, in {seconds:.1f} s in total."
    one_place, alone = compared.one_place, compared.alone_on_all
    yield f"With all data in one place it is {one_place:.1%}, and for a client alone {alone:.1%}."
    if last.failed:
        yield f"In each round, {counted(last.failed, 'client')} of {len(compared.shared)} failed and were left out."
    if kill is not None:
        yield str(kill)
