"""Functions that do not end keep the threads of their own client, and not those of the others."""

import threading

import numpy as np
import pytest

from fedstack.service import rpc
from fedstack.service.host.limits import ServiceLimits
from fedstack.service.rpc import method_service

WALL = 30.0
MS = int(1000 * WALL)


@pytest.mark.parametrize("timeout_in_ms", [MS, 300])
def test_a_client_whose_calls_do_not_end_leaves_threads_to_others(monkeypatch, timeout_in_ms) -> None:
    monkeypatch.setattr(method_service, "_MOST_AT_ONCE", 4)
    gate, begun = threading.Event(), threading.Semaphore(0)

    def hangs(x):
        begun.release()
        gate.wait(WALL)
        return x

    limits = ServiceLimits(max_abandoned=4)
    with rpc.Server.create("grpc", "localhost:0", service_limits=limits) as server:
        server.register("hangs", hangs, parameter_types=[np.int32], result_type=np.int32)
        server.register("double", lambda x: x * 2, parameter_types=[np.int32], result_type=np.int32)
        try:
            with rpc.Client.create("grpc", server.target, timeout_in_ms=MS) as other:
                with rpc.Client.create("grpc", server.target, timeout_in_ms=MS) as greedy:
                    results = [greedy.call("hangs", [1], timeout_in_ms=timeout_in_ms) for _ in range(30)]
                    for _ in range(4 if timeout_in_ms == MS else 8):
                        assert begun.acquire(timeout=WALL)
                    assert [int(other.double_blocking(number)) for number in range(5)] == [0, 2, 4, 6, 8]
                    if timeout_in_ms != MS:
                        assert all(result.get_error()[0] is not None for result in results)
                assert int(other.double_blocking(7)) == 14
            with rpc.Client.create("grpc", server.target, timeout_in_ms=MS) as third:
                assert int(third.double_blocking(8)) == 16
        finally:
            gate.set()
