"""Shows measurements as a table and writes them as JSON."""

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import federated_language
import numpy as np

import fedstack
from benchmarks.harness import Measurement

RESULTS = Path(__file__).resolve().parent / "results"
_HEADINGS = ("", "floor", "fedstack", "ratio", "reach", "used")
_WIDTHS = (58, 10, 10, 8, 23, 7)


def heading() -> str:
    """Returns the first line of the table."""
    return _row(_HEADINGS)


def line(measurement: Measurement) -> str:
    """Returns a measurement as a line of the table, marked if it misses its limit or the machine was busy."""
    m = measurement
    ratio = "" if m.ratio is None else f"{m.ratio:.2f} ×"
    used = "" if m.used is None else f"{m.used:.0%}"
    floor = "" if m.floor is None else _quantity(m.floor, m.unit)
    marks = " missed" if m.used is not None and m.used > 1 else ""
    spread = m.details.get("subject_spread", 1.0)
    if isinstance(spread, float) and spread > 1.5:
        marks += " (noisy)"
    return _row((m.name, floor, _quantity(m.subject, m.unit), ratio, m.reach, used)) + marks


def _row(cells: Sequence[str]) -> str:
    first, *others = (cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, _WIDTHS)))
    return " ".join((first, *others))


def _quantity(value: float, unit: str) -> str:
    if unit == "error":
        return f"{value:.1e}"
    if unit == "count":
        return f"{value:.3g}"
    steps = {"s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")), "bytes": ((1e6, "MB"), (1e3, "kB"), (1.0, "B"))}[unit]
    for size, name in steps:
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    size, name = steps[-1]
    return f"{value / size:.2g} {name}"


def write(measurements: Sequence[Measurement], path: Path | None = None) -> Path:
    """Writes measurements as JSON and returns where.

    Args:
      measurements: What to write.
      path: Where; by default into the folder of results, by the date.
    """
    if path is None:
        path = RESULTS / time.strftime("%Y-%m-%d-%H%M%S.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "fedstack": fedstack.__version__,
        "federated_language": getattr(federated_language, "__version__", ""),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "measurements": [
            {
                "name": m.name,
                "unit": m.unit,
                "floor": m.floor,
                "subject": m.subject,
                "ratio": m.ratio,
                "limit": m.limit,
                "reach": m.reach,
                "used": m.used,
                **m.details,
            }
            for m in measurements
        ],
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
