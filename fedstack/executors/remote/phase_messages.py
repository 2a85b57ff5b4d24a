"""Converts client phases to messages on the sender's side, and back to phases on the worker's side.

The parts of a message that do not change between runs (program, folds, types) are written once per phase and cached.
Values are packed, which means that their large arrays are sent separately from the message.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import attrs
import numpy as np
from google.protobuf import any_pb2

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.carriers import code_version
from fedstack.computations.leaves.portability import needs_same_bits
from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.computations.plan.intrinsics import find_intrinsic
from fedstack.computations.plan.plan import plans
from fedstack.computations.plan.program import IntrinsicSource, LeafSource, Program, read_by_one
from fedstack.computations.plan.program_ir import program_from_ir, program_to_ir
from fedstack.computations.plan.tasks import Fold, Phase, ProgramTypes
from fedstack.computations.types.language import (
    CLIENTS,
    FederatedType,
    FunctionType,
    StructType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_structure import fields_of, type_from_proto
from fedstack.computations.values.columns import Column
from fedstack.computations.values.shared_columns import SharedColumn
from fedstack.errors import InvalidComputationError, InvalidValueError
from fedstack.executors.base.hand_ins import Origin
from fedstack.executors.folds.aggregations import FoldArgument, FoldArguments
from fedstack.executors.remote.phase_copies import FindKept, Offered, PhaseCopies, PhaseTemplate, ReceivedValues
from fedstack.foundations.caches import SharedCache, made_once
from fedstack.foundations.error_text import name_text
from fedstack.observe.events import NO_SPAN, Span, is_id
from fedstack.proto import extensions_pb2 as messages
from fedstack.proto.extensions_pb2 import PhaseRequest

Computation = computation_pb2.Computation
_MAX_INDEX = np.iinfo(np.int64).max
Portable = Callable[[Computation], Computation]
# The number of phases is limited to the number of cached plans. The size is limited as well, because functions that are
# sent by value include the objects that they capture.
_templates: "SharedCache[object, _VersionedTemplate]" = SharedCache(1000, 256 << 20)


class _VersionedTemplate(NamedTuple):
    """A template, together with the versions of its functions."""

    versions: tuple[bytes, ...]
    template: PhaseTemplate


@attrs.frozen(eq=False)
class SentFunctions(SystemScope):
    """Part of the scope of one run of a phase: peers that take functions in the same form receive the same functions.

    A closure may change while the phase runs.

    Attributes:
      phase: The phase.
      templates: The requests without clients and values, by `portable_key`.
    """

    phase: Phase
    templates: dict[object, PhaseTemplate] = attrs.field(factory=dict[object, PhaseTemplate])


@attrs.frozen
class ReceivedPhase:
    """A phase that was read from a message.

    Attributes:
      phase: The phase. Its references to other parts of a schedule are empty.
      inputs: A column for each input of the phase.
      arguments: The server's arguments to the folds.
      clients: The indices of the clients in the whole federation.
      offered: The values that the sender may refer to later, if they are kept.
    """

    phase: Phase
    inputs: Sequence[Column]
    arguments: FoldArguments
    clients: range
    offered: Sequence[Offered]


def write_phase(
    template: PhaseTemplate,
    phase: Phase,
    inputs: Sequence[object],
    arguments: FoldArguments,
    clients: range,
    packer: Packer,
    copies: PhaseCopies | None = None,
) -> PhaseRequest:
    """Returns the request to run a phase for a range of clients, as the current scope wants it.

    Args:
      template: The request without clients and values, from `phase_template`.
      phase: The phase.
      inputs: A column for each input of the phase's program.
      arguments: The server's arguments to the folds.
      clients: The indices of the clients in the whole federation.
      packer: Packs the values.
      copies: The inputs that the peer already has.
    """
    request = template.fill(copies)
    request.first_client = clients.start
    request.clients = len(clients)
    request.same_bits = needs_same_bits()
    write_values(request, phase, inputs, arguments, packer, copies)
    return request


def phase_template(phase: Phase, portable: Portable, portable_key: object, sends_code: bool = False) -> PhaseTemplate:
    """Returns the request to run a phase, without clients and values. Callers must not change it.

    Args:
      phase: The phase.
      portable: Converts the carriers of a computation to carriers that the peer can load.
      portable_key: A key that identifies `portable`; different functions have different keys.
      sends_code: Whether functions may be sent by value. Such functions may have changed since the phase was last sent.

    Raises:
      CarrierError: If a leaf function of the phase or of a later phase cannot be sent.
    """
    sent = current_scope().of(SentFunctions)
    known = sent.templates if sent is not None and sent.phase is phase else {}
    if portable_key not in known:
        found = _kept_template(phase, portable, portable_key, sends_code)
        following = phase.following
        while following is not None and portable_key not in _template_keys(following):
            _kept_template(following, portable, portable_key, sends_code)  # fails early if a function cannot be sent
            following = following.following
        return known.setdefault(portable_key, found)  # two threads may write requests at the same time
    return known[portable_key]


def write_values(
    request: PhaseRequest,
    phase: Phase,
    inputs: Sequence[object],
    arguments: FoldArguments,
    packer: Packer,
    copies: PhaseCopies | None = None,
) -> None:
    """Adds the values of a phase to a request that contains no values yet; for the arguments, see `write_phase`."""
    for index, (value, member) in enumerate(zip(inputs, phase.input_types)):
        message, path = request.input[index], f"input {index} of the client work"
        if isinstance(value, SharedColumn) and copies is not None:
            copies.write(value, member, message, packer, path)
        else:
            column = value.column if isinstance(value, SharedColumn) else value
            packer.pack_column(message.value, column, member, path)
    for message, fold, argument in zip(request.fold, phase.folds, arguments):
        payloads = list(zip(message.argument, argument.values, fold.server_types))
        for function, signature, captures in zip(message.function, fold.signatures, argument.captures):
            types = signature.inputs[len(signature.inputs) - len(captures) :]
            payloads += zip(function.capture, captures, types)
        for value, payload, type_spec in payloads:
            if copies is None:
                packer.pack_shared(value.value, payload, type_spec)
            else:
                copies.write_payload(argument, payload, type_spec, value, packer)


def write_origin(request: PhaseRequest, origin: Origin | None) -> None:
    """Adds to a request where its clients come from."""
    if origin is not None:
        request.origin.why = getattr(messages.Origin, origin.why.name)
        request.origin.server = origin.worker


def write_span(span: Span, message: messages.Span) -> None:
    """Adds to a message the sender's position within the current call."""
    message.trace, message.call, message.id = span.trace, span.call, span.id


