"""DP-FedAvg: clipped changes, Gaussian noise and an accountant (McMahan et al., 2018), at a server that is trusted.

model += (sum_k u_k * min(1, C / |u_k|) + N(0, (z * C)^2)) / n, for the changes u_k of all n clients. T rounds with
noise multiplier z are one Gaussian mechanism with z / T^(1/2); its epsilon for a delta is exact (Balle and Wang, 2018).
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from scipy import optimize, special, stats
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=20, help="how many rounds (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="a seed for the split and all that is drawn (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")
CLIENTS, CLIP, NOISE, DELTA, (x, y) = 300, 1.0, 4.0, 1e-3, load_digits(return_X_y=True)
x, y = np.insert(x / 16, 0, 1, axis=1).astype(np.float32), y.astype(np.int32)
test, train = np.split(np.random.default_rng(options.seed).permutation(len(y)), [297])
partition = DirichletPartitioner(CLIENTS, alpha=0.3, min_partition_size=0).partition(y[train], seed=options.seed)
MODEL, ROWS = (np.float32, [65, 10]), {"x": (np.float32, [None, 65]), "y": (np.int32, [None])}


@fedstack.python_computation([MODEL, ROWS], MODEL)
def clipped_change(start, rows):
    model = start
    for _ in range(5):  # steps down the slope of the cross entropy
        error = special.softmax(rows["x"] @ model, axis=1) - np.eye(10, dtype=np.float32)[rows["y"]]
        model = model - np.float32(0.4 / max(len(error), 1)) * rows["x"].T @ error
    return (model - start) * min(1, CLIP / max(np.linalg.norm(model - start), 1e-9))


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(ROWS, fl.CLIENTS))
def sum_of_changes(model, clients):
    return fl.federated_sum(fl.federated_map(clipped_change, (fl.federated_broadcast(model), clients)))


def epsilon(z, rounds):
    try:
        from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, pld
    except ImportError:
        cdf, mu = stats.norm.cdf, rounds**0.5 / z
        return optimize.brentq(lambda e: cdf(mu / 2 - e / mu) - np.exp(e) * cdf(-mu / 2 - e / mu) - DELTA, 0, 500)
    return pld.PLDAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(z), rounds)).get_epsilon(DELTA)


fedstack.set_sync_local_execution_context()
clients, random = partition.split({"x": x[train], "y": y[train]}), np.random.default_rng(options.seed)
axes = (figure := Figure((6.4, 3.6), layout="constrained")).add_subplot(xlabel="round", ylabel="held-out accuracy")
for z in (0, NOISE):
    model, curve = np.zeros((65, 10), np.float32), []
    for _ in range(options.rounds):
        model += (sum_of_changes(model, clients) + random.normal(0, z * CLIP, model.shape)) / CLIENTS
        curve.append(np.mean((x[test] @ model).argmax(axis=1) == y[test]))
    axes.plot(range(1, len(curve) + 1), curve, label=f"noise multiplier {z:g}")
axes.legend()
axes.locator_params(axis="x", integer=True)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "clipping_and_noise.svg")
spent = f"epsilon {epsilon(NOISE, options.rounds):.2f} at delta {DELTA}"
without, private = (f"{line.get_ydata()[-1]:.2f}" for line in axes.lines)
print(f"accuracy {private} after {options.rounds} rounds with {spent}; without noise {without}\npicture: {picture}")
