"""Finds out which states of clients a call of a program reads and updates."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path as FolderPath
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import (
    FederatedType,
    FunctionType,
    Struct,
    StructType,
    Type,
    contains_only_server_placed_data,
)
from fedstack.computations.types.type_structure import fields_of, is_client_valued, is_placed_at_clients
from fedstack.computations.values.records import split_struct
from fedstack.data.client_seeds import ClientId
from fedstack.data.client_states.store_folders import ClientStateFolders
from fedstack.errors import InvalidComputationError, TypeMismatchError
from fedstack.executors.stored.stored_results import ResultStore, StoringResults
from fedstack.program.clients.client_states import ClientStates
from fedstack.program.clients.saved_client_states import ClientState, SavedClientStates, check_once
from fedstack.program.value_reference import Path, part_of


@attrs.frozen(eq=False)
class StatesUpdate:
    """An update of clients' states by a part of a call's result.

    Attributes:
      states: The states; `None` if the call has no clients.
      client_ids: The clients of the call, in their order.
      path: What leads to the part.
      is_shared: Whether the part is one state for all clients.
    """

    states: ClientStates | None
    client_ids: Sequence[ClientId]
    path: Path
    is_shared: bool = False

    def begin(self, call: "asyncio.Task[object]") -> None:
        """Notes that the call begins."""
        if self.states is not None:
            self.states.begin(call)

    def storing(self, call: object) -> tuple[ResultStore, FolderPath] | None:
        """Returns where workers may write the new states until the call ends; see `ClientStates.storing`."""
        return None if self.states is None else self.states.storing(call, self.client_ids)

    def end(self, call: object, is_done: bool) -> None:
        """Notes that the call has ended, with all of its updates or with an error."""
        if self.states is not None:
            self.states.end(call, is_done)

    def apply(self, call: object, result: object) -> int:
        """Updates the states, and returns for how many clients."""
        if self.states is None:
            return 0
        part = part_of(result, self.path)
        states = [part] * len(self.client_ids) if self.is_shared else cast("Sequence[object]", part)
        return self.states.apply(self.client_ids, states, call)


def updates_of(arg: object, parameter: Type | None, result: Type) -> list[StatesUpdate]:
    """Returns how a call updates clients' states.

    Args:
      arg: The argument of the call.
      parameter: Its type.
      result: The type of the call's result.

    Raises:
      TypeMismatchError: If the argument has states of clients that were not selected.
      InvalidValueError: If it has those of a client twice.
      InvalidComputationError: If a part of the result is placed at clients, and is not a state of clients whose states
        are in the argument; or if it may be that of several.
    """
    if isinstance(result, FunctionType) or contains_only_server_placed_data(result):
        if isinstance(result, FunctionType):
            raise _not_seen(result)
        return []
    clients = list(_clients_in(arg, parameter))
    given = [found for value, member in clients for found in _given(value, member)]
    updates = list[StatesUpdate]()
    for path, part in _client_parts(result, ()):
        member = part.member
        fitting = [one for one in given if one[0].state_type.is_assignable_from(member)]
        if part.all_equal and not fitting:
            continue  # the program may see what all clients have
        if len(fitting) > 1 or any(update.states is fitting[0][0] for update in updates if fitting and update.states):
            raise InvalidComputationError(
                f"Expected one kind of clients' states with the type {member} in the argument of a computation that "
                f"returns such values once, found more; return one structure with all of a client's states, and pass "
                "an example of it as like"
            )
        if fitting:
            states, ids = fitting[0]
            check_once(ids)
            updates.append(StatesUpdate(states, ids, path, part.all_equal))
        elif clients and not any(len(value) for value, _ in clients):
            updates.append(StatesUpdate(None, [], path))
        elif given:
            types = " or ".join(str(states.state_type) for states, _ in given)
            raise InvalidComputationError(
                f"Expected states of the type {types} at the clients in the result {result}, found {member}; return "
                "states as they were given, or pass an example of the other type as like"
            )
        else:
            raise _not_seen(result)
    return updates


def storing(updates: Sequence[StatesUpdate], call: object) -> StoringResults | None:
    """Returns what a call has in its scope, so that workers may write the new states; `None` if they cannot."""
    found = [one for update in updates if (one := update.storing(call)) is not None]
    if not found:
        return None
    return StoringResults([store for store, _ in found], ClientStateFolders([folder for _, folder in found]))


def states_in(arg: object, parameter: Type | None) -> list[SavedClientStates]:
    """Returns the states of clients of which an argument has some."""
    clients = _clients_in(arg, parameter)
    return list(dict.fromkeys(states for value, member in clients for states in _owners(value, member)))


def _not_seen(result: Type) -> InvalidComputationError:
    return InvalidComputationError(
        f"Expected a computation whose result is placed at the server, or not placed, found the result {result}; a "
        "program does not see clients' values: aggregate them, pass the clients' states (`ClientStates.select`) that "
        "they update, or call the computation outside of the program"
    )


def _clients_in(arg: object, type_spec: Type | None) -> "Iterator[tuple[Sequence[object], Type]]":
    """Yields the values of clients in an argument, with the type of each value."""
    if isinstance(type_spec, FederatedType) and is_client_valued(type_spec):
        _check_selected(arg)
        yield cast("Sequence[object]", arg), type_spec.member
    elif isinstance(type_spec, StructType) and isinstance(arg, (Struct, dict, list, tuple)):
        for member, (_, member_type) in zip(split_struct(cast(object, arg), type_spec, "arg"), fields_of(type_spec)):
            yield from _clients_in(member, member_type)


def _check_selected(values: object) -> None:
    if isinstance(values, SavedClientStates):
        raise TypeMismatchError(
            f"Expected the states of the clients of a call, found those of all clients, {values!r}; pass what "
            "select(ids) of them returns"
        )
    array = cast("NDArray[Any]", values) if isinstance(values, np.ndarray) else None
    if array is not None and array.dtype == object and array.size and isinstance(array.flat[0], ClientState):
        raise TypeMismatchError(
            "Expected the list of clients' states that select(ids) returns, found an array of them; pass the list as "
            "it is, as states are read where the clients run"
        )


def _client_parts(type_spec: Type, path: Path) -> Iterator[tuple[Path, FederatedType]]:
    """Yields the types of the parts of a result that are placed at clients, with what leads to them."""
    if isinstance(type_spec, FederatedType) and is_placed_at_clients(type_spec):
        yield path, type_spec
    elif isinstance(type_spec, StructType):
        for index, (name, member) in enumerate(fields_of(type_spec)):
            yield from _client_parts(member, (*path, index if name is None else name))


def _owners(values: Sequence[object], member: Type) -> Iterator[SavedClientStates]:
    """Yields the states of which the first client has one: all clients have values of the same structure."""
    if not isinstance(values, (list, tuple)) or not values:
        return
    for path in _paths(values[0], member):
        yield cast(ClientState, _at(values[0], path)).states


def _given(values: Sequence[object], member: Type) -> Iterator[tuple[ClientStates, Sequence[ClientId]]]:
    """Yields the states that can be updated of which each client has one, with the ids of the clients."""
    if not isinstance(values, (list, tuple)) or not values:
        return
    for path in _paths(values[0], member):
        found = [_at(value, path) for value in values]
        states = cast(ClientState, found[0]).states
        if isinstance(states, ClientStates):
            if not all(isinstance(one, ClientState) and one.states is states for one in found):
                raise InvalidComputationError(
                    "Expected states of one kind for all clients, found others; pass states.select(ids) for all clients"
                )
            yield states, [cast(ClientState, one).client_id for one in found]


def _paths(value: object, member: Type) -> Iterator[Path]:
    if isinstance(value, ClientState):
        yield ()
    elif isinstance(member, StructType) and isinstance(value, (Struct, dict, list, tuple)):
        for index, (name, field) in enumerate(fields_of(member)):
            step = name if isinstance(value, dict) and name is not None else index
            for path in _paths(split_struct(cast(object, value), member, "arg[client 0]")[index], field):
                yield (step, *path)


def _at(value: object, path: Path) -> object:
    for step in path:
        value = cast(Any, value)[step]
    return value
