"""Draws docs/trace.png: a trace of federated averaging over two workers, much as trace viewers show it.

Run it: python scripts/draw_trace.py. The functions are those of `fedstack demo`.
"""

import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure

import fedstack
from fedstack.service import local_worker_pool

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
COLOURS = ("#0b6e99", "#e0a030", "#5b8c5a", "#8a6fb0", "#c8553d")


def record(path):
    """Traces three rounds, after one that brings the functions to the workers."""
    from federated_averaging import load_clients, train

    training, evaluation = load_clients(num_clients=100, seed=0)
    with local_worker_pool(2) as pool, fedstack.create_sync_remote_execution_context(pool):
        list(train(training, evaluation, num_rounds=1, seed=0))
        with fedstack.observe.trace_to(path):
            list(train(training, evaluation, num_rounds=3, seed=0))


def spans_of(entries):
    """Returns the spans of each track, as tuples of begin, seconds, name and how many spans are around it."""
    found, open_spans = defaultdict(list), defaultdict(list)
    for entry in entries:
        track = entry["tid"]
        if entry["ph"] == "B":
            open_spans[track].append(entry)
        elif entry["ph"] == "E":
            begin = open_spans[track].pop()
            found[track].append((begin["ts"], entry["ts"] - begin["ts"], begin["name"], len(open_spans[track])))
        elif entry["ph"] == "X":
            found[track].append((entry["ts"], entry["dur"], entry["name"], 0))
    return found


def draw(entries, path):
    """Draws the tracks of a trace, and below them the clients that run."""
    labels = {e["tid"]: e["args"]["name"] for e in entries if e.get("name") == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in entries if e.get("name") == "thread_sort_index"}
    spans = {track: found for track, found in spans_of(entries).items() if labels[track] != "functions loading"}
    begin = min(entry["ts"] for entry in entries if "ts" in entry)
    colours = defaultdict(lambda: COLOURS[len(colours) % len(COLOURS)])
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    y, ticks = 0.0, {}
    for track in sorted(spans, key=order.get):
        depth = 1 + max(level for *_, level in spans[track])
        ticks[re.sub("unix:.*/", "…/", labels[track])] = y + depth / 2
        for start, length, name, level in spans[track]:
            x, width = (start - begin) / 1000, max(length / 1000, 0.8)
            [box] = above.barh(y + level, width, 0.92, x, align="edge", color=colours[name])
            if width > 5:
                text = above.text(x + 1, y + level + 0.46, name, va="center", fontsize=7, color="white", clip_on=True)
                text.set_clip_path(box)
        y += depth + 0.4
    above.set_yticks(list(ticks.values()), list(ticks))
    above.invert_yaxis()
    counts = [(e["ts"], e["args"]) for e in entries if e["ph"] == "C"]
    times = [(moment - begin) / 1000 for moment, _ in counts]
    for what, colour in (("done", COLOURS[2]), ("running", COLOURS[1])):
        below.step(times, [values[what] for _, values in counts], where="post", color=colour, label=what, linewidth=1.2)
    below.set_ylabel("clients")
    below.set_xlabel("milliseconds")
    below.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8, frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        record(trace)
        draw(json.loads(Path(trace).read_text()), ROOT / "docs" / "trace.png")