def read_span(message: messages.Span) -> Span:
    """Reads from a message the sender's position within its call; returns an empty span if the ids are not valid."""
    ids = message.trace, message.call, message.id
    return Span(*ids) if all(map(is_id, ids)) else NO_SPAN


def _kept_template(phase: Phase, portable: Portable, portable_key: object, sends_code: bool) -> PhaseTemplate:
    """Returns the request without values from the cache, and creates it if necessary."""
    versions = _code_versions(phase) if sends_code else ()
    keys = _template_keys(phase)
    kept = _templates.get(keys.get(portable_key))
    if kept is None or kept.versions != versions:
        kept = _VersionedTemplate(versions, PhaseTemplate.of(_template(phase, portable)))
        # All versions of the functions share a key, so that the latest version replaces the previous one.
        _templates.put(keys.setdefault(portable_key, object()), kept, kept.template.size)
    return kept.template


@made_once
def _template_keys(phase: Phase) -> dict[object, object]:
    """Returns the cache keys of a phase's requests without values, by `portable_key`."""
    return {}


def _code_versions(phase: Phase) -> tuple[bytes, ...]:
    """Returns the versions of a phase's functions. A version changes if a function that is sent by value changes."""
    versions = map(code_version, _contents_of(phase))
    return tuple(version for version in versions if version is not None)


@made_once
def _contents_of(phase: Phase) -> list[any_pb2.Any]:
    """Returns the contents of the `data` blocks in a phase's leaf functions."""
    programs = [phase.program, *(program for fold in phase.folds for program in fold.functions)]
    leaves = [leaf for program in programs for leaf in _leaves_of(program)]
    return [leaf.data.content for leaf in leaves if leaf.HasField("data")]


def _leaves_of(program: Program) -> Iterator[Computation]:
    for step in program.steps:
        if isinstance(step.operation, LeafSource):
            yield step.operation.computation
        elif isinstance(step.operation, IntrinsicSource):
            for function in step.operation.functions:
                yield from _leaves_of(function)


def _template(phase: Phase, portable: Portable) -> PhaseRequest:
    """Returns a new request without values for a phase."""
    request = PhaseRequest(held=[position for position, _ in phase.held])
    request.program.CopyFrom(portable(program_to_ir(phase.program, phase.input_types, phase.result_types)))
    for member in phase.input_types:
        request.input.add().type.CopyFrom(FederatedType(member, CLIENTS).to_proto())
    for fold in phase.folds:
        message = request.fold.add(uri=fold.uri, result=fold.results)
        for type_spec in fold.server_types:
            message.argument.add().type.CopyFrom(type_spec.to_proto())
        for program, signature, captures in zip(fold.functions, fold.signatures, fold.captures):
            function = message.function.add()
            ir = program_to_ir(program, signature.inputs, [signature.result])
            function.computation.CopyFrom(portable(ir))
            for type_spec in signature.inputs[len(signature.inputs) - len(captures) :]:
                function.capture.add().type.CopyFrom(type_spec.to_proto())
    return request


