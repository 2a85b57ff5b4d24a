"""What becomes of a client's session: when the table is full, when its client is slow, when its client is gone."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import federated_language as fl
import numpy as np
import pytest
from fault_leaves import FLOATS, double, doubled_sum, mean_visit
from fault_stacks import Background, Door, context_over, eventually, executor_at, locally, status_of, stub_to
from processes import WALL, Fleet

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.errors import DeadlineExceededError, ForeignValueError, RemoteError, ResourceLimitError, StaleSessionError
from fedstack.executors import RemoteExecutor
from fedstack.proto import executor_pb2, extensions_pb2
from fedstack.transport.peers.executor_stub import EXTENSIONS, ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

pytestmark = pytest.mark.slow

INT = fl.TensorType(np.int32)
# The end of its child is not that of its session.
LEAVES_A_CONTEXT_OPEN = """
import os, sys
import fedstack
from fault_leaves import doubled_sum
from fault_stacks import status_of

fedstack.set_sync_remote_execution_context(sys.argv[1])
assert doubled_sum([1, 2]) == 6
if os.fork() == 0:
    sys.exit()
os.wait()
print(len(status_of(sys.argv[1]).session), "session", flush=True)
"""


async def test_one_more_session_than_there_is_room_for_is_refused_until_another_ends(fleet: Fleet) -> None:
    worker = fleet.start(max_sessions=2)
    with executor_at(worker.target) as first, executor_at(worker.target) as late:
        with executor_at(worker.target) as second:
            values = [await executor.create_value(np.int32(7), np.int32) for executor in (first, second)]
            with pytest.raises(ResourceLimitError, match="Expected at most 2 sessions at a time"):
                await late.create_value(np.int32(7), np.int32)
            assert [await value.compute() for value in values] == [7, 7]
            second.close()
            await asyncio.to_thread(eventually, lambda: len(status_of(worker.target).session) == 1)
            assert await (await late.create_value(np.int32(8), np.int32)).compute() == 8


def test_a_context_has_one_session_at_a_worker_whatever_the_numbers_of_clients(fleet: Fleet) -> None:
    workers = [fleet.start(max_sessions=1) for _ in range(2)]
    with context_over([worker.target for worker in workers]):
        for clients in range(1, 15):
            assert doubled_sum(list(range(clients))) == clients * (clients - 1)
        numbers = [[session.clients for session in status_of(worker.target).session] for worker in workers]
    assert numbers == [[7], [7]]  # those of the last phase


def test_computations_with_other_numbers_of_clients_run_side_by_side_in_one_session(fleet: Fleet, door: Door) -> None:
    worker = fleet.start(max_sessions=1)
    with context_over([worker.target]):
        visitors = [(door.port, number) for number in (1.0, 2.0, 3.0)]
        waiting = Background(lambda: mean_visit(visitors))
        door.wait_for(waiting, worker.pid)
        assert doubled_sum([1]) == 2
        assert doubled_sum([1, 2]) == 6
        door.open()
        assert waiting.result() == locally(mean_visit, visitors)


def test_a_context_does_not_try_again_where_there_is_no_room(fleet: Fleet, caplog) -> None:
    worker = fleet.start(max_sessions=1)
    with context_over([worker.target]):
        assert doubled_sum([1]) == 2
        with context_over([worker.target]):
            told = f"Expected at most 1 session at a time.*; this is a restriction of the worker at {worker.target}$"
            with pytest.raises(ResourceLimitError, match=told):
                doubled_sum([1, 2])
        assert doubled_sum([3]) == 6
    assert caplog.records == []


def test_a_worker_that_has_no_room_is_done_without_until_it_has_some(fleet: Fleet, caplog, monkeypatch) -> None:
    workers = [fleet.start(max_sessions=1) for _ in range(3)]
    free, full, spare = (worker.target for worker in workers)

    def clients_at(target: str) -> list[int]:
        return [session.clients for session in status_of(target).session]

    with context_over([full]) as other:
        assert doubled_sum([1]) == 2
        with context_over([free, full, spare]):
            for _ in range(3):
                assert doubled_sum([1, 2]) == 6
            assert list(map(clients_at, (free, full, spare))) == [[1], [1], [1]]
            assert [record.getMessage().partition(": Expected at most 1 session")[0] for record in caplog.records] == [
                f"Continuing without the worker at {full}"
            ]  # and nothing of trying again
            other.close()
            monkeypatch.setattr("fedstack.membership.members.FULL_SECONDS", 0.0)
            assert doubled_sum([1, 2, 3]) == 12
            assert list(map(clients_at, (free, full, spare))) == [[1], [1], [1]]


def test_there_is_an_error_where_no_worker_has_room(fleet: Fleet) -> None:
    targets = [fleet.start(max_sessions=1).target for _ in range(2)]
    with context_over(targets):
        assert doubled_sum([1, 2]) == 6
        with context_over(targets):
            for _ in range(2):
                with pytest.raises(ResourceLimitError, match=f"; this is a restriction of the worker at {targets[0]}$"):
                    doubled_sum([1, 2])


def test_a_limit_that_one_of_several_workers_has_names_that_worker(fleet: Fleet) -> None:
    workers = [fleet.start(), fleet.start(max_value_bytes=5)]
    with context_over([worker.target for worker in workers]):
        with pytest.raises(ResourceLimitError, match=f"most 5 bytes .* of the worker at {workers[1].target}$"):
            doubled_sum(list(range(1000)))
        with pytest.raises(ResourceLimitError, match=f"most 5 bytes .* of the worker at {workers[1].target}$"):
            doubled_sum(list(range(100_000)))  # so many are not sent at all


async def test_a_limit_on_values_names_the_worker_that_has_it(fleet: Fleet) -> None:
    worker = fleet.start(max_value_bytes=5)
    with executor_at(worker.target) as executor:
        for size in (10_000, 1_000_000):  # the larger one is not sent at all
            with pytest.raises(ResourceLimitError, match=f"most 5 bytes .* of the worker at {worker.target}$"):
                value = await executor.create_value(np.zeros(size, np.float32), FLOATS)
                await value.compute()


def test_a_full_table_has_room_again_when_the_lease_of_a_dead_client_has_run_out(fleet: Fleet, door: Door) -> None:
    worker = fleet.start(max_sessions=1, lease_seconds=1.0)
    client = fleet.start_client("compute_for_ever", target=worker.target, port=door.port)
    eventually(lambda: client.pid and door.visitors)
    client.kill()
    with context_over([worker.target]):
        eventually(_has_room)


def _has_room() -> bool:
    try:
        return doubled_sum([1, 2]) == 6
    except ResourceLimitError:
        return False


@pytest.mark.long
def test_the_work_of_a_client_that_is_killed_is_cancelled_and_its_values_are_freed(fleet: Fleet, door: Door) -> None:
    worker = fleet.start(lease_seconds=5.0)
    client = fleet.start_client("compute_for_ever", target=worker.target, port=door.port)
    eventually(lambda: door.visitors)
    status = status_of(worker.target)
    assert status.values >= 7
    assert status.bytes > 5 * 2_000_000
    assert status.running == 1
    client.kill()
    eventually(lambda: status_of(worker.target).running == 0)
    assert status_of(worker.target).session  # the connection tells, long before the lease
    eventually(lambda: not status_of(worker.target).session)
    after = status_of(worker.target)
    assert (after.values, after.bytes) == (0, 0)


def test_a_call_that_ctrl_c_ends_leaves_no_session(fleet: Fleet, door: Door) -> None:
    worker = fleet.start(lease_seconds=3600.0)
    client = fleet.start_client("be_interrupted", target=worker.target, port=door.port)
    eventually(lambda: client.pid and door.visitors)
    os.kill(client.pid, signal.SIGINT)
    assert Background(client.listen).result()["answer"] == []
    eventually(lambda: not status_of(worker.target).session)


def said_by(script: str, target: str) -> tuple[bytes, bytes]:
    """Returns what a script writes until it ends in good order."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, target]
    process = subprocess.run(command, env=environment, capture_output=True, timeout=WALL, check=True)
    return process.stdout, process.stderr


