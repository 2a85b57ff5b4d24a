"""Converts the clients' contributions to a phase into a message, and back.

The reader checks all contributions, because a worker may send wrong ones.
"""

from bisect import bisect_left
from collections.abc import Sequence, Set
from typing import cast

import numpy as np

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.plan.tasks import Fold, Phase
from fedstack.computations.types.language import Type
from fedstack.computations.values.ownership import whole_buffer
from fedstack.errors import InvalidValueError
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.folds.aggregate_state import (
    ABSENT,
    BLOCK,
    BLOCK_LEVEL,
    AggregatePartials,
    cut_clients,
    split_blocks,
)
from fedstack.executors.folds.fold_states import FoldState, MeanState, TreeState
from fedstack.executors.folds.leaf_fold import LeafFold
from fedstack.executors.folds.tree_fold import Partial, next_of
from fedstack.executors.survivors.failure_messages import read_failures, write_failures, wrong_clients
from fedstack.executors.survivors.outcomes import Ran
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.proto.extensions_pb2 import PhaseResponse

_MAX_LEVEL = 62
# The maximum number of clients that are said to have run together.
_MOST_TOLD = 1 << 20
_MOST_INDEX = 1 << 62


def write_result(
    phase: Phase, states: Sequence[FoldState | None], result: PhaseResult, packer: Packer
) -> PhaseResponse:
    """Returns a message with the contributions of a range of clients.

    Args:
      phase: The phase.
      states: The states of the phase's folds, as returned by `partial_states`.
      result: The contributions.
      packer: Packs the values.
    """
    response = PhaseResponse()
    for fold, state, partials in zip(phase.folds, states, result.partials):
        message = response.fold.add()
        if isinstance(state, MeanState):
            count, weights, leaves = cast("tuple[int, list[Partial] | None, list[list[Partial]]]", partials)
            message.clients = count
            if state.weights is not None:
                _write_tree(message.weights, weights or [], state.weights.partial_type, packer)
            _write_trees(message, leaves, state.leaves, packer)
        elif isinstance(state, TreeState):
            _write_trees(message, cast("list[list[Partial]]", partials), state.leaves, packer)
        else:
            nodes, values = cast(AggregatePartials, partials)
            _write_tree(message.tree.add(), nodes, accumulator_type(fold), packer)
            for client in sorted(client for client, value in values.items() if value is not ABSENT):
                packer.pack(message.value.add(), values[client], fold.member)
    write_failures(response, result.failures, result.again)
    for clients, _, seconds in result.ran:
        response.ran.add(first_client=clients.start, clients=len(clients), seconds=seconds)
    for column, (_, member) in zip(result.columns, phase.held):
        packer.pack_column(response.held.add(), column, member, "a result of the clients")
    return response


def accumulator_type(fold: Fold) -> Type:
    """Returns the type of the accumulator of a general aggregation."""
    return fold.server_types[0]


def _write_trees(
    message: PhaseResponse.Contribution, trees: Sequence[list[Partial]], leaves: Sequence[LeafFold], packer: Packer
) -> None:
    for tree, leaf in zip(trees, leaves):
        _write_tree(message.tree.add(), tree, leaf.partial_type, packer)


def _write_tree(message: PhaseResponse.Tree, tree: list[Partial], type_spec: Type, packer: Packer) -> None:
    for partial in tree:
        written = message.partial.add(level=partial.level, position=partial.position)
        if partial.value is not None:
            packer.pack(written.value, partial.value, type_spec)


