"""Sends values and large functions to a peer only once; what follows refers to the peer's copies.

This holds for inputs that several phases read, of which each peer may have other parts, and for large values that all
clients of a long phase share: a worker that takes over clients of another one already has them. Large functions, which
are sent by value, are packed like values. `PhaseCopies` writes the references; `ReceivedValues` and `unpack_functions`
read them on the peer.
"""

import sys
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import attrs
import numpy as np
from google.protobuf.message import DecodeError

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import TensorType, Type, computation_pb2
from fedstack.computations.values.columns import Column, ConstantColumn, JoinedColumn
from fedstack.computations.values.shared_columns import SharedColumn, shared_bytes
from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.phase_records import is_long
from fedstack.executors.folds.aggregations import FoldArgument
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.foundations.caches import made_once
from fedstack.proto.extensions_pb2 import PhaseRequest

FindKept = Callable[[str], "tuple[Column, Type]"]
# The minimum size of inputs to keep. For smaller inputs, sending them again is cheaper than disposing of a copy.
_WORTH_KEEPING_BYTES = 16 * 1024
# Values that all clients of a phase share are kept from this size on, unless the phase was short before.
_SHARED_BYTES = 1 << 20
# Functions are kept from this size on. Smaller ones are sent again, which takes less than a tenth of a millisecond.
_LARGE_FUNCTION_BYTES = 64 * 1024
_FUNCTION = TensorType(np.str_)


class _Function(NamedTuple):
    """The messages of a function in a request, only one of which has content.

    Attributes:
      computation: The function.
      packed: The function as a value.
    """

    computation: computation_pb2.Computation
    packed: PhaseRequest.Input

    @property
    def is_packed(self) -> bool:
        return bool(self.packed.kept) or self.packed.HasField("value")


def _functions_of(request: PhaseRequest) -> list[_Function]:
    """Returns the functions in a request."""
    functions = [function for fold in request.fold for function in fold.function]
    packed = [_Function(function.computation, function.packed) for function in functions]
    return [_Function(request.program, request.packed_program), *packed]


def computations_of(request: PhaseRequest) -> list[computation_pb2.Computation]:
    """Returns all functions in a request that contains no packed functions."""
    return [function.computation for function in _functions_of(request)]


@attrs.frozen(eq=False)
class PhaseTemplate:
    """The request to run a phase, without clients and values.

    Attributes:
      request: The request. It lacks large functions.
      functions: The large functions, as values that peers may keep, by their position among the phase's functions.
    """

    request: PhaseRequest
    functions: Mapping[int, SharedColumn]

    @classmethod
    def of(cls, request: PhaseRequest) -> "PhaseTemplate":
        """Returns a template, for which large functions are removed from a request."""
        functions: dict[int, SharedColumn] = {}
        for index, computation in enumerate(computations_of(request)):
            if computation.ByteSize() >= _LARGE_FUNCTION_BYTES:
                functions[index] = SharedColumn(ConstantColumn(computation.SerializeToString(), 1))
                computation.Clear()
        return cls(request, functions)

    def fill(self, copies: "PhaseCopies | None") -> PhaseRequest:
        """Returns a new request with all functions, or references to the peer's copies of large ones."""
        request = PhaseRequest()
        request.CopyFrom(self.request)
        for index, found in self.functions.items():
            message = _functions_of(request)[index].packed
            if copies is None:
                _pack_function(found, message)
            else:
                copies.write_function(found, message)
        return request

    @property
    def size(self) -> int:
        """The size of the template in bytes."""
        return self.request.ByteSize() + sum(len(cast(bytes, one.items()[0])) for one in self.functions.values())


def _pack_function(function: SharedColumn, message: PhaseRequest.Input) -> None:
    # In the message itself, because the peer checks functions before it receives segments.
    Packer(large_bytes=sys.maxsize).pack(message.value, function.items()[0], _FUNCTION, "a function")


def sent_once(phase: Phase, inputs: Sequence[object]) -> list[object]:
    """Returns the inputs of a phase, of which the large ones that all clients share are sent to each peer only once.

    A peer disposes of such values with a delay. After short phases, it would have the values of several phases.
    """
    if not is_long(phase):
        return list(inputs)
    return [
        SharedColumn(value) if isinstance(value, ConstantColumn) and shared_bytes([value]) >= _SHARED_BYTES else value
        for value in inputs
    ]