def test_a_program_that_ends_ends_the_sessions_of_contexts_that_it_has_not_closed(fleet: Fleet) -> None:
    worker = fleet.start(lease_seconds=3600.0)
    assert said_by(LEAVES_A_CONTEXT_OPEN, worker.target) == (b"1 session\n", b"")
    assert not status_of(worker.target).session


def test_a_program_ends_although_the_worker_of_its_session_stands_still(fleet: Fleet) -> None:
    worker = fleet.start(lease_seconds=3600.0)
    script = f"{LEAVES_A_CONTEXT_OPEN}\nimport signal\nos.kill({worker.pid}, signal.SIGSTOP)"
    assert said_by(script, worker.target) == (b"1 session\n", b"")


def test_a_client_that_is_frozen_for_longer_than_its_lease_finds_its_session_gone(fleet: Fleet) -> None:
    worker = fleet.start(lease_seconds=2.0)
    client = fleet.start_client("pause", target=worker.target)
    assert client.listen() == {"told": "there"}
    assert len(status_of(worker.target).session) == 1
    client.stop()
    eventually(lambda: not status_of(worker.target).session)
    assert status_of(worker.target).bytes == 0
    client.wake()
    client.nod()
    assert client.listen() == {"answer": "StaleSessionError, and then 2.0"}


