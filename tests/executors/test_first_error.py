"""Of several clients that fail, the error is that of the first one, whatever ran together and whatever failed first."""

from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import FedstackError, LeafError, TypeMismatchError
from fedstack.executors.base import single_block

NUMBERS = fl.FederatedType(np.float64, fl.CLIENTS)
WRONG_TYPE, RAISES, RAISES_LATER, UNREADABLE = 1.0, 2.0, 3.0, 4.0


class Unreadable(float):
    """A number whose conversion raises, as that of a lazy one may."""

    def __float__(self):
        raise RuntimeError("cannot be read")


@fedstack.python_computation(np.float64, np.float64)
def first(x):
    if x == RAISES:
        raise ValueError("raised at once")
    if x == UNREADABLE:
        return Unreadable(x)
    return "text" if x == WRONG_TYPE else x


@fedstack.python_computation(np.float64, np.float64)
def second(x):
    if x == RAISES_LATER:
        raise ValueError("raised later")
    return x


@fl.federated_computation(NUMBERS)
def total(values):
    return fl.federated_sum(fl.federated_map(second, fl.federated_map(first, values)))


def values_of(**failures: float) -> list[float]:
    """Returns the values of 16 clients, some of which fail: their index, as in c5, and how."""
    values = [0.0] * 16
    for client, failure in failures.items():
        values[int(client[1:])] = failure
    return values


@pytest.fixture(params=["blocks", "one block", "five at once", "one thread", "debug", "2 workers"])
def stack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "2 workers":
        with (
            fedstack.service.local_worker_pool(2) as pool,
            fedstack.create_sync_remote_execution_context(pool) as context,
            fedstack.use_context(context),
        ):
            yield
        return
    options: dict[str, dict[str, Any]] = {
        "five at once": {"clients_per_thread": 5},
        "one thread": {"max_concurrent_clients": 1},
        "debug": {"debug": True},
    }
    if request.param == "blocks":
        monkeypatch.setattr(single_block, "BLOCK_SECONDS", 0.0)
    with (
        fedstack.create_sync_local_execution_context(**options.get(request.param, {})) as context,
        fedstack.use_context(context),
    ):
        yield


@pytest.mark.parametrize(
    ("failures", "kind", "text"),
    [
        ({"c5": WRONG_TYPE, "c10": RAISES}, TypeMismatchError, "the result of 'first' at client 5"),
        ({"c5": RAISES, "c10": WRONG_TYPE}, LeafError, "'first' raised ValueError: raised at once; at client 5"),
        ({"c5": RAISES_LATER, "c10": RAISES}, LeafError, "'second' raised ValueError: raised later; at client 5"),
        ({"c5": RAISES_LATER, "c10": WRONG_TYPE}, LeafError, "'second' raised ValueError: raised later; at client 5"),
        ({"c4": RAISES, "c5": RAISES_LATER}, LeafError, "'first' raised ValueError: raised at once; at client 4"),
        ({"c4": RAISES_LATER, "c5": RAISES_LATER, "c6": RAISES}, LeafError, "raised later; at client 4"),
        ({"c5": UNREADABLE, "c10": RAISES}, LeafError, "'first' raised RuntimeError: cannot be read; at client 5"),
        ({"c4": WRONG_TYPE, "c5": UNREADABLE}, TypeMismatchError, "the result of 'first' at client 4"),
        ({"c4": RAISES_LATER, "c5": UNREADABLE}, LeafError, "raised later; at client 4"),
    ],
    ids=["type", "raises", "later", "later before a type", "at once", "three", "unreadable", "after a type", "after"],
)
def test_the_error_is_that_of_the_first_client_that_fails(
    stack: None, failures: dict[str, float], kind: type[FedstackError], text: str
) -> None:
    for _ in range(2):
        with pytest.raises(kind, match=text) as caught:
            total(values_of(**failures))
        assert caught.value.client_index == int(min(failures, key=lambda client: int(client[1:]))[1:])
        assert total(values_of()) == 0.0  # the next call knows how long clients take
