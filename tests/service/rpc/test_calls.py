"""Calls of methods: what they take, what they return, and what they say when something is wrong."""

import asyncio
import gc
import inspect
import threading
import weakref

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import computation_pb2
from served_methods import WALL, add, calls_of, fail, within_wall

import fedstack
from fedstack.errors import (
    CarrierError,
    ClosedError,
    ClosureCancelledError,
    DeadlineExceededError,
    InvalidValueError,
    LeafError,
    RemoteError,
    StaleSessionError,
    TypeMismatchError,
    WorkerUnavailableError,
)
from fedstack.foundations.deadline import Deadline
from fedstack.service import rpc
from fedstack.service.rpc import Code, method_calls
from fedstack.service.rpc.method_calls import MethodCalls


def test_a_call_returns_at_once_and_its_outcome_can_be_asked_for(client, gate):
    result = client.call("wait", [3])
    assert gate.come.acquire(timeout=WALL)
    assert not result.done()
    assert repr(result).endswith("running>")
    gate.opened.set()
    assert result.is_ok() is True
    assert result.get_error() == (Code.OK, "")
    assert result.get_value() == 3
    assert result.get_value() is result.get_value()
    assert type(result.get_value()) is np.int32


def test_a_dropped_result_still_runs(client, gate):
    client.wait(1)
    assert gate.come.acquire(timeout=WALL)
    gate.opened.set()
    assert client.wait_blocking(2) == 2
    within_wall(lambda: gate.left == 2, "the dropped call never came to its end")


def test_a_dropped_client_lets_its_calls_run(server, gate):
    result = rpc.Client.create("grpc", server.target).wait(5)
    assert gate.come.acquire(timeout=WALL)
    gate.opened.set()
    assert result.get_value() == 5


def test_methods_are_shown_with_docs_and_a_signature(client):
    assert client.add.__name__ == "add"
    assert client.add.__doc__.startswith(
        "Starts a call to the method add(x: int32, y: int32) -> int32 of the server at localhost:"
    )
    assert client.add.__doc__.endswith("Adds two numbers.")
    assert list(inspect.signature(client.add).parameters) == ["x", "y", "timeout_in_ms"]
    assert inspect.signature(client.add_blocking).return_annotation == fl.TensorType(np.int32)
    assert {"add", "add_blocking", "mean", "nothing"} <= set(dir(client))
    assert "odd name" not in dir(client)
    assert client.methods["mean"] == "mean(arg: {float32}@CLIENTS) -> float32@SERVER"


def test_arguments_go_by_position_and_by_name(client):
    assert client.add_blocking(1, 2) == 3
    assert client.add_blocking(1, y=2) == 3
    assert client.add_blocking(y=1, x=2) == 3
    assert client.call("add", [1, 2]).get_value() == 3
    assert client.call("add", {"y": 1, "x": 2}).get_value() == 3
    assert client.call("double", np.ones(2, np.float32)).get_value().tolist() == [2.0, 2.0]


def test_odd_names_are_reached_by_call_and_void_methods_return_none(client):
    assert client.call("odd name").get_value() == 7
    assert client.nothing_blocking() is None


def test_a_federated_method_runs_for_as_many_clients_as_its_argument_has(client):
    assert client.mean_blocking([1.0, 2.0, 6.0]) == 3.0
    assert client.mean_blocking([4.0]) == 4.0
    assert np.isnan(client.mean_blocking([]))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([1], "Expected 2 arguments (x: int32, y: int32), found 1 by position; pass each argument exactly once"),
        ([1, 2, 3], "Expected 2 arguments (x: int32, y: int32), found 3 by position; pass each argument exactly once"),
        ([1, 2.5], "Expected int32, found float 2.5; at y"),
        (
            [1, [2]],
            "Expected shape [] of int32, found shape [1]; at y; pass the value without the list around it, or declare",
        ),
        (
            {"x": 1, "z": 2},
            "Expected 2 arguments (x: int32, y: int32), found 0 by position and x, z by name; ",
        ),
    ],
)
def test_a_misfit_is_the_same_error_from_call_and_from_a_method(client, args, message):
    code, found = client.call("add", args).get_error()
    assert code == Code.INVALID_ARGUMENT
    assert found.startswith(message)
    assert found.endswith("; in a call of 'add'")
    with pytest.raises(TypeMismatchError) as raised:
        client.add(**args) if isinstance(args, dict) else client.add(*args)
    assert str(raised.value) == found
    with pytest.raises(TypeError):
        client.call("add", args).get_value()


