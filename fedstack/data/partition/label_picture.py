"""Draws which client has how many rows with each label."""

# matplotlib's own stubs do not annotate keyword arguments:
# pyright: reportUnknownMemberType=false

from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from fedstack.data.partition.partition import Partition
from fedstack.errors import InvalidValueError
from fedstack.foundations.number_checks import check_whole_number

if TYPE_CHECKING:
    from fedstack.observe.figures import Axes, Figure

_MOST_IN_LEGEND = 20
_MOST_NAMED = 30


def plot_label_distributions(
    partition: Partition,
    labels: object,
    *,
    plot_type: Literal["bar", "heatmap"] = "bar",
    size_unit: Literal["absolute", "percent"] = "absolute",
    max_num_partitions: int | None = None,
    axes: "Axes | None" = None,
    title: str = "",
) -> "Figure":
    """Draws how many rows with each label each client has.

    Args:
      partition: The partition.
      labels: The label of each row, as in `Partition.label_counts`.
      plot_type: "bar" for a stack of bars for each client, "heatmap" for a field for each client and label.
      size_unit: "absolute" for numbers of rows, "percent" for shares of each client's rows.
      max_num_partitions: How many clients to draw, from the first on; `None` for all.
      axes: The axes of matplotlib to draw on; by default those of a new figure.
      title: The title; by default the numbers of clients and rows.

    Returns:
      The figure. `figure.savefig("clients.png")` saves it.

    Raises:
      ImportError: If matplotlib is not installed.
      InvalidValueError: If an option is another one, or the labels do not fit the partition.
    """
    for name, value, known in (
        ("plot_type", plot_type, ("bar", "heatmap")),
        ("size_unit", size_unit, ("absolute", "percent")),
    ):
        if value not in known:
            raise InvalidValueError(f"Expected {name} to be one of {', '.join(known)}, found {value!r}")
    if max_num_partitions is not None:
        check_whole_number("max_num_partitions", max_num_partitions, 1)
    names, counts = partition.label_counts(labels)
    shown: Any = counts[:max_num_partitions]
    if size_unit == "percent":
        shown = 100 * shown / np.maximum(shown.sum(axis=1, keepdims=True), 1)
    unit = "rows" if size_unit == "absolute" else "% of the client's rows"
    from fedstack.observe.figures import Figure

    made = Figure(figsize=(8, 4.5), layout="constrained").subplots() if axes is None else axes
    made.set_title(title or f"{len(partition.owners):,} rows of {len(partition):,} clients")
    made.set_xlabel("client")
    if plot_type == "bar":
        _draw_bars(made, shown, names, unit)
    else:
        image = made.imshow(shown.T, aspect="auto", origin="lower", cmap="Blues", vmin=0)
        made.figure.colorbar(image, ax=made, label=unit)
        made.set_ylabel("label")
        if len(names) <= _MOST_NAMED:
            made.set_yticks(range(len(names)), list(map(str, names)))
    if len(shown) <= _MOST_NAMED:
        ids = list(map(str, partition.client_ids[: len(shown)]))
        slanted: dict[str, Any] = {"rotation": 45, "ha": "right"} if max(map(len, ids)) > 4 else {}
        made.set_xticks(range(len(ids)), ids, **slanted)
    return cast("Figure", made.figure)


def _draw_bars(axes: "Axes", shown: Any, names: list[Any], unit: str) -> None:
    from fedstack.observe.figures import colormaps

    stops = np.cumsum(shown, axis=1)
    many = len(names) > 10
    width = 0.85 if len(shown) <= 100 else 1.0  # gaps between many bars would look like a pattern
    step = -(-len(names) // _MOST_IN_LEGEND)
    for label, name in enumerate(names):
        colour = colormaps["viridis"](label / (len(names) - 1)) if many else f"C{label}"
        bottom = stops[:, label] - shown[:, label]
        shown_as = str(name) if label % step == 0 else "_not in the legend"
        axes.bar(range(len(shown)), shown[:, label], width, bottom=bottom, color=colour, label=shown_as)
    axes.set_xlim(-0.6, len(shown) - 0.4)
    axes.set_ylabel(unit)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # In the order in which the labels are stacked.
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="label", reverse=True)