@made_once
def _shared_payloads(argument: FoldArgument) -> "dict[int, SharedColumn]":
    """Returns the payloads of a fold's argument that peers may keep, by their identity."""
    return {}


class PhaseCopies:
    """The values of a phase that the peer has already kept, and the values that the peer should keep.

    Args:
      session: The session of the phase. A kept value is disposed of once its column is garbage-collected.
      phase: The phase.
    """

    def __init__(self, session: RemoteSession, phase: Phase) -> None:
        self._session = session
        self._keeps_arguments = is_long(phase)
        self._offered: dict[str, SharedColumn] = {}
        self._functions: list[SharedColumn] = []  # alive, so that the peer's copies are not disposed of meanwhile

    def write(self, column: SharedColumn, member: Type, message: PhaseRequest.Input, packer: Packer, path: str) -> None:
        """Writes an input. It refers to copies of the peer, and asks the peer to keep the rest.

        Args:
          column: The input.
          member: The type of its members.
          message: The message of the input.
          packer: Packs the values.
          path: The path of the input in error messages.
        """
        parts = column.parts_at(self._session)
        for copy, members in parts:
            part = message if len(parts) == 1 else message.part.add(clients=len(members))
            if copy is not None:
                part.kept = copy.name
                part.first_member = max(0, members.start - copy.members.start)
                continue
            own = column.slice(members.start - column.members.start, members.stop - column.members.start)
            before = packer.segment_bytes
            packer.pack_column(part.value, own.column, member, path)
            self._offer(own, part, packer.segment_bytes - before)

    def write_payload(
        self, argument: FoldArgument, payload: object, type_spec: Type, message: PhaseRequest.Input, packer: Packer
    ) -> None:
        """Writes a payload of a fold's argument, or refers to the peer's copy of it."""
        column = self._kept_payload(argument, payload)
        copy = None if column is None else column.parts_at(self._session)[0][0]
        if copy is not None:
            message.kept = copy.name
            return
        before = packer.segment_bytes
        packer.pack_shared(message.value, payload, type_spec)
        if column is not None:
            self._offer(column, message, packer.segment_bytes - before)

    def write_function(self, function: SharedColumn, message: PhaseRequest.Input) -> None:
        """Writes a large function, or refers to the peer's copy of it."""
        self._functions.append(function)
        copy = function.parts_at(self._session)[0][0]
        if copy is not None:
            message.kept = copy.name
            return
        _pack_function(function, message)
        self._offer(function, message, 0)

    def _kept_payload(self, argument: FoldArgument, payload: object) -> SharedColumn | None:
        """Returns the column of a payload that is worth keeping."""
        if not self._keeps_arguments:
            return None
        column = ConstantColumn(payload, 1)
        if shared_bytes([column]) < _SHARED_BYTES:
            return None
        return _shared_payloads(argument).setdefault(id(payload), SharedColumn(column))

    def _offer(self, column: SharedColumn, message: PhaseRequest.Input, segment_bytes: int) -> None:
        """Asks the peer to keep the value of a message, if it is large enough."""
        if segment_bytes + message.value.ByteSize() >= _WORTH_KEEPING_BYTES:
            message.keep = uuid.uuid4().hex
            self._offered[message.keep] = column

    def settle(self, kept: Iterable[str]) -> None:
        """Records which values the peer has kept, given their ids."""
        for copy in kept:
            column = self._offered.pop(copy, None)
            if column is None:
                continue
            if not column.note_copy(self._session, copy):
                self._session.forget(copy)  # another request that was sent at the same time has left one
                continue
            # A function outlives many sessions, and must not keep them alive.
            weakref.finalize(column.whole, _forget, weakref.ref(self._session), copy).atexit = False

    def give_up(self) -> None:
        """Disposes of values that the peer may have kept for a phase whose response was not received."""
        for copy in self._offered:
            self._session.forget(copy)


def _forget(session: "weakref.ref[RemoteSession]", copy: str) -> None:
    found = session()
    if found is not None:
        found.forget(copy)


def values_of(request: PhaseRequest) -> Iterator[PhaseRequest.Input]:
    """Yields all messages in a request that may contain a value."""
    for message in request.input:
        yield message
        yield from message.part
    for fold in request.fold:
        yield from fold.argument
        for function in fold.function:
            yield from function.capture


@attrs.frozen
class Offered:
    """A value that the sender of a phase may refer to later, if it is kept.

    Attributes:
      name: The id under which to keep the value.
      column: The value.
      member: The type of the members of the column.
      size: The size of the value in the message, in bytes.
    """

    name: str
    column: Column
    member: Type
    size: int


