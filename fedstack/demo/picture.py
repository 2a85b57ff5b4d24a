"""Draws the figure of the demo."""

# matplotlib's own stubs do not annotate keyword arguments:
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path

from fedstack.demo.training import Round
from fedstack.foundations.error_text import counted

try:
    from fedstack.observe.figures import Figure, MaxNLocator, PercentFormatter
except ImportError as error:
    raise ImportError('The demo needs matplotlib; install it with: pip install "fedstack[demo]"') from error

_ACCURACY_COLOUR, _LOSS_COLOUR = "#0b6e99", "#c8553d"


def draw_curve(rounds: Sequence[Round], num_clients: int, path: Path) -> None:
    """Plots accuracy and loss over the rounds, and saves the figure to a PNG file."""
    numbers = [r.number for r in rounds]
    accuracies = [r.accuracy for r in rounds]
    last = rounds[-1]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    marker = "o" if len(rounds) == 1 else None
    (accuracy,) = left.plot(numbers, accuracies, color=_ACCURACY_COLOUR, linewidth=2, marker=marker, label="accuracy")
    (loss,) = right.plot(
        numbers, [r.loss for r in rounds], color=_LOSS_COLOUR, linestyle="--", marker=marker, label="loss"
    )
    left.plot(last.number, last.accuracy, "o", color=_ACCURACY_COLOUR)
    left.annotate(
        f"{last.accuracy:.1%} after {counted(last.number, 'round')}",
        (last.number, last.accuracy),
        xytext=(0, -12),
        textcoords="offset points",
        ha="right",
        va="top",
        color=_ACCURACY_COLOUR,
        fontweight="bold",
    )
    left.set_title(f"Federated averaging on handwritten digits, {counted(num_clients, 'client')}")
    left.set_xlabel("round")
    left.set_xlim(0, len(rounds) * 1.02)
    left.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    left.set_ylabel("accuracy on held-out images", color=_ACCURACY_COLOUR)
    left.set_ylim(0, 1)
    left.yaxis.set_major_formatter(PercentFormatter(1))
    left.grid(alpha=0.25)
    right.set_ylabel("cross-entropy on held-out images [nats]", color=_LOSS_COLOUR)
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.spines["top"].set_visible(False)
    left.legend(handles=[accuracy, loss], loc="center right", frameon=False)
    figure.savefig(path, dpi=150)
