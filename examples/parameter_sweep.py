"""Finds the best step size and momentum for a quadratic, by a coordinator over two workers, with a bar and a picture.

  fedstack serve --port 8000 --allow-python-code
  fedstack serve --port 8001 --allow-python-code
  python examples/parameter_sweep.py localhost:8000 localhost:8001

Without addresses it starts two workers of its own. The picture needs matplotlib, the bar needs rich: pip install
"fedstack[demo]".
"""

import argparse
import contextlib

import matplotlib
import numpy as np
from rich.progress import track

import fedstack
from fedstack.service.coordinator import ClusterCoordinator, as_completed

matplotlib.use("Agg")
from matplotlib import pyplot as plt

parser = argparse.ArgumentParser(description="Sweeps over two parameters.")
parser.add_argument("workers", nargs="*", metavar="ADDRESS", help="as in localhost:8000")
parser.add_argument("--points", type=int, default=12, help="values of each parameter")
parser.add_argument("--picture", default="sweep.png")


def load_problem(seed):
    generator = np.random.default_rng(seed)
    factor = generator.normal(size=(200, 50))
    return {"curvature": factor.T @ factor / 200, "start": generator.normal(size=50)}


def descend(problem, step_size, momentum):
    x, velocity = problem["start"].copy(), np.zeros(50)
    for _ in range(30):
        velocity = momentum * velocity - step_size * (problem["curvature"] @ x)
        x = np.clip(x + velocity, -1e6, 1e6)
    return {"loss": float(x @ problem["curvature"] @ x)}


def main():
    options = parser.parse_args()
    step_sizes = np.geomspace(0.003, 1.0, options.points)
    momenta = np.linspace(0.0, 0.95, options.points)
    with contextlib.ExitStack() as stack:
        workers = options.workers or stack.enter_context(fedstack.service.local_worker_pool(2))
        coordinator = stack.enter_context(ClusterCoordinator(workers))
        problem = coordinator.schedule(load_problem, args=(0,))  # it is made once, and stays at a worker
        runs = {
            coordinator.schedule(descend, args=(problem, float(step_size), float(momentum))): (column, row)
            for column, step_size in enumerate(step_sizes)
            for row, momentum in enumerate(momenta)
        }
        losses = np.zeros((options.points, options.points))
        for value in track(as_completed(runs), description="Sweeping", total=len(runs)):
            column, row = runs[value]
            losses[row, column] = value.fetch()["loss"]
    row, column = np.unravel_index(losses.argmin(), losses.shape)
    print(f"best: step size {step_sizes[column]:.4g}, momentum {momenta[row]:.3g}, loss {losses[row, column]:.2g}")
    plt.pcolormesh(step_sizes, momenta, np.log10(losses + 1e-12))
    plt.xscale("log")
    plt.xlabel("step size")
    plt.ylabel("momentum")
    plt.colorbar(label="log10 of the loss after 30 steps")
    plt.savefig(options.picture, dpi=150)
    print(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