def read_phase(request: PhaseRequest, unpacker: Unpacker, find_kept: FindKept) -> ReceivedPhase:
    """Returns the phase in a request. Its type declarations are checked like those of any received computation.

    Args:
      request: The message, without packed functions.
      unpacker: Unpacks the values. It must have been created with the number of clients.
      find_kept: Returns the kept value with a given id and the type of its members.

    Raises:
      InvalidComputationError: If the phase is malformed.
      TypeMismatchError: If the types of its parts are inconsistent.
    """
    signature = type_from_proto(request.program.type)
    if not isinstance(signature, FunctionType):
        raise InvalidComputationError(
            f"Expected a function as the program of a phase, found a computation of type {signature}"
        )
    program = program_from_ir(plans.plan_content(request.program), len(request.input))
    results = [member for _, member in fields_of(cast(StructType, signature.result))]
    values = ReceivedValues(unpacker, find_kept, request.clients)
    inputs: list[Column] = []
    input_types: list[Type] = []
    declared = () if signature.parameter is None else fields_of(cast(StructType, signature.parameter))
    for index, (message, (_, member)) in enumerate(zip(request.input, declared)):
        type_spec = type_from_proto(message.type)
        if not isinstance(type_spec, FederatedType) or not member.is_assignable_from(type_spec.member):
            raise InvalidComputationError(
                f"Expected values of type {member} as input {index} of a phase, found a value of type {type_spec}"
            )
        inputs.append(values.column(message, type_spec.member, f"input {index} of a phase"))
        input_types.append(type_spec.member)
    folds: list[Fold] = []
    arguments: list[FoldArgument] = []
    for message in request.fold:
        fold, argument = _read_fold(message, results, values)
        folds.append(fold)
        arguments.append(argument)
    held = tuple((position, _result(results, position)) for position in request.held)
    alone = read_by_one(program, [*(fold.results for fold in folds), *([position] for position, _ in held)])
    folds = [attrs.evolve(fold, reads_alone=alone[index]) for index, fold in enumerate(folds)]
    phase = Phase(program, tuple(input_types), tuple(folds), held)
    clients = range(request.first_client, request.first_client + request.clients)
    return ReceivedPhase(phase, inputs, arguments, clients, values.offered)


def _result(results: Sequence[Type], position: int) -> Type:
    if position >= len(results):
        raise InvalidComputationError(
            f"Expected a result index from 0 to {len(results) - 1} in a phase, found {position}"
        )
    return results[position]


def _read_fold(
    message: PhaseRequest.Fold, results: Sequence[Type], received: ReceivedValues
) -> tuple[Fold, FoldArgument]:
    intrinsic = find_intrinsic(message.uri)
    if not intrinsic.aggregates:
        raise InvalidComputationError(f"Expected an aggregation at the end of a phase, found {name_text(message.uri)}")
    members = [_result(results, position) for position in message.result]
    server_types = tuple(type_from_proto(argument.type) for argument in message.argument)
    values = [
        received.payload(argument, member, "an argument") for argument, member in zip(message.argument, server_types)
    ]
    functions = [_read_function(function, received) for function in message.function]
    types: list[Type] = [FederatedType(member, CLIENTS) for member in members]
    signatures = [FunctionType(signature.inputs[0], signature.result) for _, signature, _ in functions]
    operands = iter([*types, *server_types])
    callables = iter(signatures)
    wanted = (len(members) + len(server_types), len(functions))
    if wanted != (intrinsic.arity - len(intrinsic.functions), len(intrinsic.functions)) or not members:
        raise InvalidComputationError(
            f"Expected {intrinsic.arity} arguments for {message.uri}, found {len(members)} from clients, "
            f"{len(server_types)} from the server and {len(functions)} functions"
        )
    arguments = [next(callables) if i in intrinsic.functions else next(operands) for i in range(intrinsic.arity)]
    result = cast(FederatedType, intrinsic.rule(arguments))
    fold = Fold(
        message.uri,
        tuple(message.result),
        members[0],
        members[1] if len(members) > 1 else None,
        (),
        server_types,
        tuple(program for program, _, _ in functions),
        tuple(signature for _, signature, _ in functions),
        (),
        result.member,
    )
    return fold, FoldArgument(values, [captures for _, _, captures in functions])


def _read_function(
    message: PhaseRequest.Function, received: ReceivedValues
) -> tuple[Program, ProgramTypes, Sequence[object]]:
    program = program_from_ir(plans.plan_content(message.computation), 1 + len(message.capture))
    declared = cast(FunctionType, type_from_proto(message.computation.type))
    inputs = [member for _, member in fields_of(cast(StructType, declared.parameter))]
    results = fields_of(cast(StructType, declared.result))
    if len(results) != 1:
        raise InvalidComputationError(
            f"Expected a function with one result in an aggregation, found a function with {len(results)} results"
        )
    captures: list[object] = []
    for capture, wanted in zip(message.capture, inputs[1:]):
        type_spec = type_from_proto(capture.type)
        if not wanted.is_assignable_from(type_spec):
            raise InvalidComputationError(
                f"Expected a captured value of type {wanted}, found a value of type {type_spec}"
            )
        captures.append(received.payload(capture, type_spec, "a captured value"))
    return program, ProgramTypes(tuple(inputs), results[0][1]), captures


def check_first_client(request: PhaseRequest) -> None:
    """Checks that the indices of the clients are within the supported range.

    Raises:
      InvalidValueError: If an index is too large.
    """
    if request.first_client + request.clients > _MAX_INDEX:
        raise InvalidValueError(
            f"Expected clients with indices up to {_MAX_INDEX} in a phase, found {request.clients} clients starting at "
            f"index {request.first_client}"
        )
