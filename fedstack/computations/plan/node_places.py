"""Tells where the nodes of a federated computation run: at the clients, as an aggregation, or nowhere."""

from collections.abc import Iterator
from typing import TypeGuard

from fedstack.computations.plan.graph import Function, IntrinsicCall, Node, Selection, Symbol, nodes_of
from fedstack.computations.plan.intrinsics import INTRINSICS
from fedstack.computations.types.type_structure import is_placed_at_clients

_TRANSPARENT = {
    "federated_broadcast",
    "federated_value_at_clients",
    "federated_value_at_server",
    "federated_zip_at_clients",
    "federated_zip_at_server",
}
_CLIENT_WORK = {"federated_map", "federated_eval_at_clients"}
_SELECTS = {"federated_select", "federated_secure_select"}


def is_client_work(node: Node) -> bool:
    """Returns whether a node runs at each client."""
    return isinstance(node, IntrinsicCall) and node.uri in _CLIENT_WORK


def is_aggregation(node: Node) -> bool:
    """Returns whether a node takes values of clients together."""
    return isinstance(node, IntrinsicCall) and node.uri in INTRINSICS and INTRINSICS[node.uri].aggregates


def is_select(node: Node) -> TypeGuard[IntrinsicCall]:
    """Returns whether a node gives clients slices of what the server has."""
    return isinstance(node, IntrinsicCall) and node.uri in _SELECTS


def is_barrier(node: Node) -> bool:
    """Returns whether what needs the node is in a later phase."""
    return is_aggregation(node) or is_select(node)


def is_zip_or_broadcast(node: Node) -> TypeGuard[IntrinsicCall]:
    """Returns whether a node is a call of an intrinsic that only says where a value is, or with which others."""
    return isinstance(node, IntrinsicCall) and node.uri in _TRANSPARENT


def is_transparent(node: Node) -> bool:
    """Returns whether a node runs nothing, so that its value stands where that of its operands does."""
    return isinstance(node, Selection) or is_zip_or_broadcast(node)


def made_anew(function: Function) -> frozenset[Node]:
    """Returns the nodes at clients that each phase makes for itself, in place of one for all others.

    A sequence that is mapped is made as somebody iterates over it, in each pass anew. What one phase kept for another
    would be its elements, of which nobody knows the order of another pass. So these are maps that only map sequences,
    and zips with such, as far as only clients read them.
    """
    read_elsewhere = set(_deep(function.result))
    for node in function.nodes:
        if not is_transparent(node) and not is_client_work(node) and not is_aggregation(node):
            for operand in node.operands():
                read_elsewhere.update(_deep(operand))
    anew: set[Node] = set()
    for node in function.nodes:
        if isinstance(node, IntrinsicCall) and node not in read_elsewhere and is_placed_at_clients(node.type):
            reads_anew = any(operand in anew for symbol in node.operands() for operand in nodes_of(symbol))
            if (is_zip_or_broadcast(node) and reads_anew) or _only_maps_sequences(node, reads_anew):
                anew.add(node)
    return frozenset(anew)


def _only_maps_sequences(node: IntrinsicCall, reads_anew: bool) -> bool:
    """Returns whether a node maps sequences or, of what does, selects members, and does nothing else."""
    if node.uri != "federated_map":
        return False
    maps = [inner for inner in node.functions[0].nodes if not isinstance(inner, Selection)]
    return (bool(maps) or reads_anew) and all(
        isinstance(inner, IntrinsicCall) and inner.uri == "sequence_map" for inner in maps
    )


def _deep(symbol: Symbol) -> Iterator[Node]:
    for node in nodes_of(symbol):
        yield node
        if is_transparent(node):
            for operand in node.operands():
                yield from _deep(operand)
