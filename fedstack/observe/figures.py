"""Draws curves with matplotlib. Only this module imports it; it is optional."""

# matplotlib's own stubs do not annotate keyword arguments:
# pyright: reportUnknownMemberType=false

import io
import math
from collections.abc import Mapping, Sequence

try:
    # pyplot is avoided, because it keeps figures in memory and selects a windowing system.
    import matplotlib
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter
except ModuleNotFoundError as error:
    raise ImportError(f'Pictures need {error.name}; install it with: pip install "fedstack[plots]"') from error

__all__ = ["Axes", "Figure", "MaxNLocator", "PercentFormatter", "colormaps", "draw_panels", "picture_of"]

# Where a picture has its note. None of them has a date.
_METADATA: Mapping[str, tuple[str, Mapping[str, None]]] = {
    ".pdf": ("Subject", {"CreationDate": None, "Creator": None, "Producer": None}),
    ".png": ("Description", {"Software": None}),
    ".svg": ("Description", {"Creator": None, "Date": None}),
}
SUFFIXES = tuple(_METADATA)
_MOST_COLUMNS = 4
_MOST_CHARACTERS = 36  # of a title, in the width of a panel
# Curves of fewer points have a mark at each.
_FEW_POINTS = 40
# Greater numbers than this are as good as infinite: the limits of an axis would overflow.
_ENDLESS = 1e300
_COLOUR, _QUIET, _ALARM = "#0b6e99", "#666666", "#c8553d"

# Matplotlib draws random ids otherwise. It has no argument for this, and a block in which it is set would undo what
# other threads set meanwhile.
if matplotlib.rcParams["svg.hashsalt"] is None:
    matplotlib.rcParams["svg.hashsalt"] = "fedstack"


def draw_panels(curves: Mapping[str, Sequence[tuple[int, float]]], x_label: str, title: str | None = None) -> Figure:
    """Draws curves, each in a panel of its own, over the same range of keys.

    Args:
      curves: The points of each curve by its name, at least one for each, in the order of their keys. A curve is broken
        where a value is not finite, and has a cross at the bottom there.
      x_label: What the keys are.
      title: A title for all panels.
    """
    columns = min(math.ceil(math.sqrt(max(len(curves), 1))), _MOST_COLUMNS)
    rows = max(math.ceil(len(curves) / columns), 1)
    width = 6.4 if columns == 1 else 3.8 * columns
    figure = Figure(figsize=(width, 0.6 + 2.6 * rows), layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[max(len(curves), 1) :]:
        axes.remove()
    if not curves:
        panels[0].text(0.5, 0.5, "no numbers", ha="center", color=_QUIET, transform=panels[0].transAxes)
    keys = [key for points in curves.values() for key, _ in points]
    for axes, (name, points) in zip(panels, curves.items()):
        _draw_panel(axes, name, points)
        room = (max(keys) - min(keys)) * 0.03 or 0.5
        axes.set_xlim(min(keys) - room, max(keys) + room)
    for number, axes in enumerate(panels[: len(curves)]):
        if number + columns >= len(curves):  # nothing is below
            axes.set_xlabel(x_label, parse_math=False)
    if title:
        figure.suptitle(title, parse_math=False)
    return figure


def _draw_panel(axes: Axes, name: str, points: Sequence[tuple[int, float]]) -> None:
    keys = [key for key, _ in points]
    values = [value if abs(value) < _ENDLESS else math.nan for _, value in points]
    strange = [key for key, value in zip(keys, values) if math.isnan(value)]
    there = [number for number, value in enumerate(values) if not math.isnan(value)]
    beside = [math.nan, *values, math.nan]
    alone = [number for number in there if math.isnan(beside[number]) and math.isnan(beside[number + 2])]
    marked = there if len(there) <= _FEW_POINTS else alone
    axes.plot(keys, values, color=_COLOUR, linewidth=1.5, marker="o", markersize=3.5, markevery=marked)
    axes.plot(strange, [0.03] * len(strange), "x", color=_ALARM, markersize=4, transform=axes.get_xaxis_transform())
    shown = name if len(name) <= _MOST_CHARACTERS else f"…{name[1 - _MOST_CHARACTERS :]}"
    axes.set_title(shown, loc="left", fontsize=10, parse_math=False)
    last = points[-1][1]
    axes.set_title(f"{last:.4g}", loc="right", fontsize=9, color=_QUIET if math.isfinite(last) else _ALARM)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    if there:
        axes.ticklabel_format(axis="y", useOffset=False)
    else:
        axes.set_yticks([])
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def picture_of(figure: Figure, suffix: str, note: str) -> bytes:
    """Returns a figure as a file. The same figure and note give the same bytes.

    Args:
      figure: The figure.
      suffix: The kind of file, one of `SUFFIXES`.
      note: A text in ASCII that the file contains without being seen.
    """
    where, without = _METADATA[suffix]
    file = io.BytesIO()
    figure.savefig(file, format=suffix[1:], dpi=110, metadata={where: note, **without})
    return file.getvalue()
