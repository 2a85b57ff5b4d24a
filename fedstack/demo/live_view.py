"""Draws the progress of the demo as lines for a terminal, with the markup of rich: a curve, and what clients do."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from fedstack.demo.faults import Kill
from fedstack.foundations.error_text import counted

_WIDTH, _HEIGHT, _LABEL = 60, 6, 8
# The bits of the dots of a Braille character, which has two columns of four dots.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = 0x2800
# More clients than this do not fit into a few lines.
_MOST_CLIENTS = 4 * _WIDTH


def draw_curve(values: Sequence[float], total: int) -> Iterator[str]:
    """Yields the lines of a curve of numbers from 0 to 1, with its axes.

    Args:
      values: The numbers so far.
      total: How many numbers there will be.
    """
    cells = [[_BLANK] * _WIDTH for _ in range(_HEIGHT)]
    columns = np.linspace(0, max(total - 1, 1), 2 * _WIDTH)
    columns = columns[columns <= len(values) - 1]
    heights = np.interp(columns, range(len(values)), np.clip(values, 0, 1))
    rows = [round((1 - float(height)) * (4 * _HEIGHT - 1)) for height in heights]
    for column, (before, row) in enumerate(zip([*rows[:1], *rows], rows)):
        for dot in range(min(before, row), max(before, row) + 1):  # steep parts have no gaps
            cells[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
    for number, line in enumerate(cells):
        label = {0: "100%", _HEIGHT - 1: "0%"}.get(number, "")
        yield f"{label:>{_LABEL - 2}} │[cyan]{''.join(map(chr, line))}[/]"
    yield f"{'':{_LABEL - 1}}└{'─' * _WIDTH}"


def draw_clients(number: int, failed: Collection[int], kill: Kill | None) -> Iterator[str]:
    """Yields lines with a character for each client of a round, and what the characters mean.

    Args:
      number: The number of clients.
      failed: The clients that failed in the round.
      kill: The worker that was killed in this round or before, with its clients.
    """
    lost = () if kill is None else kill.lost
    if number <= _MOST_CLIENTS:
        cells = [
            "[red]✗[/]" if client in failed else "[yellow]↻[/]" if client in lost else "[dim]·[/]"
            for client in range(number)
        ]
        for first in range(0, number, _WIDTH):
            yield f"{'' if first else 'clients':{_LABEL}}{''.join(cells[first : first + _WIDTH])}"
    if failed:
        yield f"{'':{_LABEL}}[red]✗[/] {counted(len(failed), 'client')} failed in this round"
    if kill is not None:
        again = f"{counted(len(lost), 'client')} ran again on worker {kill.others}"
        yield f"{'':{_LABEL}}[yellow]↻[/] worker {kill.worker} was killed in round {kill.round}; {again}"
