"""Sends structs to a peer and fetches them leaf by leaf, so that no message is larger than a leaf.

A federated value of structs becomes a struct of federated values, which the peer zips; fetched, each of its fields is
mapped out at the peer.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, cast

from fedstack.computations.plan.render import call_intrinsic, function_of, reference, selection
from fedstack.computations.types.language import (
    CLIENTS,
    FederatedType,
    FunctionType,
    StructType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_structure import fields_of, is_client_valued
from fedstack.computations.values.columns import Column, StructColumn
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.executors.remote.remote_sessions import RemoteSession

Forget: TypeAlias = Callable[[str], None]
_AT_ONCE = 16


async def compute_whole(session: RemoteSession, value: str, type_spec: Type, forget: Forget) -> object:
    """Fetches a value in one go."""
    return await session.compute(value, type_spec)


async def put_streamed(session: RemoteSession, payload: object, type_spec: Type, forget: Forget) -> str:
    """Creates a value leaf by leaf and returns its id.

    Args:
      session: The session.
      payload: The payload.
      type_spec: Its type.
      forget: Called with the ids of values that were only steps on the way.
    """
    streamer = _Streamer(session)
    value = ""
    try:
        value = await streamer.put(payload, type_spec)
        return value
    finally:
        streamer.let_go(forget, except_for=value)


async def compute_streamed(session: RemoteSession, value: str, type_spec: Type, forget: Forget) -> object:
    """Fetches a value leaf by leaf and returns its payload."""
    streamer = _Streamer(session)
    try:
        return await streamer.compute(value, type_spec)
    finally:
        streamer.let_go(forget)


class _Streamer:
    """Moves one value; a bounded number of its leaves at a time."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._made: list[str] = []

    async def _call(self, work: Coroutine[Any, Any, str]) -> str:
        try:
            async with self._slots:
                value = await work
        finally:
            work.close()  # it may have been cancelled before it began
        self._made.append(value)
        return value

    def let_go(self, forget: Forget, except_for: str = "") -> None:
        """Hands over the values that were only steps on the way."""
        for value in self._made:
            if value != except_for:
                forget(value)

    async def put(self, payload: object, type_spec: Type) -> str:
        """Creates a value."""
        if isinstance(type_spec, StructType) and fields_of(type_spec):
            return await self._put_members(cast("Sequence[object]", payload), type_spec)
        if isinstance(type_spec, FederatedType) and _has_fields(type_spec.member):
            members = _member_types(type_spec)
            if isinstance(payload, Column):
                payload = [payload.field(index) for index in range(len(members))]
            struct = StructType([(n, t) if n is not None else t for n, t in members])
            zipped = await self._put_members(cast("Sequence[object]", payload), struct)
            at = "clients" if type_spec.placement is CLIENTS else "server"
            function = computation_pb2.Computation(
                type=FunctionType(struct, type_spec).to_proto(),
                intrinsic=computation_pb2.Intrinsic(uri=f"federated_zip_at_{at}"),
            )
            return await self._call(self._session.call(await self._put_function(function), zipped))
        return await self._call(self._session.put(self._session.pack(payload, type_spec)))

    async def _put_members(self, payloads: Sequence[object], struct: StructType) -> str:
        fields = fields_of(struct)
        ids = await gather([self.put(member, t) for member, (_, t) in zip(payloads, fields)])
        names = [name for name, _ in fields]
        return await self._call(self._session.struct(list(zip(names, ids))))

    async def _put_function(self, function: computation_pb2.Computation) -> str:
        return await self._call(self._session.put_computation(function))

    async def compute(self, value: str, type_spec: Type) -> object:
        """Fetches a value."""
        if isinstance(type_spec, StructType) and fields_of(type_spec):
            return tuple(
                await gather([self._member(value, index, t) for index, (_, t) in enumerate(fields_of(type_spec))])
            )
        if isinstance(type_spec, FederatedType) and _has_fields(type_spec.member):
            members = enumerate(_member_types(type_spec))
            fields = await gather([self._mapped(value, type_spec, index, t) for index, (_, t) in members])
            if not is_client_valued(type_spec):
                return tuple(fields)
            columns = cast("list[Column]", fields)
            return StructColumn(tuple(columns), len(columns[0]))
        async with self._slots:
            return await self._session.compute(value, type_spec)

    async def _member(self, value: str, index: int, type_spec: Type) -> object:
        return await self.compute(await self._call(self._session.selection(value, index)), type_spec)

    async def _mapped(self, value: str, source: FederatedType, index: int, wanted: FederatedType) -> object:
        """Fetches one field of a federated value of structs, mapped out at the peer."""
        whole = reference("value", source)
        member = function_of("member", source.member, selection(reference("member", source.member), index))
        if source.placement is not CLIENTS:
            uri = "federated_apply"
        else:
            uri = "federated_map_all_equal" if source.all_equal else "federated_map"
        function = function_of("value", source, call_intrinsic(uri, [member, whole], wanted))
        mapped = await self._call(self._session.call(await self._put_function(function), value))
        return await self.compute(mapped, wanted)


def _has_fields(member: Type) -> bool:
    return isinstance(member, StructType) and bool(fields_of(member))


def _member_types(type_spec: FederatedType) -> list[tuple[str | None, FederatedType]]:
    fields = fields_of(cast(StructType, type_spec.member))
    return [(name, FederatedType(t, type_spec.placement, type_spec.all_equal)) for name, t in fields]
