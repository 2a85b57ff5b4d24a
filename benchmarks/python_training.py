"""Trains linear models one number at a time: work that holds the interpreter. Needs nothing but Python."""

from collections.abc import Iterable, Sequence

FEATURES = 8
_RATE = 0.01


def train(model: Iterable[float], seed: int, steps: int) -> tuple[float, ...]:
    """Returns the change of a model over steps of gradient descent, each on an example made from the seed."""
    start = [float(w) for w in model]
    weights = start
    state = int(seed)
    for _ in range(int(steps)):
        row: list[float] = []
        for _ in range(FEATURES):
            state = (1103515245 * state + 12345) % 2147483648
            row.append(state / 2147483648 - 0.5)
        error = sum([w * x for w, x in zip(weights, row)]) - row[0]
        weights = [w - _RATE * error * x for w, x in zip(weights, row)]
    return tuple([w - s for w, s in zip(weights, start)])


def train_all(model: Sequence[float], seeds: Sequence[int], steps: int) -> list[float]:
    """Returns the sum of the changes of several clients."""
    total = [0.0] * FEATURES
    for seed in seeds:
        total = [t + c for t, c in zip(total, train(model, seed, steps))]
    return total