def test_the_rank_of_an_array_is_checked(client):
    with pytest.raises(TypeMismatchError, match=r"Expected shape \[\?\] of float32, found shape \[1,1\]|found shape"):
        client.double(np.ones((1, 1), np.float32))


def test_an_unknown_method_is_not_found_and_near_names_are_told(client):
    assert client.call("ad", [1, 2]).get_error() == (
        Code.NOT_FOUND,
        "Expected the name of a method, found 'ad'; did you mean 'add'?",
    )
    with pytest.raises(RemoteError):
        client.call("ad").get_value()
    with pytest.raises(AttributeError, match="did you mean add"):
        client.ad(1, 2)
    assert not hasattr(client, "call_blocking")


@pytest.mark.parametrize("name", [None, 3, b"add"])
def test_a_name_that_is_no_text_is_refused(client, name):
    with pytest.raises(InvalidValueError, match="Expected the name of a method as a string"):
        client.call(name)


def test_output_specs_are_checked_and_can_be_left_out(client):
    assert client.call("add", [1, 2], output_specs=np.int32).get_value() == 3
    assert client.call("double", [[1.0]], output_specs=(np.float32, [None])).get_value() == 2.0
    for specs, words in (
        (np.float32, "Expected int32 as output_specs, found float32"),
        ((np.int32, [1]), r"found int32\[1\]"),
        ([np.int32, np.int32], "found <int32,int32>"),
        ("nonsense", "Expected a type as output_specs"),
    ):
        with pytest.raises(TypeMismatchError, match=words):
            client.call("add", [1, 2], output_specs=specs).get_value()


def test_an_error_of_the_function_is_its_own_with_a_clean_message(client):
    code, message = client.call("fail", [3]).get_error()
    assert code == Code.UNKNOWN
    assert message.startswith("'fail' raised ValueError: 3 is no good")
    with pytest.raises(LeafError) as raised:
        client.fail_blocking(3)
    assert str(raised.value) == message  # a str, and not bytes
    assert raised.value.computation_name == "fail"


def test_a_deadline_ends_the_call_here_and_at_the_server(server, client, gate):
    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def waits(values):
        return fl.federated_sum(fl.federated_map(fedstack.python_computation(np.int32, np.int32)(gate.wait), values))

    server.register("waits", waits)
    result = client.call("waits", [list(range(100))], timeout_in_ms=1500)
    assert result.get_error()[0] == Code.DEADLINE_EXCEEDED
    with pytest.raises(TimeoutError, match="within 1.5 seconds"):
        result.get_value()
    within_wall(lambda: calls_of(server)["waits"].running == 0, "the server goes on")
    gate.opened.set()
    client.add_blocking(1, 2)
    assert gate.left < 100  # those that had not begun never do
    assert (calls_of(server)["waits"].ended, calls_of(server)["waits"].failed) == (1, 1)


@pytest.mark.parametrize("inline", [False, True])
def test_what_a_method_itself_calls_says_nothing_about_the_call_of_it(server, client, inline):
    met = [
        DeadlineExceededError("no answer"), WorkerUnavailableError("gone"), ClosedError("closed"),
        TypeMismatchError("Expected 1, found 2"), InvalidValueError("no value"), StaleSessionError("old"),
    ]  # fmt: skip

    def meets(which):
        raise met[which]

    server.register("meets", meets, inline, parameter_types=[np.int32], result_type=np.int32)
    for which, error in enumerate(met):
        code, message = client.call("meets", [which]).get_error()
        assert code == Code.UNKNOWN
        assert message.startswith(f"'meets' raised {type(error).__name__}: {error}")
    with pytest.raises(LeafError):
        client.meets_blocking(0)


def test_a_deadline_that_the_server_notices_first_is_told_in_the_same_words(client, gate, monkeypatch):
    class WithoutLimit(Deadline):
        async def wait(self, work, late=asyncio.TimeoutError):
            return await work

    monkeypatch.setattr(method_calls, "Deadline", WithoutLimit)
    with pytest.raises(DeadlineExceededError, match="an answer to a call of 'wait' from .* within 1.5 seconds"):
        client.wait(1, timeout_in_ms=1500).get_value()


