"""Packs the tasks of a phase: what all clients get once for all of them."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import cast

import attrs

from fedstack.backends.backend import Backend
from fedstack.computations.codec.packing import Packer
from fedstack.computations.types.language import Type
from fedstack.computations.values.deferred_column import DeferredColumn, Elsewhere
from fedstack.foundations.segments import Segment, memory_of
from fedstack.proto.extensions_pb2 import Packed


@attrs.define(eq=False)
class _Shared:
    """A packed value that all clients get, and what travels beside it.

    Attributes:
      payload: The value, kept since its identity finds it.
      message: The message.
      segments: What travels beside it.
    """

    payload: object
    message: Packed
    segments: list[Segment]
    _given: object = None
    _lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    async def given(self, backend: Backend) -> object:
        """Returns what stands for the segments in arguments."""
        async with self._lock:
            if self._given is None:
                self._given = await backend.share(memory_of(self.segments))
            return self._given


class SharedValues:
    """What all clients of a phase get, packed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Shared] = {}

    def packed(self, payload: object, type_spec: Type, path: str) -> _Shared:
        """Returns a packed value."""
        key = id(payload), id(type_spec)
        if key not in self._known:
            packer = Packer()
            self._known[key] = _Shared(payload, packer.packed(payload, type_spec, path), packer.segments)
        return self._known[key]


@attrs.frozen(eq=False)
class _Deferred:
    """Values that the worker reads: what stands for them goes there as it is."""

    column: DeferredColumn

    def __len__(self) -> int:
        return 0

    async def given(self, backend: Backend) -> object:
        return [self.column]


class TaskPacker(Packer):
    """Packs the values of one task: among its segments is what the worker gets in another way.

    Args:
      shared: What the tasks of the phase have in common.
      reads: Which values that are elsewhere the worker reads itself: a column of these goes there as it is.
    """

    def __init__(self, shared: SharedValues, reads: Sequence[type[Elsewhere]] = ()) -> None:
        super().__init__()
        self._shared = shared
        self._reads = frozenset(reads)
        self._segments = cast("list[Segment | _Shared | _Deferred]", self.segments)

    def pack_deferred(self, proto: Packed, column: DeferredColumn, member: Type, path: str) -> None:
        if column.kinds <= self._reads:
            proto.references.SetInParent()
            self._segments.append(_Deferred(column))
        else:
            super().pack_deferred(proto, column, member, path)

    def pack_shared(self, proto: Packed, payload: object, type_spec: Type, path: str = "value") -> None:
        found = self._shared.packed(payload, type_spec, path)
        proto.CopyFrom(found.message)
        if found.segments:
            self._segments.append(found)

    async def parts(self, backend: Backend) -> list[object]:
        """Returns all segments, in their order, as arguments: lists of arrays, and what stands for shared ones.

        Where the message says of a column nothing but that it is elsewhere, that is among them.
        """
        parts: list[object] = []
        for is_given, some in itertools.groupby(self._segments, lambda one: isinstance(one, (_Shared, _Deferred))):
            if is_given:
                parts += [await cast("_Shared | _Deferred", one).given(backend) for one in some]
            else:
                parts.append(memory_of(cast("Iterator[Segment]", some)))
        return parts
