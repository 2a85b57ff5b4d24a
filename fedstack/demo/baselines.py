"""Compares the shared model with what clients reach without averaging: alone, and with all data in one place."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.contexts.progress_display import ProgressSnapshot, display
from fedstack.data.client_data import batches
from fedstack.data.client_seeds import client_seeds

Images = Mapping[str, NDArray[Any]]
# The models gain little after so many rounds; after fewer, that of one place may still be below the shared one.
_ROUNDS_ALONE, _ROUNDS_IN_ONE_PLACE = 8, 10


@attrs.frozen
class Comparison:
    """Accuracies of the shared model, and of models that are trained without averaging.

    A client is judged by the held-out images of those kinds of digits that it has, since it will meet such digits.

    Attributes:
      shared: The accuracy of the shared model on such images, `float64[clients]`.
      alone: The accuracy of a model that the client trains alone on the same images, `float64[clients]`.
      alone_on_all: The mean accuracy of the models of single clients on all held-out images.
      one_place: The accuracy on all held-out images of a model that is trained on all data in one place.
    """

    shared: NDArray[np.float64]
    alone: NDArray[np.float64]
    alone_on_all: float
    one_place: float


def compare(
    example: Any,
    first: Any,
    last: Any,
    training: Sequence[Images],
    evaluation: Iterable[Iterable[Images]],
    num_rounds: int,
    seed: int,
) -> Comparison:
    """Trains a model for each client and one on all data, and evaluates them and the shared model.

    This takes about a tenth of the time of a hundred rounds.

    Args:
      example: The module of the example, with functions in Python.
      first: The model before the first round, from which all models start.
      last: The shared model after the last round.
      training: The images of each client.
      evaluation: The batches of held-out images of each client.
      num_rounds: The number of rounds of the shared model. The others have as many, but at most ten.
      seed: The seed of the demo.
    """
    held_out = _joined(batch for held in evaluation for batch in held)
    *seeds, seed_of_all = client_seeds(seed, len(training) + 1)
    shared, alone, alone_on_all = list[float](), list[float](), list[float]()

    # The functions are called without a context, because so many small calls would take more time than the work.
    def trained(images: Images, client_seed: int, rounds: int) -> Any:
        model = first
        for number in range(min(rounds, num_rounds)):
            data = batches(images, example.BATCH_SIZE, shuffle_seed=client_seed, round=number)
            model = example.train_on_client.__wrapped__(model, data)["model"]
        return model

    def is_right(model: Any) -> NDArray[np.bool_]:
        _, odds = example.predict(model, held_out["image"])
        return odds.argmax(axis=1) == held_out["digit"]

    def snapshot() -> ProgressSnapshot:
        return ProgressSnapshot(len(alone), len(training))

    shared_is_right = is_right(last)
    with display("Training alone", "clients", snapshot):
        for images, client_seed in zip(training, seeds):
            right = is_right(trained(images, client_seed, _ROUNDS_ALONE))
            own = np.isin(held_out["digit"], images["digit"])
            shared.append(float(shared_is_right[own].mean()))
            alone_on_all.append(float(right.mean()))
            alone.append(float(right[own].mean()))
        one_place = is_right(trained(_joined(training), seed_of_all, _ROUNDS_IN_ONE_PLACE))
    return Comparison(np.array(shared), np.array(alone), float(np.mean(alone_on_all)), float(one_place.mean()))


def _joined(parts: Iterable[Images]) -> Images:
    found = list(parts)
    return {name: np.concatenate([part[name] for part in found]) for name in ("image", "digit")}
