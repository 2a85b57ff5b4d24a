"""Sends and fetches structs leaf by leaf, so that no message is larger than a leaf.

A federated value of structs is sent as a struct of federated values, which the peer zips. To fetch a federated value of
structs, the peer extracts each field with a map.
"""

import asyncio
from collections.abc import Sequence
from typing import cast

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
from fedstack.executors.concurrency.coroutines import gather
from fedstack.executors.remote.remote_sessions import Made, RemoteSession

_AT_ONCE = 16


class StreamingSession:
    """Creates and computes values leaf by leaf, in a session that transfers whole values."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session

    async def put(self, payload: object, type_spec: Type) -> str:
        """Creates a value and returns its id."""
        streamer = _Streamer(self._session)
        value = ""
        try:
            value = await streamer.put(payload, type_spec)
            return value
        finally:
            streamer.let_go(except_for=value)

    async def compute(self, value: str, type_spec: Type) -> object:
        """Computes a value and returns its payload."""
        streamer = _Streamer(self._session)
        try:
            return await streamer.compute(value, type_spec)
        finally:
            streamer.let_go()


class _Streamer:
    """The transfer of a single value, with a limited number of concurrent transfers of leaves."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._made: list[str] = []

    async def _step(self, made: Made) -> str:
        """Waits until an intermediate value has been created, records its id for `let_go`, and returns the id."""
        if not isinstance(made, str):
            work = made
            try:
                async with self._slots:
                    made = await work
            finally:
                work.close()  # in case the call was cancelled before the work started
        self._made.append(made)
        return made

    def let_go(self, except_for: str = "") -> None:
        """Releases the intermediate values on the peer.

        Args:
          except_for: The id of the value to keep, if any.
        """
        for value in self._made:
            if value != except_for:
                self._session.forget(value)

    async def put(self, payload: object, type_spec: Type) -> str:
        """Creates a value and returns its id."""
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
            return await self._step(self._session.call(await self._put_function(function), zipped))
        return await self._step(self._session.put(payload, type_spec))

    async def _put_members(self, payloads: Sequence[object], struct: StructType) -> str:
        fields = fields_of(struct)
        ids = await gather([self.put(member, t) for member, (_, t) in zip(payloads, fields)])
        names = [name for name, _ in fields]
        return await self._step(self._session.struct(list(zip(names, ids))))

    async def _put_function(self, function: computation_pb2.Computation) -> str:
        return await self._step(self._session.put_computation(function))

    async def compute(self, value: str, type_spec: Type) -> object:
        """Computes a value and returns its payload."""
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
        return await self.compute(await self._step(self._session.selection(value, index)), type_spec)

    async def _mapped(self, value: str, source: FederatedType, index: int, wanted: FederatedType) -> object:
        """Returns one field of a federated value of structs, which the peer extracts with a map."""
        whole = reference("value", source)
        member = function_of("member", source.member, selection(reference("member", source.member), index))
        if source.placement is not CLIENTS:
            uri = "federated_apply"
        else:
            uri = "federated_map_all_equal" if source.all_equal else "federated_map"
        function = function_of("value", source, call_intrinsic(uri, [member, whole], wanted))
        mapped = await self._step(self._session.call(await self._put_function(function), value))
        return await self.compute(mapped, wanted)


def _has_fields(member: Type) -> bool:
    return isinstance(member, StructType) and bool(fields_of(member))


def _member_types(type_spec: FederatedType) -> list[tuple[str | None, FederatedType]]:
    fields = fields_of(cast(StructType, type_spec.member))
    return [(name, FederatedType(t, type_spec.placement, type_spec.all_equal)) for name, t in fields]