def test_functions_of_methods_keep_to_the_bound_of_the_stack_that_runs_them():
    inside, most, pair = [], [], threading.Barrier(2)

    def counts(number):
        inside.append(number)
        most.append(len(inside))
        pair.wait(WALL)  # two are in at the same time
        inside.remove(number)
        return number

    factory = fedstack.local_executor_factory(max_concurrent_clients=2)
    server = rpc.Server.create("grpc", "localhost:0", factory=factory)
    server.register("counts", counts, parameter_types=[np.int32], result_type=np.int32)
    with server, rpc.Client.create("grpc", server.target, timeout_in_ms=WALL * 1000) as client:
        results = [client.counts(number) for number in range(20)]
        assert [result.get_value() for result in results] == list(range(20))
    assert max(most) == 2


def test_who_asks_for_a_result_gets_an_error_of_its_own_and_nothing_keeps_it(client):
    result = client.fail(3)
    result.is_ok()
    gc.collect()
    gc.disable()
    try:
        told: list[weakref.ref[BaseException]] = []
        for _ in range(2):
            with pytest.raises(LeafError, match="3 is no good") as raised:
                result.get_value()
            told.append(weakref.ref(raised.value))
            del raised
        assert told[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("inline", [False, True], ids=["on a thread", "inline"])
def test_errors_name_the_executors_that_they_came_through(inline):
    message = computation_pb2.Computation()
    message.CopyFrom(add.to_proto())
    message.tensorflow.graph_def.Pack(computation_pb2.Type())
    unknown = fl.framework.ConcreteComputation(
        computation_proto=message, context_stack=fl.framework.get_context_stack()
    )
    with rpc.Server.create("grpc", "localhost:0") as server:
        server.register("unknown", unknown, inline)
        server.register("fail", fail, inline, parameter_types=[np.int32], result_type=np.int32)
        with rpc.Client.create("grpc", server.target, timeout_in_ms=WALL * 1000) as client:
            for call, expected in (
                (lambda: client.unknown_blocking(1, 2), CarrierError),
                (lambda: client.fail_blocking(1), LeafError),
            ):
                for _ in range(2):
                    with pytest.raises(expected) as raised:
                        call()
                    assert raised.value.executor_path[0] == "ReferenceResolvingExecutor"


def test_a_call_that_comes_while_the_server_ends_is_refused_and_leaves_nothing(server, client):
    assert client.add_blocking(1, 2) == 3
    server._methods._threads.close()
    with pytest.raises(ClosedError):  # and Python complains of no coroutine that is never awaited
        client.add_blocking(1, 2)
    gc.collect()


def test_a_method_that_was_short_may_take_long(client, gate):
    gate.opened.set()
    assert [client.wait_blocking(n) for n in range(3)] == [0, 1, 2]
    gate.opened.clear()
    results = [client.wait(n) for n in range(3)]
    with pytest.raises(DeadlineExceededError):
        client.wait_blocking(3, timeout_in_ms=50)
    assert client.add_blocking(1, 2) == 3
    gate.opened.set()
    assert [result.get_value() for result in results] == [0, 1, 2]


@pytest.mark.long
def test_a_call_may_override_the_clients_deadline(server, gate):
    with rpc.Client.create("grpc", server.target, timeout_in_ms=2000) as client:
        with pytest.raises(DeadlineExceededError):
            client.wait_blocking(1)
        results = [client.wait(2, timeout_in_ms=-1), client.wait(3, timeout_in_ms=WALL * 1000)]
        for _ in range(3):
            assert gate.come.acquire(timeout=WALL)
        gate.opened.set()
        assert [result.get_value() for result in results] == [2, 3]


@pytest.mark.parametrize("timeout", [None, "1", True, float("nan")])
def test_a_timeout_is_a_number(client, timeout):
    with pytest.raises(InvalidValueError, match="Expected a number as timeout_in_ms"):
        client.call("add", [1, 2], timeout_in_ms=timeout)


def test_a_result_can_be_awaited_on_any_loop(client):
    async def several():
        return await asyncio.gather(*[client.add(i, 1) for i in range(8)], client.call("odd name"))

    assert asyncio.run(several()) == [*range(1, 9), 7]

    async def wrong():
        await client.fail(1)

    with pytest.raises(LeafError):
        asyncio.run(wrong())


def test_cancelling_ends_the_call(client, gate):
    result = client.wait(1)
    assert gate.come.acquire(timeout=WALL)
    assert result.cancel()
    assert result.get_error() == (Code.CANCELLED, f"the call of 'wait' at {client.target} was cancelled")
    assert not result.cancel()
    with pytest.raises(ClosureCancelledError, match="the call of 'wait' at .* was cancelled"):
        result.get_value()


def test_64_calls_wait_for_each_other(server, client):
    barrier = threading.Barrier(64)
    server.register("meet", lambda x: (barrier.wait(WALL), x)[1], parameter_types=[np.int32], result_type=np.int32)
    results = [client.call("meet", [i]) for i in range(64)]
    assert [result.get_value() for result in results] == list(range(64))


def test_threads_share_a_client(client):
    found = []

    def work(first):
        found.extend(client.add_blocking(first, i) for i in range(20))

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [100 * i + j for i in range(8) for j in range(20)]


def test_a_closed_client_says_so(server):
    client = rpc.Client.create("grpc", server.target)
    client.close()
    client.close()
    assert client.call("add", [1, 2]).get_error()[0] == Code.ABORTED
    with pytest.raises(ClosedError):
        client.add(1, 2)


def test_closing_ends_the_calls_that_run(server, gate):
    client = rpc.Client.create("grpc", server.target)
    result = client.wait(1)
    assert gate.come.acquire(timeout=WALL)
    client.close()
    with pytest.raises(ClosedError):
        result.get_value()


def test_a_client_of_several_servers_is_refused(server):
    with pytest.raises(InvalidValueError, match="Expected the address of one server, found 2"):
        rpc.Client.create("grpc", [server.target, server.target])


def test_an_array_may_be_changed_once_a_small_call_has_been_made(client):
    array = np.ones(200_000, np.float32)
    results = []
    for i in range(5):
        array[:] = i
        results.append(client.double(array))
    array[:] = -1
    assert [result.get_value()[0] for result in results] == [0, 2, 4, 6, 8]
    assert all(result.get_value().flags.writeable for result in results)


def test_large_arguments_and_results_go_in_frames(client):
    array = np.arange(5_000_000, dtype=np.float32)
    assert np.array_equal(client.double_blocking(array), array * 2)


def test_a_method_that_waits_inline_for_its_own_server_is_told_so(server, client):
    def nested(x):
        return client.add_blocking(x, 1)

    server.register("nested", nested, parameter_types=[np.int32], result_type=np.int32)
    server.register("nested_inline", nested, True, parameter_types=[np.int32], result_type=np.int32)
    client.refresh()
    assert client.nested_blocking(1) == 2
    with pytest.raises(LeafError, match="raised ClosedError: .*register that method without inline"):
        client.nested_inline_blocking(1)
    assert client.add_inline_blocking(2, 2) == 4


def test_an_empty_server_has_nothing_but_call():
    with rpc.Server.create("grpc", "localhost:0") as server, rpc.Client.create("grpc", server.target) as client:
        assert client.methods == {}
        assert client.call("add").get_error() == (
            Code.NOT_FOUND,
            "Expected the name of a method, found 'add'; the server has no methods",
        )


def test_who_waits_for_a_server_is_told_when_the_client_is_closed(monkeypatch):
    learns, learn = threading.Semaphore(0), MethodCalls._learn

    async def counted(calls: MethodCalls) -> None:
        learns.release()
        await learn(calls)

    monkeypatch.setattr(MethodCalls, "_learn", counted)
    client = rpc.Client.create("grpc", "localhost:1", list_registered_methods=False)
    errors: list[BaseException] = []

    def refresh() -> None:
        try:
            client.refresh()
        except BaseException as error:
            errors.append(error)

    async def enter() -> None:
        try:
            async with client:
                pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=refresh), threading.Thread(target=lambda: asyncio.run(enter()))]
    for thread in threads:
        thread.start()
    result = client.call("add", [1, 2])
    for _ in range(3):
        assert learns.acquire(timeout=WALL)
    client.close()
    for thread in threads:
        thread.join(WALL)
    with pytest.raises(ClosedError, match="The client of localhost:1 is closed"):
        result.get_value()
    assert [type(error) for error in errors] == [ClosedError] * 2
