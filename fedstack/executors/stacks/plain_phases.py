"""Runs client phases at a peer that knows the plain verbs only: its clients' work there, and the folds here."""

from collections.abc import Sequence
from typing import cast

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.program import IntrinsicSource
from fedstack.computations.plan.program_ir import program_to_ir
from fedstack.computations.plan.render import call_intrinsic, function_of, reference
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import CLIENTS, FederatedType, StructType, computation_pb2
from fedstack.computations.values.columns import Column, unshared
from fedstack.errors import CarrierError
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.fold_arguments import FoldArguments
from fedstack.executors.base.one_by_one import ForeignEngine
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.concurrency.phase_events import told_phase
from fedstack.executors.concurrency.phase_report import PhaseReport
from fedstack.executors.federating_executor import LocalPhases
from fedstack.executors.folds.phase_sink import PhaseResult, PhaseSink
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.executors.sequence_executor import SequenceEngine
from fedstack.foundations.caches import made_once
from fedstack.foundations.error_text import with_place
from fedstack.transport.wire.frames import Heartbeat


class PlainPhases(PhaseRunner):
    """Runs phases at a plain executor service.

    A program that all such services run is mapped over all clients there. What works on sequences runs here, and has
    the service call the functions, element by element.

    Args:
      remote: The executor at the service. It is closed with this.
      server: Runs what folds need.
      address: Where the service is, for messages.
      clients: How many clients it has.
    """

    def __init__(self, remote: RemoteExecutor, server: ProgramEngine, address: str, clients: int) -> None:
        self._remote = remote
        self._address = address
        self._calls = ForeignEngine(remote)
        self._local = LocalPhases(server, SequenceEngine(self._calls), clients)

    async def open(self) -> None:
        """Opens a session at the service, if there is none yet."""
        await self._remote.open()

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        with told_phase(phase.program, clients, self._address):
            if _works_on_sequences(phase):
                return (await self._local.fold_phase(phase, inputs, arguments, clients, all_clients=False)).partials()
            return await self._mapped(phase, inputs, arguments, clients)

    async def _mapped(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        """Maps the clients' program at the peer, and folds what comes back here."""
        function = await self._remote.create_value(_mapping(phase))
        argument = None
        if phase.input_types:
            types = StructType([FederatedType(member, CLIENTS) for member in phase.input_types])
            argument = await self._remote.create_known(tuple(unshared(inputs)), types)
        mapped = await self._remote.create_call(function, argument)
        with PhaseReport(current_scope().progress, len(clients)) as report:
            report.heard(Heartbeat(running=len(clients)))  # such a peer does not tell more
            column = cast(Column, await mapped.pull())
        try:
            states = [
                await self._local.new_state(fold, argument, clients.start)
                for fold, argument in zip(phase.folds, arguments)
            ]
        except CarrierError as error:
            place = f"in this process, which folds what clients at the plain executor service {self._address} yield"
            raise with_place(error, place) from error.__cause__
        sink = PhaseSink(phase, states)
        sink.feed(clients.start, [column.field(index) for index in range(len(phase.result_types))])
        return PhaseResult([state.partials() for state in states], sink.columns())

    def close(self) -> None:
        self._remote.close()
        self._calls.close()


@made_once
def _works_on_sequences(phase: Phase) -> bool:
    """Returns whether the program has an intrinsic that not every executor service runs."""
    operations = [step.operation for step in phase.program.steps]
    return any(isinstance(one, IntrinsicSource) and one.uri.startswith("sequence_") for one in operations)


@made_once
def _mapping(phase: Phase) -> computation_pb2.Computation:
    """Returns the function of the inputs at all clients that maps the program over them; made once per phase."""
    program = program_to_ir(phase.program, phase.input_types, phase.result_types)
    result = FederatedType(StructType(list(phase.result_types)), CLIENTS)
    if phase.input_types:
        types = StructType([FederatedType(member, CLIENTS) for member in phase.input_types])
        zipped_type = FederatedType(StructType(list(phase.input_types)), CLIENTS)
        zipped = call_intrinsic("federated_zip_at_clients", [reference("inputs", types)], zipped_type)
        return function_of("inputs", types, call_intrinsic("federated_map", [program, zipped], result))
    return function_of("", None, call_intrinsic("federated_eval_at_clients", [program], result))
