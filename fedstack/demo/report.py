"""Reports the rounds of the demo: as a table to read, and as a CSV file to go on with."""

import contextlib
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from fedstack.contexts.progress_display import is_terminal
from fedstack.demo.training import Round

_HEADER = ("round", "accuracy", "loss", "seconds", "clients/s")
_MOST_ROWS = 10


def print_table(rounds: Sequence[Round]) -> None:
    """Prints the first round, the last and some between them on standard output."""
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
    """Writes all rounds, with every digit of their numbers."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in attrs.fields(Round))
        writer.writerows(attrs.astuple(r) for r in rounds)