def packed_functions_of(request: PhaseRequest) -> list[PhaseRequest.Input]:
    """Returns the packed functions in a request."""
    return [function.packed for function in _functions_of(request) if function.is_packed]


def unpack_functions(
    request: PhaseRequest, find_kept: FindKept, check_size: Callable[[int], None] = lambda size: None
) -> list[Offered]:
    """Replaces the packed functions in a received request by computations.

    Args:
      request: The request.
      find_kept: Returns the kept value with a given id and the type of its members.
      check_size: Raises if functions of the given total size in bytes are too large. A short request may refer to a
        large function many times.

    Returns:
      The functions that may be kept.

    Raises:
      InvalidValueError: If a value is no function, or the request has both forms of a function.
    """
    offered: list[Offered] = []
    size = 0
    for computation, packed in filter(lambda function: function.is_packed, _functions_of(request)):
        if computation.ByteSize():
            raise InvalidValueError("Expected each function of a phase in one form, found a function in both forms")
        values = ReceivedValues(Unpacker(max_bytes=0), find_kept, 1)
        content = cast(bytes, values.payload(packed, _FUNCTION, "a function"))
        size += len(content)
        check_size(size)
        try:
            computation.ParseFromString(content)
        except DecodeError as error:
            raise InvalidValueError(
                f"Expected a serialized computation as a function of a phase, found {len(content)} bytes that are not "
                f"valid: {error}"
            ) from error
        packed.Clear()
        offered += values.offered
    return offered


class ReceivedValues:
    """Reads the values of a received phase.

    Args:
      unpacker: Unpacks the values that the message contains.
      find_kept: Returns the kept value with a given id and the type of its members.
      clients: The number of clients, which is also that of the unpacker.

    Attributes:
      offered: The values that may be kept.
    """

    def __init__(self, unpacker: Unpacker, find_kept: FindKept, clients: int) -> None:
        self._unpacker = unpacker
        self._find_kept = find_kept
        self._clients = clients
        self.offered: list[Offered] = []

    def column(self, message: PhaseRequest.Input, member: Type, path: str) -> Column:
        """Returns an input of the phase's program.

        Args:
          message: The message.
          member: The type of the input's members.
          path: The path of the input in error messages.

        Raises:
          InvalidValueError: If the message refers to a value that does not fit.
        """
        if not message.part:
            return self._part(message, member, self._clients, path)
        found = sum(part.clients for part in message.part)
        if found != self._clients or not all(part.clients for part in message.part):
            raise InvalidValueError(
                f"Expected parts with a value for each of {self._clients} clients as {path}, found parts with {found} "
                "values"
            )
        return JoinedColumn([self._part(part, member, part.clients, path) for part in message.part], member)

    def payload(self, message: PhaseRequest.Input, type_spec: Type, path: str) -> object:
        """Returns a payload of a fold's argument; for the arguments, see `column`."""
        if message.kept:
            return self._kept(message, type_spec, 1, path).items()[0]
        before = self._announced()
        payload = self._unpacker.unpack(message.value, type_spec)
        self._offer(message, ConstantColumn(payload, 1), type_spec, before)
        return payload

    def _part(self, message: PhaseRequest.Input, member: Type, clients: int, path: str) -> Column:
        if message.kept:
            return self._kept(message, member, clients, path)
        before = self._announced()
        column = self._unpacker.unpack_column(
            message.value, member, clients=None if clients == self._clients else clients
        )
        self._offer(message, column, member, before)
        return column

    def _kept(self, message: PhaseRequest.Input, member: Type, clients: int, path: str) -> Column:
        column, kept_type = self._find_kept(message.kept)
        first = message.first_member
        if isinstance(column, ConstantColumn):
            column, first = ConstantColumn(column.value, clients), 0
        if len(column) < first + clients or kept_type != member:
            raise InvalidValueError(
                f"Expected the id of {first + clients} values of type {member} as {path}, found the id of "
                f"{len(column)} values of type {kept_type}"
            )
        return column.slice(first, first + clients)

    def _offer(self, message: PhaseRequest.Input, column: Column, member: Type, before: int) -> None:
        if message.keep:
            size = message.value.ByteSize() + self._announced() - before
            self.offered.append(Offered(message.keep, column, member, size))

    def _announced(self) -> int:
        return sum(map(len, self._unpacker.buffers))
