"""Gives each client a random stream of its own."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeGuard, cast

import numpy as np

from fedstack.errors import TypeMismatchError
from fedstack.foundations.number_checks import checked_seed
from fedstack.foundations.value_text import describe

ClientId: TypeAlias = "str | bytes | int"


def client_seeds(seed: int, n: "int | Sequence[ClientId]", *, round: int | None = None) -> list[int]:
    """Returns reproducible and independent seeds, one for each client.

    Given a number of clients, the seed of client k depends only on `seed` and k, so increasing `n` does not change the
    seeds of existing clients. Given ids, the seed of a client depends only on `seed`, its id and `round`, whoever takes
    part with it. So each client has a random stream of its own in each round, in every context and on all machines.

    Each seed is the first 64-bit word of a `SeedSequence` with the entropy `seed`. Its spawn key is k, as by NumPy's
    `spawn`, or the first 128 bits of the SHA-256 of the id; `round` follows.

    Args:
      seed: A non-negative integer of any size.
      n: The number of clients, or their ids: strings, bytes and integers.
      round: The number of the round; `None` for seeds that are the same in all rounds.

    Returns:
      Integers in [0, 2**64), which fit `np.uint64`.

    Raises:
      TypeMismatchError: If an argument is not an integer, or an id is of another type.
      InvalidValueError: If an argument is negative.
    """
    entropy = checked_seed("seed", seed)
    last = () if round is None else (checked_seed("round", round),)
    keys = range(checked_seed("n", n)) if _is_number(n) else map(_key_of, checked_ids(n))
    return [
        int(np.random.SeedSequence(entropy, spawn_key=(key, *last)).generate_state(1, np.uint64)[0]) for key in keys
    ]


def _is_number(n: object) -> TypeGuard[int]:
    return not isinstance(n, Iterable)


def _key_of(client_id: ClientId) -> int:
    """Returns a number that no other id has: 7, "7" and b"7" are different clients."""
    content = client_id if isinstance(client_id, bytes) else str(client_id).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(type(client_id).__name__[:1].encode() + content).digest()[:16], "big")


def checked_ids(client_ids: object) -> list[ClientId]:
    """Returns ids of clients as strings, bytes and whole numbers.

    Raises:
      TypeMismatchError: If the ids are not in a list or the like, or an id is something else.
    """
    if isinstance(client_ids, (str, bytes, Mapping)) or not isinstance(client_ids, Iterable):
        raise TypeMismatchError(
            f"Expected a list of client ids, found {describe(cast(object, client_ids))}; put a single id into a list"
        )
    ids = list(cast("Iterable[object]", client_ids))
    if set(map(type, ids)) <= {str, int, bytes}:
        return cast("list[ClientId]", ids)
    return [_checked_id(one) for one in ids]


def _checked_id(client_id: object) -> ClientId:
    found: object = cast("np.generic[object]", client_id).item() if isinstance(client_id, np.generic) else client_id
    if isinstance(found, (str, bytes, int)) and not isinstance(found, bool):
        return str(found) if isinstance(found, str) else found
    raise TypeMismatchError(
        "Expected strings, bytes and whole numbers as client ids, found "
        f"{describe(cast(object, client_id))}; convert it"
    )
