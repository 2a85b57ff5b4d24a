"""Finds the clients of an argument that do not take part in a call."""

from collections.abc import Sequence
from typing import cast

from fedstack.computations.types.language import FederatedType, StructType, Type
from fedstack.computations.types.type_structure import contains_federated, fields_of, is_client_valued, zeros
from fedstack.computations.values.records import split_struct
from fedstack.executors.survivors.client_failures import ClientFailure


def split_absent(value: object, type_spec: Type, path: str = "arg") -> tuple[object, dict[int, ClientFailure]]:
    """Splits an argument into values for all clients and the clients that do not take part.

    Args:
      value: The argument. In a list with one value per client, a `ClientFailure` stands for an absent client.
      type_spec: The type of the argument.
      path: The path of the argument, for error messages.

    Returns:
      The argument with zeros for absent clients, and the absent clients by index.
    """
    if isinstance(type_spec, FederatedType) and is_client_valued(type_spec) and isinstance(value, (list, tuple)):
        values = cast("Sequence[object]", value)
        absent = [client for client, one in enumerate(values) if isinstance(one, ClientFailure)]
        if not absent:
            return values, {}
        filled = list(values)
        for client in absent:
            filled[client] = zeros(type_spec.member, 0)
        return filled, {client: ClientFailure() for client in absent}
    if isinstance(type_spec, StructType) and contains_federated(type_spec):
        found: dict[int, ClientFailure] = {}
        members: list[object] = []
        for member, (_, member_type) in zip(split_struct(value, type_spec, path), fields_of(type_spec)):
            filled, absent_here = split_absent(member, member_type, path)
            members.append(filled)
            found.update(absent_here)
        return (tuple(members), found) if found else (value, found)
    return value, {}
