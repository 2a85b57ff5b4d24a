"""Defines variables: state that closures and the coordinator's program read and change."""

import abc
from collections.abc import Coroutine
from typing import Any

from fedstack.computations.leaves.work_scope import WorkKind, current_scope
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.values import normalize
from fedstack.proto.extensions_pb2 import UpdateRequest
from fedstack.service.coordinator.variables.held_variable import HeldVariable, VariableServer, server_of
from fedstack.transport.wire.addresses import Target


class _Held(abc.ABC):
    """A variable, and how to reach it."""

    def __init__(self, held: HeldVariable, server: VariableServer, owner: object = None) -> None:
        self._held = held
        self._server = server
        self._owner = owner  # the variable is there as long as this

    @property
    def type_signature(self) -> Type:
        """The type of the value."""
        return self._held.type_signature

    def read_value(self) -> Any:
        """Returns the value.

        Raises:
          StaleSessionError: If the server that held it was started anew.
          WorkerUnavailableError: If that cannot be reached.
        """
        return self._run(self._read())

    def assign(self, value: object) -> Any:
        """Puts another value in place.

        Raises:
          TypeMismatchError: If that has another type.
        """
        return self._run(self._updated(UpdateRequest.ASSIGN, value))

    def assign_add(self, value: object) -> Any:
        """Adds to the value, in one step: of several at the same time none is lost."""
        return self._run(self._updated(UpdateRequest.ADD, value))

    def assign_sub(self, value: object) -> Any:
        """Subtracts from the value, in one step."""
        return self._run(self._updated(UpdateRequest.SUBTRACT, value))

    @abc.abstractmethod
    def _run(self, work: Coroutine[Any, Any, object]) -> object:
        """Runs work on the loop of the server's stub."""

    async def _read(self) -> object:
        return to_result(await self._held.read(self._server), self.type_signature)

    def _updated(self, how: "UpdateRequest.How", value: object) -> Coroutine[Any, Any, None]:
        payload = normalize(value, self.type_signature, "value")
        return self._held.update(self._server, how, payload)

    def __reduce__(self) -> tuple[object, ...]:
        held, written = self._held, self.type_signature.to_proto().SerializeToString()
        return _variable_at, (held.target, held.session, held.value, written, held.is_own)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of type {self.type_signature} at {self._held.target}>"


class Variable(_Held):
    """A value that changes, held by a server. Functions that are scheduled may use it, captured or as an argument.

    A closure that is run again, since a worker was lost, changes it again.
    """

    def _run(self, work: Coroutine[Any, Any, object]) -> object:
        return self._server.io.run_sync(work)


class AsyncVariable(_Held):
    """A variable whose methods are awaited. In a function that is scheduled it is used as a `Variable`."""

    def _run(self, work: Coroutine[Any, Any, object]) -> object:
        if current_scope().kind is not WorkKind.CLOSURE:
            return self._server.io.run(work)
        return self._server.io.run_sync(work)  # a function that executors of this process run: nothing in it awaits


def _variable_at(target: Target, session: str, value: str, type_spec: bytes, is_own: bool) -> Variable:
    """Returns a variable in another process than the one that made it."""
    declared = type_from_proto(computation_pb2.Type.FromString(type_spec))
    held = HeldVariable(target, session, value, declared, is_own)
    return Variable(held, server_of(held))