def read_result(
    phase: Phase,
    states: Sequence[FoldState | None],
    clients: range,
    response: PhaseResponse,
    unpacker: Unpacker,
    tolerance: Tolerance | None = None,
    address: str = "",
) -> "ReceivedResult":
    """Returns the contributions of a range of clients from a worker's response.

    Args:
      phase: The phase that was sent.
      states: The states of the phase's folds, as returned by `partial_states`.
      clients: The clients of the request.
      response: The response.
      unpacker: Unpacks the values. It must have been created with the number of clients.
      tolerance: The conditions under which clients may fail, or are absent; `None` if none may fail.
      address: The address of the worker, for error messages.

    Returns:
      The contributions, which are complete once their bytes have been received.

    Raises:
      InvalidValueError: If the response does not match the request.
      TypeMismatchError: If a value does not match its type.
    """
    if (len(response.fold), len(response.held)) != (len(phase.folds), len(phase.held)):
        raise InvalidValueError(
            f"Expected the results of {len(phase.folds)} aggregations and {len(phase.held)} columns, found "
            f"{len(response.fold)} aggregations and {len(response.held)} columns; check that the worker runs the same "
            "version of fedstack"
        )
    absent = () if tolerance is None else tolerance.absent_in(clients)
    failures, again = read_failures(response, clients, tolerance, address)
    missing = sorted([*failures, *absent])
    trees: list[list[Partial]] = []

    def read(tree: PhaseResponse.Tree, leaf: LeafFold) -> list[Partial]:
        what = f"the fold of value{leaf.path}"
        trees.append(_read_tree(tree, leaf.partial_type, what, clients, missing, again.keys(), unpacker))
        return trees[-1]

    def read_all(message: PhaseResponse.Contribution, leaves: Sequence[LeafFold]) -> list[list[Partial]]:
        if len(message.tree) != len(leaves):
            raise InvalidValueError(
                f"Expected the folds of {len(leaves)} tensors, found the folds of {len(message.tree)}; check that the "
                "worker runs the same version of fedstack"
            )
        return [read(tree, leaf) for tree, leaf in zip(message.tree, leaves)]

    partials: list[object] = []
    for fold, state, message in zip(phase.folds, states, response.fold):
        if isinstance(state, MeanState):
            if message.clients != len(clients) - len(missing) - len(again):
                raise wrong_clients(clients, message.clients)
            weights = None if state.weights is None else read(message.weights, state.weights)
            partials.append((message.clients, weights, read_all(message, state.leaves)))
        elif isinstance(state, TreeState):
            partials.append(read_all(message, state.leaves))
        else:
            partials.append(_read_aggregate(message, fold, clients, missing, again.keys(), unpacker))
    for message in response.held:
        without = [client for client, record in zip(clients, message.stored.record) if not record]
        if not again.keys() | set(missing) >= set(without):
            raise wrong_clients(clients, f"no results of clients {without}, some of which are done")
    # Told by the worker, so the numbers are limited: they may be of clients that it has already handed in.
    ran: list[Ran] = []
    for one in response.ran:
        first = min(one.first_client, _MOST_INDEX)
        ran.append((range(first, first + min(one.clients, _MOST_TOLD)), "", one.seconds))
    columns = [
        unpacker.unpack_column(message, member, "a result of the clients")
        for message, (_, member) in zip(response.held, phase.held)
    ]
    return ReceivedResult(PhaseResult(partials, columns, failures, ran, again), trees)


class ReceivedResult:
    """A result of a phase whose bytes may not have been received yet."""

    def __init__(self, result: PhaseResult, trees: Sequence[list[Partial]]) -> None:
        self._result = result
        self._trees = trees

    def complete(self) -> PhaseResult:
        """Returns the result. Call this method after all bytes have been received.

        The result owns the memory of its partial results, so that the caller may overwrite them.
        """
        for tree in self._trees:
            tree[:] = [_owned(partial) for partial in tree]
        return self._result


def _owned(partial: Partial) -> Partial:
    """Returns a partial result that owns its array, if the array has memory of its own and is not part of a message."""
    buffer = None if partial.value is None or not np.ndim(partial.value) else whole_buffer(partial.value)
    return partial if buffer is None else partial._replace(value=buffer, owned=True)


def _read_aggregate(
    message: PhaseResponse.Contribution,
    fold: Fold,
    clients: range,
    missing: Sequence[int],
    again: Set[int],
    unpacker: Unpacker,
) -> AggregatePartials:
    """Returns the contribution to a general aggregation."""
    _, whole, _ = split_blocks(clients)
    cut = cut_clients(clients, again)
    if len(message.tree) != 1 or any(partial.level < BLOCK_LEVEL for partial in message.tree[0].partial):
        raise wrong_clients(clients, f"no tree over blocks of {BLOCK} clients")
    nodes = _read_tree(message.tree[0], accumulator_type(fold), f"the {fold.uri}", whole, missing, cut, unpacker)
    absent = set(missing)
    kept = sorted(cut - absent - again)
    if len(message.value) != len(kept):
        raise wrong_clients(clients, f"{len(message.value)} values instead of {len(kept)}")
    values = [unpacker.unpack(value, fold.member, f"a value of the {fold.uri}") for value in message.value]
    nobody = dict.fromkeys(cut & absent, ABSENT)
    return AggregatePartials(nodes, {**nobody, **dict(zip(kept, values))})


def _read_tree(
    tree: PhaseResponse.Tree,
    type_spec: Type,
    what: str,
    clients: range,
    missing: Sequence[int],
    without: Set[int],
    unpacker: Unpacker,
) -> list[Partial]:
    partials: list[Partial] = []
    left_out_clients = sorted(without)
    expected = next_of(clients.start, clients, without)
    for message in tree.partial:
        if message.level > _MAX_LEVEL or message.position << message.level != expected:
            raise wrong_clients(clients, f"the fold of block {message.position} of 2^{message.level} clients")
        first, behind = expected, expected + (1 << message.level)
        if bisect_left(left_out_clients, behind) > bisect_left(left_out_clients, first):
            raise wrong_clients(clients, f"the fold of clients {first} to {behind - 1}, some of which run again")
        expected = next_of(behind, clients, without)
        absent = bisect_left(missing, behind) - bisect_left(missing, first)
        if (absent == 1 << message.level) == message.HasField("value"):
            raise wrong_clients(clients, f"the fold of clients {first} to {behind - 1}, {absent} of them absent")
        value = cast(np.ndarray, unpacker.unpack(message.value, type_spec, what)) if message.HasField("value") else None
        partials.append(Partial(message.level, message.position, value, False))
    if expected != clients.stop:
        raise wrong_clients(clients, f"the fold of {expected - clients.start} of these clients")
    return partials