@pytest.mark.long
def test_a_client_that_is_only_quiet_keeps_its_session(fleet: Fleet) -> None:
    worker = fleet.start(lease_seconds=2.0)
    client = fleet.start_client("pause", target=worker.target)
    assert client.listen() == {"told": "there"}
    until = time.monotonic() + 4.0
    eventually(lambda: not status_of(worker.target).session or time.monotonic() > until)
    client.nod()
    assert client.listen() == {"answer": "still there"}


@pytest.mark.long
def test_a_client_that_wakes_up_after_a_while_does_not_blame_its_worker(fleet: Fleet, door: Door) -> None:
    """The worker's signs of life are all there; the client only has not looked."""
    worker = fleet.start(heartbeat_seconds=0.5)
    client = fleet.start_client("run_one_round", target=worker.target, port=door.port)
    eventually(lambda: door.visitors)
    client.stop()
    until = time.monotonic() + 5.0  # ten heartbeats; four that stay away are too many
    eventually(lambda: time.monotonic() > until)
    client.wake()
    until = time.monotonic() + 0.5
    eventually(lambda: time.monotonic() > until)
    door.open()
    result, said = client.listen()["answer"]
    assert result == locally(mean_visit, [(door.port, 1.0), (door.port, 2.0)])
    assert said == []


@pytest.mark.long
def test_work_that_takes_longer_than_the_lease_keeps_the_session(fleet: Fleet, door: Door) -> None:
    """A client whose own renewals do not get through has a sign of life in the work that it waits for."""
    worker = fleet.start(lease_seconds=2.0)
    client = fleet.start_client("compute_for_ever", target=worker.target, port=door.port)
    eventually(lambda: door.visitors)
    until = time.monotonic() + 4.0
    eventually(lambda: not status_of(worker.target).running or time.monotonic() > until)
    assert status_of(worker.target).running == 1
    door.open()
    assert client.listen() == {"answer": None}


@pytest.mark.long
async def test_a_deadline_ends_a_call_to_a_worker_that_is_frozen(fleet: Fleet) -> None:
    worker = fleet.start()
    with executor_at(worker.target, control_seconds=2.0) as executor:
        value = await executor.create_value(np.int32(1), np.int32)
        assert await value.compute() == 1
        worker.stop()
        with pytest.raises(DeadlineExceededError, match=worker.target):
            await asyncio.wait_for(executor.create_value(double), WALL)
        worker.wake()
        assert await value.compute() == 1


