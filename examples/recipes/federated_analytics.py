"""Federated analytics: a histogram, and quantiles by bisection, from counts that clients send in place of values.

Clients answer one question: how many of their values are below some points? The server gets the sum. For the edges of
bins, the differences of the sums are a histogram. For a quantile q, each round halves an interval that contains it: the
quantile is in the upper half if less than the share q of all values is below the middle.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer

import fedstack
from fedstack.data.partition import LinearPartitioner

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=16, help="how many rounds (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")

values = load_breast_cancer().data[:, 0]  # the radii of 569 tumors
clients = LinearPartitioner(30).partition(values, seed=0).split(values)
LOWEST, HIGHEST, BINS, QUANTILES = 5.0, 30.0, 25, np.array([0.25, 0.5, 0.9])
VALUES, POINTS, COUNTS = (np.float64, [None]), (np.float64, [BINS + 1]), (np.int64, [BINS + 1])


@fedstack.python_computation([POINTS, VALUES], COUNTS)
def number_below(points, values):
    return (values[:, np.newaxis] < points).sum(axis=0)


@fl.federated_computation(fl.FederatedType(POINTS, fl.SERVER), fl.FederatedType(VALUES, fl.CLIENTS))
def total_below(points, clients):
    return fl.federated_sum(fl.federated_map(number_below, (fl.federated_broadcast(points), clients)))


fedstack.set_sync_local_execution_context()
edges = np.linspace(LOWEST, HIGHEST, BINS + 1)
histogram = np.diff(total_below(edges, clients))
low, high = np.full(len(QUANTILES), LOWEST), np.full(len(QUANTILES), HIGHEST)
for number in range(1, options.rounds + 1):
    middle = (low + high) / 2
    below = total_below(np.resize(middle, BINS + 1), clients)[: len(QUANTILES)]
    is_above = below < QUANTILES * histogram.sum()
    low, high = np.where(is_above, middle, low), np.where(is_above, high, middle)
    print(f"round {number}: {', '.join(f'{one:.3f}' for one in middle)}")

figure = Figure(figsize=(6.4, 3.6), layout="constrained")
axes = figure.add_subplot(xlabel="radius", ylabel="tumors")
axes.stairs(histogram, edges, fill=True, alpha=0.5)
for share, quantile in zip(QUANTILES, middle):
    axes.axvline(quantile, color="k", linewidth=1)
    axes.annotate(f"{share:.0%}", (quantile, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "federated_analytics.svg")
error = np.abs(middle - np.quantile(values, QUANTILES, method="inverted_cdf")).max()
found = ", ".join(f"{share:.0%} {quantile:.2f}" for share, quantile in zip(QUANTILES, middle))
print(f"quantiles of {histogram.sum()} radii after {options.rounds} rounds: {found}, off by {error:.1g}")
print("picture:", picture)
