"""Runs a round of federated averaging: logistic regression, trained at the clients by SGD in NumPy."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import federated_language as fl
import numpy as np
from numpy.typing import NDArray

import fedstack
from benchmarks.harness import Effort, Floor, Measurement, compare, compare_with_all
from benchmarks.stack import TwoThreads, running

Model = dict[str, NDArray[np.float32]]
Batch = Mapping[str, NDArray[Any]]
_RATE = np.float32(0.1)


def train(model: Any, batches: Iterable[Any]) -> tuple[Model, Any]:
    """Returns the change of the model over one epoch, and the number of examples."""
    weights, bias = model["weights"].copy(), model["bias"].copy()
    examples = 0
    for batch in batches:
        x, y = batch["x"], batch["y"]
        logits = x @ weights + bias
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        rows = len(y)
        logits[np.arange(rows), y] -= np.float32(1)
        logits *= _RATE / np.float32(rows)
        weights -= x.T @ logits
        bias -= logits.sum(axis=0)
        examples += rows
    weights -= model["weights"]
    bias -= model["bias"]
    return {"weights": weights, "bias": bias}, np.float32(examples)


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures a round, with the clients' batches as lists and as `fedstack.batches`, on one thread and on two."""
    model, data = make_clients(effort)
    (features, classes), examples = model["weights"].shape, len(data[0]["y"])
    size = effort.pick(4, 20, 20)
    name = f"FedAvg {features}→{classes}, {len(data)} clients × {examples}"
    lists = [
        [{key: array[i : i + size] for key, array in client.items()} for i in range(0, examples, size)]
        for client in data
    ]
    streams = [fedstack.batches(client, size) for client in data]
    average = make_round(features, classes)
    with running(1):
        for found, expected in zip(average(model, streams).values(), _loop(model, lists).values(), strict=True):
            assert np.allclose(found, expected, atol=1e-6)
        for kind, sequences in (("lists", lists), ("batches", streams)):
            yield compare(
                f"{name}, {kind}, 1 thread",
                lambda: _loop(model, lists),
                lambda sequences=sequences: average(model, sequences),
                effort,
                times=1.1,
            )
    with running(2), TwoThreads() as two:
        for kind, sequences in (("lists", lists), ("batches", streams)):
            floors = [
                Floor(lambda: _loop_by_two(model, lists, two), times=1.1),
                Floor(lambda: _loop(model, lists), "to one thread", 0.95),
            ]
            yield from compare_with_all(
                f"{name}, {kind}, 2 threads", floors, lambda sequences=sequences: average(model, sequences), effort
            )


def make_clients(effort: Effort) -> tuple[Model, list[dict[str, NDArray[Any]]]]:
    """Returns a model, and what clients have."""
    clients = effort.pick(3, 100, 100)
    features, classes, examples = effort.pick((4, 3, 6), (784, 62, 100), (784, 62, 100))
    random = np.random.default_rng(7)
    model: Model = {
        "weights": 0.01 * random.standard_normal((features, classes), np.float32),
        "bias": np.zeros(classes, np.float32),
    }
    data = [
        {
            "x": random.standard_normal((examples, features), np.float32),
            "y": random.integers(0, classes, examples).astype(np.int32),
        }
        for _ in range(clients)
    ]
    return model, data


def make_round(features: int, classes: int) -> Callable[[Model, Sequence[Any]], Model]:
    """Returns a round of federated averaging."""
    model_type = fl.to_type({"weights": (np.float32, [features, classes]), "bias": (np.float32, [classes])})
    data_type = fl.SequenceType(fl.to_type({"x": (np.float32, [None, features]), "y": (np.int32, [None])}))
    leaf = fedstack.python_computation([model_type, data_type], (model_type, np.float32))(train)

    @fl.federated_computation(fl.FederatedType(model_type, fl.SERVER), fl.FederatedType(data_type, fl.CLIENTS))
    def average(model: Any, data: Any) -> Any:
        trained = fl.federated_map(leaf, (fl.federated_broadcast(model), data))
        return fl.federated_mean(trained[0], trained[1])

    return cast("Callable[[Model, Sequence[Any]], Model]", average)


def _loop(model: Model, clients: Sequence[Sequence[Batch]]) -> Model:
    return _divide(*_weighted_sum(model, clients))


def _loop_by_two(model: Model, clients: Sequence[Sequence[Batch]], two: TwoThreads) -> Model:
    middle = len(clients) // 2
    first, second = two.run(
        lambda: _weighted_sum(model, clients[:middle]), lambda: _weighted_sum(model, clients[middle:])
    )
    total, weight = cast("tuple[Model, Any]", first)
    others, other_weight = cast("tuple[Model, Any]", second)
    for key, array in total.items():
        array += others[key]
    return _divide(total, weight + other_weight)


def _weighted_sum(model: Model, clients: Sequence[Sequence[Batch]]) -> tuple[Model, Any]:
    total = {key: np.zeros_like(array) for key, array in model.items()}
    weights = np.float32(0)
    for batches in clients:
        delta, weight = train(model, batches)
        for key, array in delta.items():
            np.multiply(array, weight, out=array)
            np.add(total[key], array, out=total[key])
        weights += weight
    return total, weights


def _divide(total: Model, weight: Any) -> Model:
    for array in total.values():
        np.divide(array, weight, out=array)
    return total
