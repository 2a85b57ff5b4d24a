"""Draws the figure of the demo."""

# matplotlib's own stubs do not annotate keyword arguments:
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstack.demo.baselines import Comparison
from fedstack.demo.faults import Kill
from fedstack.demo.training import Round
from fedstack.foundations.error_text import counted

try:
    from fedstack.observe.figures import Axes, Figure, MaxNLocator, PercentFormatter, picture_of
except ImportError as error:
    raise ImportError('The demo needs matplotlib; install it with: pip install "fedstack[demo]"') from error

_SHARED, _ALONE, _LOSS, _QUIET = "#0b6e99", "#d98a2b", "#c8553d", "#666666"
_SUFFIXES = ".png", ".svg", ".pdf"
# With more clients than this, the lines between their dots are a surface.
_MOST_LINES = 150


def draw_figure(runs: Sequence[Sequence[Round]], compared: Comparison, kill: Kill | None = None) -> Figure:
    """Draws accuracy and loss over the rounds, and the accuracy for each client.

    Args:
      runs: The rounds of each seed, as many for each.
      compared: The accuracies of the first seed's clients, and of other models.
      kill: The worker that was killed in the first run.
    """
    num_clients, failed = len(compared.shared), runs[0][-1].failed
    figure = Figure(figsize=(11, 5), layout="constrained")
    panels: dict[str, Axes] = figure.subplot_mosaic(
        [["accuracy", "clients"], ["loss", "clients"]],
        width_ratios=[1.25, 1],
        height_ratios=[2.2, 1],
    )
    title = f"Federated averaging on handwritten digits, {counted(num_clients, 'client')}"
    title += f", of which {failed} fail in each round" * bool(failed)
    figure.suptitle(title, fontsize=13)
    for axes in panels.values():
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    _draw_accuracy(panels["accuracy"], runs, compared)
    _draw_curve(panels["loss"], np.array([[r.loss for r in run] for run in runs]), _LOSS)
    panels["loss"].set_ylabel("loss [nats]")
    panels["loss"].set_ylim(bottom=0)
    panels["loss"].set_xlabel("round")
    panels["accuracy"].tick_params(labelbottom=False)
    if kill is not None:
        # Where the curve is not.
        height = 0.06 if runs[0][kill.round - 1].accuracy > 0.4 else 0.6
        _draw_kill(panels["accuracy"], kill, height)
    _draw_clients(panels["clients"], compared, " (first seed)" if len(runs) > 1 else "")
    return figure


def _draw_curve(axes: Axes, values: NDArray[np.float64], colour: str) -> None:
    """Draws the mean of several runs, `float64[runs, rounds]`, and a band from the least to the most."""
    numbers, mean = range(1, values.shape[1] + 1), values.mean(axis=0)
    if len(values) > 1:
        axes.fill_between(numbers, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    axes.plot(numbers, mean, color=colour, linewidth=2)
    axes.plot(numbers[-1], mean[-1], "o", color=colour)
    axes.set_xlim(0, len(numbers) * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _draw_accuracy(axes: Axes, runs: Sequence[Sequence[Round]], compared: Comparison) -> None:
    values = np.array([[r.accuracy for r in run] for run in runs])
    _draw_curve(axes, values, _SHARED)
    text = f"shared model: {values[:, -1].mean():.1%} after {counted(values.shape[1], 'round')}"
    if len(runs) > 1:
        text += f" (mean and range of {len(runs)} seeds)"
    axes.set_title(text, loc="left", color=_SHARED, fontsize=11)
    lines = (compared.one_place, "all data in one place", "#333333"), (compared.alone_on_all, "a client alone", _ALONE)
    for accuracy, name, colour in lines:
        axes.axhline(accuracy, color=colour, linestyle=(0, (4, 3)), linewidth=1.2)
        axes.annotate(
            f"{name}: {accuracy:.1%}",
            (1, accuracy),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=colour,
        )
    axes.set_ylabel("accuracy on held-out images")
    axes.set_ylim(0, 1.09)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1))


def _draw_kill(axes: Axes, kill: Kill, height: float) -> None:
    axes.axvline(kill.round, color=_LOSS, linewidth=1, linestyle=":")
    axes.annotate(
        f"a worker is killed,\n{counted(len(kill.lost), 'client')} run again",
        (kill.round, height),
        xytext=(4, 0),
        textcoords="offset points",
        color=_LOSS,
        fontsize=9,
    )


def _draw_clients(axes: Axes, compared: Comparison, whose: str) -> None:
    order = np.lexsort((compared.shared, compared.alone))
    shared, alone = compared.shared[order], compared.alone[order]
    places = np.arange(1, len(order) + 1)
    size = 14 if len(order) <= _MOST_LINES else 4
    if len(order) <= _MOST_LINES:
        axes.vlines(places, alone, shared, color=_QUIET, alpha=0.3, linewidth=1)
    axes.scatter(places, alone, s=size, color=_ALONE, label=f"its own model, {alone.mean():.1%} on average")
    axes.scatter(places, shared, s=size, color=_SHARED, label=f"the shared model, {shared.mean():.1%} on average")
    axes.set_title(f"accuracy for each client, on its kinds of digits{whose}", loc="left", fontsize=11)
    axes.set_xlabel("client, in the order of its own model's accuracy")
    axes.set_xlim(0, len(order) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(loc="lower right", frameon=False)


def save_figure(figure: Figure, path: Path, note: str) -> list[Path]:
    """Saves a figure as a PNG, an SVG and a PDF file, and returns their paths.

    Args:
      figure: The figure.
      path: The path of the files without the ending.
      note: A text in ASCII that the files contain without being seen.
    """
    # Otherwise each file would lay out the figure again.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    paths = [path.with_suffix(suffix) for suffix in _SUFFIXES]
    for written in paths:
        written.write_bytes(picture_of(figure, written.suffix, note))
    return paths
