"""A phase runs where there is no service: its bytes go in, and the bytes of what its clients contributed come out."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.portability import portable
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.schedule import schedule
from fedstack.computations.plan.tasks import Phase, PhaseTask
from fedstack.computations.plan.trace import trace
from fedstack.computations.values.columns import Column, ListColumn
from fedstack.errors import CarrierError, InvalidValueError, LeafError
from fedstack.executors import FederatingExecutor, LeafExecutor, SequenceExecutor
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.folds.aggregations import FoldArgument, partial_states
from fedstack.executors.remote.phase_messages import phase_template, write_phase
from fedstack.executors.remote.phase_results import read_result
from fedstack.executors.worker.phase_pipeline import PhaseHost, answer
from fedstack.executors.worker.receiving import Admission, receive
from fedstack.leaves import Destination
from fedstack.proto.extensions_pb2 import PhaseRequest, PhaseResponse
from fedstack.transport.wire.parcels import Parcel, incoming_of

ANY_CODE = CarrierPolicy(python_code=True)
CLIENTS = range(100, 104)
VECTOR = fl.TensorType(np.float32, [5000])
SENT = [np.full(5000, client, np.float32) for client in range(4)]


def phase_of(body: Callable[[Any], Any]) -> Phase:
    """Returns the phase that maps a function over the clients and sums what it yields."""
    leaf = fedstack.python_computation(VECTOR, VECTOR)(body)

    @fl.federated_computation(fl.FederatedType(VECTOR, fl.CLIENTS))
    def total(values: Any) -> Any:
        return fl.federated_sum(fl.federated_map(leaf, values))

    tasks = schedule(trace(total.to_proto())).tasks
    return next(task.phase for task in tasks if isinstance(task, PhaseTask))


class Here(PhaseHost):
    """Runs phases in executors of this process."""

    @contextlib.contextmanager
    def lend(self, clients: int) -> Iterator[PhaseRunner]:
        with contextlib.closing(FederatingExecutor(SequenceExecutor(LeafExecutor()), clients)) as executor:
            yield executor.phases


def written(phase: Phase, change: Callable[[PhaseRequest], None] = lambda request: None) -> Parcel:
    packer = Packer()
    inputs: list[Column] = [ListColumn(SENT)]
    travelling = partial(portable, destination=Destination(takes_code=True))
    request = write_phase(
        phase_template(phase, travelling, "test"), phase, inputs, [FoldArgument([], [])], CLIENTS, packer
    )
    change(request)
    return Parcel(request.SerializeToString(), packer.segments)


async def answer_parcel(parcel: Parcel, host: PhaseHost) -> Parcel:
    with host.admission.scope.entered():
        return await answer(await receive(incoming_of(parcel), PhaseRequest), host)


def answered(parcel: Parcel, policy: CarrierPolicy = ANY_CODE) -> Parcel:
    admission = Admission(policy)
    try:
        return asyncio.run(answer_parcel(parcel, Here(admission)))
    finally:
        admission.close()


def test_a_phase_of_bytes_becomes_the_bytes_of_what_its_clients_contributed():
    phase = phase_of(lambda x: 2 * x)
    sent = written(phase)
    assert sum(map(len, sent.segments)) == 4 * 5000 * 4, "the values lie beside the message"
    states, unpacker = partial_states(phase, [FoldArgument([], [])]), Unpacker(max_bytes=1 << 20)

    async def read() -> PhaseResult:
        answer = await receive(incoming_of(await answer_parcel(sent, Here(Admission(ANY_CODE)))), PhaseResponse)
        result = read_result(phase, states, CLIENTS, answer.message, unpacker)
        await answer.fill(unpacker)
        return result.complete()

    ((((total,),),),) = [asyncio.run(read()).partials]
    np.testing.assert_array_equal(total.value, np.full(5000, 2 * (0 + 1 + 2 + 3), np.float32))


def test_functions_run_under_the_policy_that_let_them_in():
    def checked(x):
        assert current_scope().is_for_others
        assert current_scope().leaves is not None
        return x

    answered(written(phase_of(checked)))


def test_what_the_policy_does_not_allow_is_refused_before_its_bytes_are_taken():
    without_bytes = Parcel(written(phase_of(lambda x: x)).header)
    with pytest.raises(CarrierError, match="Expected a Python function by reference, found .* by value"):
        answered(without_bytes, CarrierPolicy())


def test_an_error_of_a_client_names_it_as_the_sender_counts():
    def fails_at_two(x):
        if x[0] == 2:
            raise ValueError("two")
        return x

    with pytest.raises(LeafError, match=r"ValueError: two.*at client 102"):
        answered(written(phase_of(fails_at_two)))


def test_bytes_that_are_no_phase_are_refused():
    with pytest.raises(InvalidValueError, match="Expected a serialized PhaseRequest, found 3 bytes"):
        answered(Parcel(b"\xff\xff\xff"))


def test_an_input_that_was_kept_elsewhere_is_not_there():
    def kept(request: PhaseRequest) -> None:
        request.input[0].ClearField("value")
        request.input[0].kept = "an id"

    with pytest.raises(InvalidValueError, match="all its inputs, found a reference to the kept input 'an id'"):
        answered(written(phase_of(lambda x: x), kept))
