"""The example with FedAvg and FedProx, in JAX and optax."""

import contextlib
import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import federated_language as fl
import jax
import numpy as np
import optax
import pytest
from matplotlib.image import imread
from serving import served

import fedstack

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The module, with fewer steps of each client than it has alone: a CNN takes seconds for each to be compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        module = importlib.import_module("fedprox_jax")
        patch.setattr(module, "BATCHES", 3)
        patch.setattr(module, "BATCH_SIZE", 32)
        yield module


def bits(model: dict[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in model.items()}


@pytest.mark.parametrize(
    ("network", "optimizer", "bound"), [("MLP", "sgd", 0.8), ("MLP", "adam", 0.6), ("CNN", "sgd", 0.5)]
)
def test_both_algorithms_learn_in_a_few_rounds(example: ModuleType, network: str, optimizer: str, bound: float) -> None:
    with fedstack.create_sync_local_execution_context():
        _, accuracies = example.train([network], optimizer, mu=0.1, num_rounds=30)
    assert accuracies.keys() == {(network, "FedAvg"), (network, "FedProx")}
    assert {run: found for run, found in accuracies.items() if max(found) < bound} == {}


def without_penalty(example: ModuleType, name: str) -> Any:
    """Returns a round in which no client's loss has a penalty: FedAvg as it is written down."""
    network, optimizer = example.NETWORKS[name], example.OPTIMIZERS["sgd"]
    model_type = {name: (np.float32, shape) for name, shape in network.shapes.items()}
    shape = [example.BATCHES, example.BATCH_SIZE]
    data_type = {"image": (np.float32, [*shape, 8, 8]), "digit": (np.int32, shape)}

    @fedstack.jax_computation(model_type, data_type)
    def train_on_client(model, data):
        def loss(model, batch):
            logits = network.logits(model, batch["image"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["digit"]).mean()

        def step(state, batch):
            model, memory = state
            updates, memory = optimizer.update(jax.grad(loss)(model, batch), memory, model)
            return (optax.apply_updates(model, updates), memory), None

        return jax.lax.scan(step, (model, optimizer.init(model)), data)[0][0]

    @fl.federated_computation(fl.FederatedType(model_type, fl.SERVER), fl.FederatedType(data_type, fl.CLIENTS))
    def train_round(model, data):
        return fl.federated_mean(fl.federated_map(train_on_client, (fl.federated_broadcast(model), data)))

    return train_round


def test_fedprox_without_a_penalty_has_the_bits_of_fedavg(example: ModuleType) -> None:
    network = example.NETWORKS["MLP"]
    random = np.random.default_rng(0)
    clients, _ = example.load_clients(20, 2, random)
    data = [example.draw_batches(client, example.BATCHES, example.BATCH_SIZE, random) for client in clients]
    fedprox, fedavg = example.make_round(network, example.OPTIMIZERS["sgd"]), without_penalty(example, "MLP")
    found, expected = (example.initial_model(network, 0) for _ in range(2))
    with fedstack.create_sync_local_execution_context():
        for _ in range(3):
            found, expected = fedprox(found, 0.0, data), fedavg(expected, data)
        assert bits(found) == bits(expected)
        assert bits(fedprox(found, 0.1, data)) != bits(fedprox(found, 0.0, data))


def run_on_workers(example: ModuleType, picture: Path, *arguments: str) -> list[str]:
    """Runs the example for two rounds here and on workers; returns what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        example.main(["--rounds", "2", "--picture", str(picture), *arguments])
    return printed.getvalue().splitlines()


def test_workers_that_refuse_code_have_the_bits_of_this_process(example: ModuleType, tmp_path: Path) -> None:
    lines = run_on_workers(example, tmp_path / "fedprox.png", "--workers")
    here, there = [[line.partition(": ")[2] for line in part] for part in (lines[:2], lines[3:5])]
    assert here == there  # the accuracies after each round
    assert lines[2:3] + lines[5:] == [f"picture: {tmp_path / 'fedprox.png'}", "the workers' models have the same bits"]


@pytest.mark.long
def test_workers_that_were_started_without_options_have_the_bits_of_this_process(
    example: ModuleType, tmp_path: Path
) -> None:
    with served() as first, served() as second:
        targets = [first.target, second.target]
        lines = run_on_workers(example, tmp_path / "fedprox.png", "--networks", "MLP", "--workers", *targets)
    assert lines[-1] == "the workers' models have the same bits"


def test_the_picture_has_the_colours_of_both_networks(example: ModuleType, tmp_path: Path) -> None:
    runs = [(name, algorithm) for name in ("MLP", "CNN") for algorithm in ("FedAvg", "FedProx")]
    example.draw({run: [0.1 * height, 0.5] for height, run in enumerate(runs)}, tmp_path / "fedprox.png")
    pixels = (imread(tmp_path / "fedprox.png")[..., :3] * 255).round().astype(int).reshape(-1, 3)
    assert {(0x0B, 0x6E, 0x99), (0xC8, 0x55, 0x3D)} <= set(map(tuple, pixels.tolist()))


def test_clients_hold_few_kinds_of_digits_and_nobody_trains_on_what_is_held_out(example: ModuleType) -> None:
    clients, (image, _) = example.load_clients(50, 2, np.random.default_rng(0))
    assert max(len(np.unique(digit)) for _, digit in clients) <= 4
    images = np.concatenate([image, *(images for images, _ in clients)])
    assert len(np.unique(images, axis=0)) == len(images) == 1797
