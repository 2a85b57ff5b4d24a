"""FedAvg on a folder of CSV files, one for each client: model = sum_k n_k / n * model_k (McMahan et al., 2017).

A file has a line of names, and columns of numbers, of which the last one is the class, from 0. Client k has n_k rows.
"""

import argparse
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import fedstack
from fedstack.data.partition import DirichletPartitioner

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, help="the folder with the files; without, one is made of digits")
parser.add_argument("--rounds", type=int, default=30, help="how many rounds (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")
if not options.data:
    (folder := options.out / "clients").mkdir(parents=True, exist_ok=True)
    data, names = np.column_stack(load_digits(return_X_y=True)) / ([16] * 64 + [1]), [*map(str, range(64)), "digit"]
    for number, rows in enumerate(DirichletPartitioner(20, alpha=0.3).partition(data[:, -1], seed=0)):
        np.savetxt(folder / f"{number:02}.csv", data[rows], "%g", ",", header=",".join(names), comments="")
files = sorted((options.data or folder).glob("*.csv")) or parser.error(f"found no *.csv in {options.data}")
names, clients = [*np.loadtxt(files[0], str, delimiter=",", comments=None, max_rows=1, ndmin=1)], []
for path in files:
    try:
        head, *cells = np.loadtxt(path, str, delimiter=",", comments=None, ndmin=2)
        rows = np.array(cells, np.float32)
    except ValueError as error:
        parser.error(f"{path}: expected the names of columns, and rows of numbers, found another text: {error}")
    if [*head] != names or len(rows) < 2 or not np.isfinite(rows).all() or (rows[:, -1] != abs(rows[:, -1] // 1)).any():
        parser.error(f"{path}: expected the columns of {files[0]}, and two rows or more that end with a class 0, 1, …")
    clients.append({"x": np.insert(rows[:, :-1], 0, 1, axis=1), "y": rows[:, -1].astype(np.int32)})
training = [{name: np.delete(rows, np.s_[::5], axis=0) for name, rows in client.items()} for client in clients]
held_out = {name: np.concatenate([client[name][::5] for client in clients]) for name in ("x", "y")}
FEATURES, CLASSES = len(names), 1 + max(int(client["y"].max()) for client in clients)
MODEL, ROWS = (np.float32, [FEATURES, CLASSES]), {"x": (np.float32, [None, FEATURES]), "y": (np.int32, [None])}


@fedstack.python_computation([MODEL, ROWS], {"model": MODEL, "rows": np.float32})
def train_on_client(model, rows):
    for _ in range(20):  # steps down the slope of the cross entropy
        odds = np.exp(rows["x"] @ model - (rows["x"] @ model).max(axis=1, keepdims=True))
        error = odds / odds.sum(axis=1, keepdims=True) - np.eye(CLASSES, dtype=np.float32)[rows["y"]]
        model = model - np.float32(0.1) * rows["x"].T @ error / np.float32(max(len(error), 1))
    return {"model": model, "rows": np.float32(len(rows["y"]))}


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), fl.FederatedType(ROWS, fl.CLIENTS))
def train_round(model, clients):
    trained = fl.federated_map(train_on_client, (fl.federated_broadcast(model), clients))
    return fl.federated_mean(trained.model, weight=trained.rows)


fedstack.set_sync_local_execution_context()
model, curve = np.zeros(MODEL[1], np.float32), []
for number in range(1, options.rounds + 1):
    model = train_round(model, training)
    curve.append(float(((held_out["x"] @ model).argmax(axis=1) == held_out["y"]).mean()))
    print(f"round {number}: accuracy {curve[-1]:.3f}")
axes = Figure((6.4, 4), layout="constrained").add_subplot(xlabel="round", ylabel="accuracy on held-out rows")
axes.plot(range(1, options.rounds + 1), curve, ".-")
options.out.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(picture := options.out / "fedavg_own_files.svg")
print(f"accuracy {curve[-1]:.2f} after {options.rounds} rounds, with {len(clients)} clients\npicture: {picture}")
