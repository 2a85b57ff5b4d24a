"""Creates, updates and starts values in sessions.

`Creations` creates values, functions and results of calls. `Updates` replaces values, which implements the
variables of a coordinator. `Starts` runs batches of values, and reports their outcomes without their content.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedstack.computations.codec.unpacking import read_typed
from fedstack.computations.leaves.work_scope import change_scope
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.types.type_sizes import check_assignable, type_text
from fedstack.computations.types.type_structure import contains_function, flatten, tensor_leaves, unflatten
from fedstack.computations.values.tensor_values import read_only
from fedstack.contexts.invocation import telling_path
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.executors.base.verb_executor import known_clients_of
from fedstack.executors.base.verb_values import VerbValue
from fedstack.executors.concurrency.leaf_threads import LOOP_BYTES, sized
from fedstack.executors.concurrency.progress import ObservedCounts, ProgressCounts
from fedstack.executors.worker.phase_pipeline import ARRAY_SPARE_BYTES
from fedstack.executors.worker.receiving import Received
from fedstack.foundations.deadline import let_others_run
from fedstack.foundations.traceback_filter import without_frames
from fedstack.proto import extensions_pb2 as messages
from fedstack.proto.extensions_pb2 import StartResponse, Status, UpdateRequest
from fedstack.service.executor import held_values
from fedstack.service.executor.held_values import SharedComputation
from fedstack.service.executor.requests import in_turns, read_value
from fedstack.service.executor.service_core import ServiceCore
from fedstack.service.executor.session import Session, check_new_id
from fedstack.transport.wire.status import Code, StatusError, details_of

# The number of bytes beyond the size limit that a function may use for names and types.
_FUNCTION_SPARE_BYTES = 1024
# The number of small values to create before other work on the event loop may run.
_MOST_AT_ONCE = 256


class Creations:
    """Creates the values that clients send.

    Args:
      core: The shared state of the service.
    """

    def __init__(self, core: ServiceCore) -> None:
        self._core = core

    async def create(
        self,
        session: Session,
        creations: Iterable[messages.Creation],
        received: Received[Any],
    ) -> None:
        """Creates values under their ids, in the given order. Values whose ids already exist are not changed.

        Args:
          session: The session.
          creations: The values to create. Each value follows the values on which it depends.
          received: The message with the creations, and the bytes of its large arrays.
        """
        request_bytes = received.size
        at_once = _MOST_AT_ONCE if request_bytes <= LOOP_BYTES else 1
        for index, creation in enumerate(creations):
            if index and not index % at_once:
                await let_others_run()
            check_new_id(creation.id)
            is_there = session.has(creation.id)
            if is_there and not creation.HasField("value"):
                continue
            size = 0
            if creation.HasField("value"):
                payload, type_spec, size = await self.value(session, creation.value, received)
                if is_there:
                    continue
                created = await held_values.create_known(session.executor, payload, type_spec)
            else:
                if creation.HasField("computation"):
                    size = await sized(request_bytes, creation.computation.ByteSize)
                    self._core.admission.check_size(size, _FUNCTION_SPARE_BYTES)
                session.check_room(size)
                created = await self._created(session, creation, size)
            if not session.has(creation.id):  # the client may have sent the call twice
                session.add(created, size, creation.id)

    async def value(
        self, session: Session, value: messages.TypedValue, received: Received[Any]
    ) -> tuple[object, Type, int]:
        """Reads a received value and the bytes that follow it, and returns its payload, its type and its size."""

        def check(size: int) -> None:
            self._core.admission.check_size(size, ARRAY_SPARE_BYTES)
            session.check_room(size)

        clients, most = known_clients_of(session.executor), self._core.admission.max_bytes
        return await read_value(
            value.value,
            lambda unpacker: read_typed(value, unpacker, self._type_of),
            received,
            check=check,
            max_bytes=most,
            clients=clients,
        )

    def _type_of(self, proto: computation_pb2.Type) -> Type:
        type_spec = self._core.admission.read_type(proto)
        if contains_function(type_spec):
            raise InvalidValueError(
                f"Expected a value without functions, found a value of type {type_text(type_spec)}; create the "
                "functions as computations, and combine them with the other values in a struct"
            )
        return type_spec

    async def _created(self, session: Session, creation: messages.Creation, size: int) -> Any:
        executor = session.executor
        kind = creation.WhichOneof("kind")
        if kind == "computation":
            await self._core.admission.admit(creation.computation, size)
            return await held_values.create_computation(executor, creation.computation)
        if kind == "call":
            call = creation.call
            argument = session.find(call.argument_ref.id) if call.HasField("argument_ref") else None
            return await held_values.create_call(executor, session.find(call.function_ref.id), argument)
        if kind == "struct":
            elements = creation.struct.element
            members = [(element.name, session.find(element.value_ref.id)) async for element in in_turns(elements)]
            return await held_values.create_struct(executor, members, self._core.limits)
        if kind == "selection":
            source = session.find(creation.selection.source_ref.id)
            return await executor.create_selection(source, creation.selection.index)
        raise InvalidValueError(
            "Expected a message with a value or a computation to create, found an empty message; include one of the two"
        )


_OPERATIONS = {UpdateRequest.ADD: np.add, UpdateRequest.SUBTRACT: np.subtract}


class Updates:
    """Replaces, increments or decrements values in sessions.

    Args:
      creations: Reads the received values.
    """

    def __init__(self, creations: Creations) -> None:
        self._creations = creations

    async def run(self, session: Session, received: Received[UpdateRequest]) -> None:
        """Assigns, adds or subtracts a received value, as the request specifies.

        Raises:
          InvalidValueError: If the value to update is the result of a computation.
          TypeMismatchError: If the received value has a different type, or is not numeric but has to be added or
            subtracted.
        """
        request = received.message
        payload, type_spec, size = await self._creations.value(session, request.value, received)
        await received.end()
        value_id = request.value_ref.id
        async with session.updating:
            known = held_values.known_payload(session.find(value_id))
            if known is None:
                raise InvalidValueError(
                    "Expected a value that the client has sent, found a computed value, which cannot change; create a "
                    "new value"
                )
            before, declared = known
            check_assignable(declared, type_spec, "value")
            operation = _OPERATIONS.get(request.how)
            if operation is not None:
                payload = await sized(size, lambda: _combined(operation, before, payload, declared))
            session.replace(value_id, await held_values.create_known(session.executor, payload, declared))


def _combined(operation: Callable[..., object], before: object, change: object, type_spec: Type) -> object:
    for path, tensor in tensor_leaves(type_spec):
        if tensor.dtype.kind not in "iufc" and tensor.dtype.name != "bfloat16":
            raise TypeMismatchError(f"Expected numbers to add at value{path}, found {type_text(tensor)}")
    pairs = zip(flatten(before, type_spec), flatten(change, type_spec), tensor_leaves(type_spec))
    with np.errstate(all="ignore"):
        made = [_applied(operation, old, new, tensor.dtype) for old, new, (_, tensor) in pairs]
    return unflatten(iter(made), type_spec)


def _applied(operation: Callable[..., object], old: object, new: object, dtype: np.dtype) -> object:
    value = np.asarray(operation(np.asarray(old), np.asarray(new))).astype(dtype, copy=False)
    return value[()] if value.ndim == 0 else read_only(value)


# When some values of a batch have ended, the answer waits for this time so that it can include further values.
_GATHER_SECONDS = 0.002
# The answer does not wait for values that have already run for longer than this.
_QUICK_SECONDS = 0.02


class Starts:
    """Runs values that clients start, and reports their outcomes.

    Args:
      core: The shared state of the service.
    """

    def __init__(self, core: ServiceCore) -> None:
        self._core = core

    async def run(
        self, session: Session, values: Sequence[str], progress: ProgressCounts
    ) -> list[StartResponse.Outcome]:
        """Runs values of a session, joining those already running, and returns the outcomes of the first to end."""
        outcomes: list[StartResponse.Outcome] = []
        pulls: dict[str, SharedComputation] = {}
        now, together = asyncio.get_running_loop().time(), ObservedCounts()
        change_scope(progress=together)  # affects only this task
        for value_id in dict.fromkeys(values):
            try:
                pulls[value_id] = pull = self._core.pull(session, value_id, together)
            except StatusError as error:
                outcomes.append(_outcome(value_id, error))
            else:
                progress.watch(pull.progress)
                session.started.running.setdefault(value_id, now)
        slow = {value_id for value_id, began in session.started.running.items() if now - began > _QUICK_SECONDS}
        for value_id in await _ended(pulls, slow, at_once=bool(outcomes)):
            outcomes.append(_outcome_of(session, value_id, pulls[value_id]))
        return outcomes


async def _ended(pulls: Mapping[str, SharedComputation], slow: Collection[str], *, at_once: bool) -> list[str]:
    """Waits until some values have ended, and returns their ids.

    Args:
      pulls: The computations of the values, by id.
      slow: The ids of values to stop waiting for once any value has ended.
      at_once: Whether to return without waiting.
    """
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(pull.awaited()) for pull in pulls.values()]
        if waiting and not at_once and not all(task.done() for task in waiting):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            others = [task for value_id, task in zip(pulls, waiting) if not (task.done() or value_id in slow)]
            if others:
                await asyncio.wait(others, timeout=_GATHER_SECONDS)
        return [value_id for (value_id, _), task in zip(pulls.items(), waiting) if task.done()]


def _outcome_of(session: Session, value_id: str, pull: SharedComputation) -> StartResponse.Outcome:
    if session.started.running.pop(value_id, None) is not None:
        session.started.ended += 1
    try:
        with telling_path(session.executor):
            pull.result()
    except asyncio.CancelledError:
        return _outcome(value_id, StatusError(Code.CANCELLED, "The call was cancelled"))
    except Exception as error:
        session.started.failed += 1
        return _outcome(value_id, error)
    value = session.find_if_there(value_id)
    if isinstance(value, VerbValue) and value.keeps_payload:
        session.delivered(value_id)  # a later `Compute` returns the kept payload
    return StartResponse.Outcome(id=value_id)


def _outcome(value_id: str, error: Exception) -> StartResponse.Outcome:
    outcome = StartResponse.Outcome(id=value_id, error=Status.FromString(details_of(error)))
    without_frames(error)
    return outcome