async def test_two_clients_of_one_service_do_not_see_each_others_values(fleet: Fleet) -> None:
    worker = fleet.start()
    stub = stub_to(worker.target)

    async def open_session() -> executor_pb2.ExecutorId:
        return (await io_loop.run(stub.open_session(extensions_pb2.OpenSessionRequest(lease_seconds=60)))).executor

    async def evaluated(request: extensions_pb2.EvaluateRequest) -> extensions_pb2.EvaluateResponse:
        async with stub.exchange(f"/{EXTENSIONS}/Evaluate", request, (), WALL) as answer:
            return extensions_pb2.EvaluateResponse.FromString(await answer.header())

    async def create(session: executor_pb2.ExecutorId, value_id: str, number: int) -> None:
        creation = extensions_pb2.Creation(id=value_id)
        creation.value.type.CopyFrom(INT.to_proto())
        Packer().pack(creation.value.value, np.int32(number), INT)
        await io_loop.run(evaluated(extensions_pb2.EvaluateRequest(executor=session, creation=[creation])))

    async def compute(session: executor_pb2.ExecutorId, value_id: str) -> object:
        ref = executor_pb2.ValueRef(id=value_id)
        response = await io_loop.run(evaluated(extensions_pb2.EvaluateRequest(executor=session, value_ref=ref)))
        return Unpacker(max_bytes=0).unpack(response.value, INT)

    first, second = await open_session(), await open_session()
    assert first.id != second.id
    await create(first, "mine", 1)
    await create(second, "mine", 2)
    await create(first, "only here", 3)
    assert (await compute(first, "mine"), await compute(second, "mine")) == (1, 2)
    with pytest.raises(RemoteError, match="Expected the id of a value in session") as caught:
        await compute(second, "only here")
    assert caught.value.code == "NOT_FOUND"
    # What one disposes of, the other keeps; and what the status shows of a session is not enough to use it.
    await io_loop.run(stub.dispose(executor_pb2.DisposeRequest(executor=first, value_ref=[{"id": "mine"}])))
    assert await compute(second, "mine") == 2
    shown = [session.id for session in (await io_loop.run(stub.get_status())).session]
    assert sorted(shown) == sorted([first.id[:8], second.id[:8]])
    with pytest.raises(StaleSessionError):
        await compute(executor_pb2.ExecutorId(id=shown[0]), "mine")
    await io_loop.run(stub.dispose_executor(executor_pb2.DisposeExecutorRequest(executor=first)))
    assert await compute(second, "mine") == 2
    await io_loop.run(stub.close())


async def test_a_value_of_one_executor_is_refused_by_another_one_at_the_same_worker(fleet: Fleet) -> None:
    worker = fleet.start()
    with executor_at(worker.target) as one, executor_at(worker.target) as other:
        values = [await executor.create_value(np.ones(5, np.float32), FLOATS) for executor in (one, other)]
        assert values[0].id == values[1].id  # each session counts its own
        told = f"<RemoteExecutor at {worker.target}> as .*, found a value of another executor with the same description"
        with pytest.raises(ForeignValueError, match=told):
            await one.create_struct(values)
        one.close()
        assert (await values[1].compute()).tolist() == [1.0] * 5


def test_an_executor_that_nobody_refers_to_any_more_gives_up_its_session(fleet: Fleet) -> None:
    worker = fleet.start()
    stub = stub_to(worker.target)
    Background(lambda: asyncio.run(_put(stub))).result()
    assert len(status_of(worker.target).session) == 1
    eventually(lambda: not status_of(worker.target).session)
    io_loop.run_sync(stub.close(), WALL)


async def _put(stub: ExecutorStub) -> None:
    executor = RemoteExecutor(stub)
    executor.set_cardinalities({})
    await executor.create_value(np.zeros(100_000, np.float32), FLOATS)
