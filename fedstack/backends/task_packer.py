"""Packs the tasks of a phase: what all clients get once for all of them."""

import asyncio
from collections.abc import Sequence

import attrs

from fedstack.backends.backend import Backend
from fedstack.computations.codec.adoption import memory_of
from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.segments import Segment
from fedstack.computations.types.language import Type
from fedstack.computations.values.deferred_column import DeferredColumn, Elsewhere
from fedstack.proto.extensions_pb2 import Packed


@attrs.define(eq=False)
class _Shared:
    """A packed value.

    Attributes:
      payload: The value, kept since its identity finds it.
      message: The message.
      segments: What travels beside it.
    """

    payload: object
    message: Packed
    segments: list[Segment]
    given: object = None
    _lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)

    async def give(self, backend: Backend) -> object:
        """Returns what stands for the segments in arguments."""
        async with self._lock:
            if self.given is None:
                self.given = await backend.share(memory_of(self.segments))
            return self.given


class SharedValues:
    """What all clients of a phase get, packed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Shared] = {}

    def packed(self, payload: object, type_spec: Type, path: str) -> _Shared:
        """Returns a packed value."""
        key = id(payload), id(type_spec)
        if key not in self._known:
            message, packer = Packed(), Packer()
            packer.pack(message, payload, type_spec, path)
            self._known[key] = _Shared(payload, message, packer.segments)
        return self._known[key]


@attrs.frozen(eq=False)
class _Deferred:
    """Values that the worker reads: what stands for them goes there as it is."""

    column: DeferredColumn
    segments: tuple[Segment, ...] = ()

    async def give(self, backend: Backend) -> object:
        return [self.column]


class TaskPacker(Packer):
    """Packs the values of one task.

    Args:
      shared: What the tasks of the phase have in common.
      reads: Which values that are elsewhere the worker reads itself.
    """

    def __init__(self, shared: SharedValues, reads: Sequence[type[Elsewhere]] = ()) -> None:
        super().__init__()
        self._shared = shared
        self._reads = frozenset(reads)
        self._between: list[tuple[int, _Shared | _Deferred]] = []

    def pack_deferred(self, proto: Packed, column: DeferredColumn, member: Type, path: str) -> None:
        if column.kinds <= self._reads:
            proto.references.SetInParent()
            self._between.append((len(self.segments), _Deferred(column)))
        else:
            super().pack_deferred(proto, column, member, path)

    def pack_shared(self, proto: Packed, payload: object, type_spec: Type, path: str = "value") -> None:
        found = self._shared.packed(payload, type_spec, path)
        proto.CopyFrom(found.message)
        if found.segments:
            self._between.append((len(self.segments), found))

    @property
    def segment_bytes(self) -> int:
        return super().segment_bytes + sum(len(segment) for _, found in self._between for segment in found.segments)

    async def parts(self, backend: Backend) -> list[object]:
        """Returns all segments, in their order, as arguments: lists of arrays, and what stands for shared ones.

        Where the message says of a column nothing but that it is elsewhere, that is among them.
        """
        parts: list[object] = []
        start = 0
        for stop, found in [*self._between, (len(self.segments), None)]:
            if stop > start:
                parts.append(memory_of(self.segments[start:stop]))
            if found is not None:
                parts.append(await found.give(backend))
            start = stop
        return parts
