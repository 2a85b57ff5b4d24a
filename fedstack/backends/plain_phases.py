"""Runs client phases over a peer that supports only the plain verbs: clients run on the peer, folds in this process."""

from collections.abc import Sequence
from typing import cast

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.program import IntrinsicSource
from fedstack.computations.plan.program_ir import program_to_ir
from fedstack.computations.plan.render import call_intrinsic, function_of, reference
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import CLIENTS, FederatedType, StructType, computation_pb2
from fedstack.computations.values.columns import Column
from fedstack.computations.values.shared_columns import unshared
from fedstack.errors import CarrierError, InvalidValueError
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult, PhaseSink
from fedstack.executors.concurrency.observed_phases import observed_phase
from fedstack.executors.concurrency.progress import PhaseReport
from fedstack.executors.federating_executor import LocalPhases
from fedstack.executors.folds.aggregations import FoldArguments
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.executors.sequence_executor import SequenceEngine
from fedstack.executors.survivors.tolerance import Tolerance
from fedstack.foundations.caches import made_once
from fedstack.foundations.error_text import with_place
from fedstack.transport.wire.frames import Heartbeat


class PlainPhases(PhaseRunner):
    """Runs phases over a plain executor service.

    The service maps the clients' program over all clients. A program that works on sequences, which some services
    cannot run, runs in this process instead; the service then calls the functions for each element.

    Args:
      remote: The executor of the service, for the number of clients of the phases.
      calls: Runs programs on the service, verb by verb.
      server: Runs the work of folds in this process.
    """

    def __init__(self, remote: RemoteExecutor, calls: ProgramEngine, server: ProgramEngine) -> None:
        self._remote = remote
        self._calls = calls
        self._server = server

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        if current_scope().of(Tolerance) is not None:
            raise InvalidValueError(
                f"Expected a worker that supports client_failures, found {self._remote.stub.address}, which is an "
                "executor service without fedstack's extensions; use a worker of fedstack, or no client_failures"
            )
        local = LocalPhases(self._server, SequenceEngine(self._calls), len(clients))
        with observed_phase(phase.program, clients, self._remote.stub.address):
            if _works_on_sequences(phase):
                return (await local.fold_phase(phase, inputs, arguments, clients, all_clients=False)).partials()
            column = await self._mapped(phase, inputs, len(clients))
            try:
                states = [await local.new_state(fold, argument) for fold, argument in zip(phase.folds, arguments)]
            except CarrierError as error:
                address = self._remote.stub.address
                place = f"in this process, which folds the results of clients on the plain executor service {address}"
                raise with_place(error, place) from error.__cause__
            sink = PhaseSink(phase, states)
            sink.feed(clients.start, [column.field(index) for index in range(len(phase.result_types))])
            return PhaseResult([state.partials() for state in states], sink.columns())

    async def _mapped(self, phase: Phase, inputs: Sequence[object], clients: int) -> Column:
        """Maps the clients' program over the clients on the peer, and returns the clients' results."""
        function = await self._remote.create_value(_mapping(phase))
        argument = None
        if phase.input_types:
            types = StructType([FederatedType(member, CLIENTS) for member in phase.input_types])
            argument = await self._remote.create_known(tuple(unshared(inputs)), types)
        mapped = await self._remote.create_call(function, argument)
        with PhaseReport(current_scope().progress, clients) as report:
            report.heard(Heartbeat(running=clients))  # a plain service reports no progress
            return cast(Column, await mapped.pull())


@made_once
def _works_on_sequences(phase: Phase) -> bool:
    """Returns whether the program contains a sequence intrinsic, which some executor services cannot run."""
    operations = [step.operation for step in phase.program.steps]
    return any(isinstance(one, IntrinsicSource) and one.uri.startswith("sequence_") for one in operations)


@made_once
def _mapping(phase: Phase) -> computation_pb2.Computation:
    """Returns the function that maps the phase's program over the inputs of all clients. Created once per phase."""
    program = program_to_ir(phase.program, phase.input_types, phase.result_types)
    result = FederatedType(StructType(list(phase.result_types)), CLIENTS)
    if phase.input_types:
        types = StructType([FederatedType(member, CLIENTS) for member in phase.input_types])
        zipped_type = FederatedType(StructType(list(phase.input_types)), CLIENTS)
        zipped = call_intrinsic("federated_zip_at_clients", [reference("inputs", types)], zipped_type)
        return function_of("inputs", types, call_intrinsic("federated_map", [program, zipped], result))
    return function_of("", None, call_intrinsic("federated_eval_at_clients", [program], result))
