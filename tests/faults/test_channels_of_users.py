"""Rounds over channels that the user has made, whose streams can only be waited for."""

from collections.abc import Iterator

import grpc
import pytest
from fault_leaves import doubled_sum, mean_visit, models
from fault_stacks import Background, Door, eventually, locally
from processes import Fleet
from tcp_proxy import Proxies

import fedstack
from fedstack.errors import NoWorkersError, RetryLimitError

ONCE = fedstack.RetryPolicy.none()


@pytest.fixture(autouse=True)
def one_open_channel() -> Iterator[None]:
    """gRPC ends its threads some time after the last channel was closed."""
    with grpc.insecure_channel("unix:/nowhere"):
        yield


def test_many_rounds_over_one_channel_run_side_by_side(fleet: Fleet, door: Door) -> None:
    """Each of them waits for its own signs of life, which come seldom, and none for what others wait with."""
    worker = fleet.start(heartbeat_seconds=20.0)
    many = 28  # fewer than the worker has threads for functions
    with grpc.insecure_channel(worker.target) as channel:
        context = fedstack.create_sync_remote_execution_context(channel, retry_policy=ONCE)
        with fedstack.use_context(context):
            running = [Background(lambda: mean_visit([(door.port, 1.0)])) for _ in range(many)]
            eventually(lambda: len(door.visitors) == many or any(work.ended for work in running))
            assert Background(lambda: doubled_sum([1])).result() == 2
            door.open()
            expected = locally(mean_visit, [(door.port, 1.0)])
            assert [work.result() for work in running] == [expected] * many
        context.close()


@pytest.mark.long
def test_a_worker_behind_a_channel_that_dies_is_an_error_in_time(fleet: Fleet, door: Door) -> None:
    worker = fleet.start()
    with grpc.insecure_channel(worker.target) as channel:
        context = fedstack.create_sync_remote_execution_context(
            channel, retry_policy=fedstack.RetryPolicy(attempts=2, first_pause=0.01), connect_seconds=2.0
        )
        with fedstack.use_context(context):
            running = Background(lambda: mean_visit([(door.port, 1.0)]))
            door.wait_for(running, worker.pid)
            worker.kill()
            with pytest.raises(NoWorkersError, match="the peer of a channel"):
                running.result()
        context.close()


@pytest.mark.long
def test_a_stream_over_a_channel_that_stalls_is_given_up(fleet: Fleet, proxies: Proxies) -> None:
    proxy = proxies.before(fleet.start().target)
    with grpc.insecure_channel(proxy.target) as channel:
        context = fedstack.create_sync_remote_execution_context(channel, retry_policy=ONCE)
        with fedstack.use_context(context):
            assert doubled_sum([1]) == 2
            is_receiving = proxy.hold_after("down", 3_000_000)
            running = Background(lambda: models([0.1, 0.2]))
            assert is_receiving.wait(20)
            with pytest.raises(RetryLimitError, match="sent no message or heartbeat"):
                running.result()
            proxy.release()
            assert len(Background(lambda: models([0.1, 0.2])).result()) == 2
        context.close()
