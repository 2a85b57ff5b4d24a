"""Runs functions of JAX: scalars, chains, and rounds of federated averaging beside hand-written JAX on two threads."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import fedstack
from benchmarks.harness import Effort, Floor, Measurement, compare, compare_with_all
from benchmarks.scalars import measure_halves
from benchmarks.stack import TwoThreads, running

Tree = dict[str, NDArray[Any]]
_RATE = 0.1
_HIDDEN = 200


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures scalars from a list and from an array, a chain, and rounds with a linear model and with a network."""
    yield from measure_halves(fedstack.jax_computation(np.float32)(lambda x: x / 2), "JAX", effort)
    yield _measure_chain(effort)
    for hidden in (0, _HIDDEN):
        yield from _measure_round(effort, hidden)


def _measure_chain(effort: Effort) -> Measurement:
    """Measures functions that follow each other, beside one that was fused by hand."""
    count = effort.pick(20, 100, 100)
    grow = fedstack.jax_computation(np.float32)(lambda x: x * 1.001 + 0.5)

    @fl.federated_computation(np.float32)
    def chain(x: Any) -> Any:
        for _ in range(count):
            x = grow(x)
        return x

    @fedstack.jax_computation(np.float32)
    def fused(x: Any) -> Any:
        for _ in range(count):
            x = x * 1.001 + 0.5
        return x

    with running(None):
        assert np.isclose(chain(1.0), fused(1.0))
        name = f"{count} functions that follow each other, JAX"
        return compare(name, lambda: fused(1.0), lambda: chain(1.0), effort, times=3, reach="≤ 3 × fused by hand")


def _loss(model: Any, x: Any, y: Any) -> Any:
    if "inner" in model:
        x = jax.nn.relu(x @ model["inner"])
    return -jnp.take_along_axis(jax.nn.log_softmax(x @ model["outer"] + model["bias"]), y[:, None], 1).mean()


def _update(model: Any, x: Any, y: Any) -> Any:
    def step(trained: Any, batch: Any) -> Any:
        return jax.tree.map(lambda old, new: old - _RATE * new, trained, jax.grad(_loss)(trained, *batch)), None

    return jax.tree.map(lambda new, old: new - old, jax.lax.scan(step, model, (x, y))[0], model)


def _measure_round(effort: Effort, hidden: int) -> Iterator[Measurement]:
    clients, features, classes = effort.pick(3, 100, 100), effort.pick(4, 784, 784), effort.pick(3, 62, 62)
    batches, size = 5, effort.pick(2, 20, 20)
    random = np.random.default_rng(0)
    model = _model(random, features, effort.pick(2 * bool(hidden), hidden, hidden), classes)
    x = random.standard_normal((clients, batches, size, features), np.float32)
    y = random.integers(0, classes, (clients, batches, size)).astype(np.int32)
    average, floor = _round(model, x, y), _floor(x, y)
    data = [{"x": x[client], "y": y[client]} for client in range(clients)]
    kind = f"{features}→{hidden}→{classes}" if hidden else f"{features}→{classes}"
    with running(2), TwoThreads() as two:
        for name, found in average(model, data).items():
            assert np.allclose(found, floor(model, two)[name], atol=1e-6)
        floors = [Floor(lambda: floor(model, two), times=1.15, reach="≤ 1.15 × two threads that scan clients")]
        name = f"FedAvg {kind}, {clients} clients × {batches * size}, JAX, 2 threads"
        yield from compare_with_all(name, floors, lambda: average(model, data), effort)


def _model(random: np.random.Generator, features: int, hidden: int, classes: int) -> Tree:
    last = {
        "outer": 0.05 * random.standard_normal((hidden or features, classes), np.float32),
        "bias": np.zeros(classes, np.float32),
    }
    return {"inner": 0.05 * random.standard_normal((features, hidden), np.float32), **last} if hidden else last


def _round(model: Tree, x: NDArray[Any], y: NDArray[Any]) -> Callable[[Tree, Sequence[Tree]], Tree]:
    model_type = fl.to_type({name: (np.float32, array.shape) for name, array in model.items()})
    data_type = fl.to_type({"x": (np.float32, x.shape[1:]), "y": (np.int32, y.shape[1:])})
    leaf = fedstack.jax_computation(model_type, data_type)(lambda model, data: _update(model, data["x"], data["y"]))

    @fl.federated_computation(fl.FederatedType(model_type, fl.SERVER), fl.FederatedType(data_type, fl.CLIENTS))
    def average(model: Any, data: Any) -> Any:
        return fl.federated_mean(fl.federated_map(leaf, (fl.federated_broadcast(model), data)))

    return average


def _floor(x: NDArray[Any], y: NDArray[Any]) -> Callable[[Tree, TwoThreads], Tree]:
    """Returns the best hand-written round that we know: two threads, each of which scans half of the clients."""

    def add(model: Any) -> Callable[[Any, Any], Any]:
        return lambda total, client: (jax.tree.map(jnp.add, total, _update(model, *client)), None)

    @jax.jit
    def summed(model: Any, x: Any, y: Any) -> Any:
        return jax.lax.scan(add(model), jax.tree.map(jnp.zeros_like, model), (x, y))[0]

    middle = len(x) // 2

    def floor(model: Tree, two: TwoThreads) -> Tree:
        halves: Any = two.run(
            lambda: jax.tree.map(np.asarray, summed(model, x[:middle], y[:middle])),
            lambda: jax.tree.map(np.asarray, summed(model, x[middle:], y[middle:])),
        )
        return {name: (halves[0][name] + halves[1][name]) / len(x) for name in model}

    return floor
