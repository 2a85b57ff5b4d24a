"""Runs the computations of programs, which get references to values before the values are there."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.work_scope import current_scope, set_scope
from fedstack.computations.types.language import (
    AsyncContext,
    ConcreteComputation,
    FederatedType,
    MaterializableValueReference,
    SequenceType,
    Struct,
    StructType,
    TensorType,
    Type,
    materialize_value,
    struct_elements,
)
from fedstack.computations.types.language import (
    FederatedContext as LanguageContext,
)
from fedstack.computations.types.type_structure import fields_of, is_client_valued, is_placed_at_clients, join_path
from fedstack.computations.values.containers import result_maker
from fedstack.computations.values.records import split_struct
from fedstack.errors import ContextError, FedstackError
from fedstack.foundations.error_text import with_place
from fedstack.program.argument_checks import check_instance
from fedstack.program.clients.states_updates import StatesUpdate, states_in, storing, updates_of
from fedstack.program.states.saved_versions import in_thread
from fedstack.program.value_reference import Path, ValueReference


class FederatedContext(LanguageContext):
    """Runs the computations of a program in an asynchronous context.

    A call returns at once, with references in place of tensors and sequences. They can be passed to further calls,
    saved and released, all of which wait for the values. Arrays that are not placed at clients are copied, so they may
    change after the call. What is placed at clients is passed on as it is: lists of clients, batches, tables and
    references to datasets cost nothing per client. Arrays in these must not change before the call has ended.

    Values that a computation returns at clients are new states of the clients whose states (`ClientStates.select`) are
    in its argument. In their place, a call returns a reference to the number of clients that have new ones.

    Args:
      context: The context, such as that of `fedstack.create_async_local_execution_context()`.

    Raises:
      InvalidValueError: If the context is not asynchronous.
    """

    def __init__(self, context: AsyncContext) -> None:
        check_instance("context", context, AsyncContext, "see fedstack.create_async_local_execution_context")
        self._context = context
        # The last call that got states of clients.
        self._last_calls: WeakKeyDictionary[object, asyncio.Task[object]] = WeakKeyDictionary()

    def invoke(self, comp: ConcreteComputation, arg: object) -> object:
        """Starts a call of a computation and returns references to its result.

        Raises:
          TypeMismatchError: If the argument has other members than its type.
          InvalidComputationError: If the computation returns functions, or values at clients that are not their new
            states.
          ContextError: If no event loop runs.
        """
        signature = comp.type_signature
        argument = None if signature.parameter is None else _of_now(arg, signature.parameter, "arg")
        updates = updates_of(argument, signature.parameter, signature.result)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ContextError(
                "Expected a running event loop for the calls of a program, found none; make them in a coroutine that "
                "asyncio.run runs, or use a synchronous context"
            ) from None
        # Calls that read or update the same states of clients run in the order in which the program makes them.
        states = states_in(argument, signature.parameter)
        before = [call for one in states if (call := self._last_calls.get(one)) is not None]
        call = loop.create_task(self._call(comp, argument, updates, before))
        self._last_calls.update(dict.fromkeys(states, call))
        for update in updates:
            update.begin(call)
        return _references(call, (), signature.result, updates)

    async def _call(
        self,
        comp: ConcreteComputation,
        argument: object,
        updates: Sequence[StatesUpdate],
        before: "Sequence[asyncio.Task[object]]",
    ) -> object:
        """Returns the result of a call, and then the number of clients whose states each update has changed."""
        call, is_done = asyncio.current_task(), False
        try:
            parameter = comp.type_signature.parameter
            if parameter is not None:
                argument = await _materialized(argument, parameter)
            running = [one for one in before if one.get_loop() is asyncio.get_running_loop()]
            if running:
                await asyncio.wait(running)
            stored = storing(updates, call)
            if stored is not None:
                set_scope(current_scope().adding(stored))  # for the rest of this task
            result = await cast(Any, self._context).invoke(comp, argument)
            counts = [await in_thread(partial(update.apply, call, result)) for update in updates]
            is_done = True
            return [result, *counts]
        except FedstackError as error:
            ids = next((update.client_ids for update in updates), ())
            if error.client_index is None or error.client_index >= len(ids):
                raise
            raise with_place(error, f"whose id is {ids[error.client_index]!r}") from error.__cause__
        finally:
            for update in updates:
                update.end(call, is_done)

    def __repr__(self) -> str:
        return f"<FederatedContext over {self._context!r}>"


def _of_now(value: object, type_spec: Type, path: str) -> object:
    """Returns an argument with its tensors as they are now, except in what is placed at clients and in sequences."""
    if is_client_valued(type_spec):
        return list(cast("list[object]", value)) if type(value) is list else value  # clients may be added later
    if isinstance(type_spec, FederatedType):
        return _of_now(value, type_spec.member, path)
    if isinstance(type_spec, StructType) and not isinstance(value, MaterializableValueReference):
        members = list[tuple[str | None, object]]()
        fields = fields_of(type_spec)
        for index, (member, (name, member_type)) in enumerate(zip(split_struct(value, type_spec, path), fields)):
            members.append((name, _of_now(member, member_type, join_path(path, name, index))))
        return Struct(members)
    return cast("NDArray[Any]", value).copy() if isinstance(value, np.ndarray) else value


async def _materialized(value: object, type_spec: Type) -> object:
    """Returns an argument with values in place of references, except in what is placed at clients."""
    if is_placed_at_clients(type_spec):
        return value
    if isinstance(type_spec, FederatedType):
        return await _materialized(value, type_spec.member)
    if isinstance(type_spec, StructType) and isinstance(value, Struct):
        members = zip(struct_elements(value), fields_of(type_spec))
        return Struct([(name, await _materialized(member, field)) for (name, member), (_, field) in members])
    return await (value.value_for_call() if isinstance(value, ValueReference) else materialize_value(value))


def _references(
    call: "asyncio.Task[object]",
    path: "Path",
    type_spec: Type,
    updates: Sequence[StatesUpdate],
) -> object:
    if isinstance(type_spec, FederatedType):
        for place, update in enumerate(updates, 1):
            if update.path == path:
                return ValueReference(call, (place,), TensorType(np.int32))
        return _references(call, path, type_spec.member, ())
    if isinstance(type_spec, StructType):
        members = [
            _references(call, (*path, index if name is None else name), member, updates)
            for index, (name, member) in enumerate(fields_of(type_spec))
        ]
        return result_maker(type_spec)(members)
    assert isinstance(type_spec, (TensorType, SequenceType))
    return ValueReference(call, (0, *path), type_spec)
