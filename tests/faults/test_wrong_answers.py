"""Servers that answer with something else than they should: each answer is an error of a class that says so."""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from fault_leaves import FLOATS, double, doubled_sum, mean_wobble, models, wobble
from fault_stacks import Background, context_over, eventually, executor_at, locally
from processes import WALL, Fleet
from wrong_service import WrongService, frames_in_answer, phase_response, raising, served, stream, unary

import fedstack
from fedstack.backends.workers_backend import WorkersBackend
from fedstack.computations.codec.packing import Packer
from fedstack.errors import (
    CardinalityError,
    DeadlineExceededError,
    FedstackError,
    InvalidValueError,
    ProtocolVersionError,
    RemoteError,
    ResourceLimitError,
    RetryLimitError,
    StaleSessionError,
    TypeMismatchError,
    WorkerUnavailableError,
)
from fedstack.executors.remote.workers import Worker, Workers
from fedstack.membership.member import MemberState
from fedstack.proto import executor_pb2, extensions_pb2
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers import connection as connections
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.methods import DownloadMethod, ExchangeMethod, Method, StreamMethod
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.frames import Header, header_frame, heartbeat_frame, parse_frame
from fedstack.transport.wire.parcels import Parcel
from fedstack.transport.wire.status import Code, StatusError

FLOAT = fl.TensorType(np.float32).to_proto().tensor.dtype
GARBAGE = b"\xff\xff\xff\xff"
NUMBERS = [0.1, 0.2, 0.3, 0.4, 0.5]
ONCE = fedstack.RetryPolicy.none()


@pytest.fixture(autouse=True)
def only_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends everything in frames: what the servers here get wrong stands in their frames."""
    monkeypatch.setattr(connections, "fits_whole", lambda parcel: False)


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def wobbles(xs):
    return fl.federated_map(wobble, xs)


def round_with(wrong: Any, computation: Any = mean_wobble, **limits: Any) -> Any:
    """Runs one round at a worker that does one thing wrong in it."""
    with served(WrongService({"RunPhase": wrong}, **limits)) as target:
        with context_over([target], retry_policy=ONCE):
            return Background(lambda: computation(NUMBERS)).result()


def test_a_service_with_nothing_wrong_gives_the_right_result() -> None:
    assert round_with(stream(lambda frames: frames)) == locally(mean_wobble, NUMBERS)
    assert round_with(phase_response(lambda response: None)) == locally(mean_wobble, NUMBERS)


def header_of(frames: Sequence[bytes]) -> bytes:
    return next(frame for frame in frames if isinstance(parse_frame(frame), Header))


def data_frame(size: int) -> bytes:
    return extensions_pb2.Frame(data=bytes(size)).SerializeToString()


WRONG_STREAMS = {
    "nothing": (lambda frames: [], "the end of the stream"),
    "heartbeats only": (lambda frames: [heartbeat_frame()] * 3, "the end of the stream"),
    "data without a header": (lambda frames: [data_frame(8), *frames], "found a Data"),
    "a header twice": (lambda frames: [*frames, header_of(frames)], "found a Header"),
    "too much data": (lambda frames: [*frames, data_frame(1)], "found at least .*; check that the peer"),
    "bytes that are no frame": (lambda frames: [GARBAGE], "bytes that are not a frame"),
    "an empty frame": (lambda frames: [b""], "an unknown frame of 0 bytes"),
    "a header that is none": (
        lambda frames: [extensions_pb2.Frame(header=GARBAGE).SerializeToString()],
        "PhaseResponse, found",
    ),
    "an empty header": (
        lambda frames: [header_frame(extensions_pb2.PhaseResponse().SerializeToString())],
        "Expected the results of 1 aggregations and 0 columns, found 0 aggregations and 0 columns",
    ),
}


@pytest.mark.parametrize(("change", "complaint"), WRONG_STREAMS.values(), ids=WRONG_STREAMS)
def test_a_wrong_stream_is_an_invalid_value(change, complaint) -> None:
    with pytest.raises(InvalidValueError, match=complaint):
        round_with(stream(change))


def test_a_stream_that_ends_before_its_data_is_an_invalid_value() -> None:
    with pytest.raises(InvalidValueError, match="The stream ended after 0 of"):
        round_with(stream(lambda frames: [header_of(frames)]), models)


def _set(path: str, value: object) -> Any:
    """Returns what sets a field of the contribution to the first fold."""

    def change(response: extensions_pb2.PhaseResponse) -> None:
        *way, last = path.split(".")
        message: Any = response.fold[0]
        for step in way:
            message = message[int(step)] if step.isdigit() else getattr(message, step)
        if isinstance(value, int):
            setattr(message, last, value)
        else:
            getattr(message, last).CopyFrom(value)

    return change


def _shortened(response: extensions_pb2.PhaseResponse) -> None:
    """Makes it the whole answer of a worker that has left the last of five clients to others."""
    response.shortened = response.fold[0].clients = 4
    response.fold[0].tree[0].partial.pop()


WRONG_PARTIALS = {
    "too few clients": (
        lambda response: response.fold[0].tree[0].partial.pop(),
        InvalidValueError,
        "fold of 4 of these",
    ),
    "no clients": (lambda response: response.fold[0].tree[0].ClearField("partial"), InvalidValueError, "0 of these"),
    "too many clients": (
        lambda response: response.fold[0].tree[0].partial.add().CopyFrom(response.fold[0].tree[0].partial[0]),
        InvalidValueError,
        "fold of block 0 of 2\\^2",
    ),
    "another number of clients": (
        _set("clients", 4),
        InvalidValueError,
        "Expected the fold of clients 0 to 4, found 4",
    ),
    "an endless number of clients": (_set("clients", (1 << 64) - 1), InvalidValueError, "Expected the fold of clients"),
    "a block elsewhere": (_set("tree.0.partial.1.position", 3), InvalidValueError, "fold of block 3 of 2\\^0"),
    "a block of a giant": (_set("tree.0.partial.0.level", 63), InvalidValueError, "fold of block 0 of 2\\^63"),
    "a level beyond numbers": (_set("tree.0.partial.0.level", (1 << 32) - 1), InvalidValueError, "Expected the fold"),
    "no trees": (lambda response: response.fold[0].ClearField("tree"), InvalidValueError, "the folds of 1 tensors"),
    "two trees": (lambda response: response.fold[0].tree.add(), InvalidValueError, "folds of 2;"),
    "two folds": (lambda response: response.fold.add(), InvalidValueError, "found 2 aggregations and 0"),
    "handed in without being asked": (
        lambda response: setattr(response, "handed_in", 2),
        InvalidValueError,
        "Expected the fold of clients 0 to 1, found 5",
    ),
    "more handed in than there are": (
        lambda response: setattr(response, "handed_in", 2**64 - 1),
        InvalidValueError,
        "Expected the contribution of clients 0 to 4, found one of 18446744073709551615 clients",
    ),
    "shortened to more than there are": (
        lambda response: setattr(response, "shortened", 6),
        InvalidValueError,
        "Expected the contribution of clients 0 to 4, found one of 6 clients",
    ),
    "shortened without being asked": (
        _shortened,
        RemoteError,
        "Expected the contributions of all clients from .*, found none of client 4; check",
    ),
    "a column": (lambda response: response.held.add(), InvalidValueError, "found 1 aggregations and 1"),
    "a value of no kind": (
        _set("tree.0.partial.0.value", extensions_pb2.Packed()),
        TypeMismatchError,
        "Expected float32, found an empty message",
    ),
    "a struct": (
        _set("tree.0.partial.0.value", extensions_pb2.Packed(struct=extensions_pb2.Packed.Members())),
        TypeMismatchError,
        "Expected float32, found struct",
    ),
    "bytes to follow that do not fit": (
        _set("tree.0.partial.0.value", extensions_pb2.Packed(raw=extensions_pb2.Packed.Raw(dtype=FLOAT, dim=[5]))),
        TypeMismatchError,
        "Expected float32",
    ),
}


@pytest.mark.parametrize(("change", "error", "complaint"), WRONG_PARTIALS.values(), ids=WRONG_PARTIALS)
def test_wrong_partial_results_are_noticed(change, error, complaint) -> None:
    with pytest.raises(error, match=complaint):
        round_with(phase_response(change))


def _float64(response: extensions_pb2.PhaseResponse) -> None:
    array = response.fold[0].tree[0].partial[0].value.array
    array.dtype = fl.TensorType(np.float64).to_proto().tensor.dtype


def test_a_partial_result_of_another_dtype_is_noticed() -> None:
    with pytest.raises(TypeMismatchError, match="float32"):
        round_with(phase_response(_float64))


@pytest.mark.parametrize("clients", [0, 4, 6, 1 << 40])
def test_a_column_for_another_number_of_clients_is_noticed(clients) -> None:
    def change(response: extensions_pb2.PhaseResponse) -> None:
        one = extensions_pb2.Packed()
        Packer().pack(one, np.float32(1), fl.TensorType(np.float32))
        response.held[0].same.CopyFrom(extensions_pb2.Packed.Same(clients=clients, member=one))

    with pytest.raises((CardinalityError, ResourceLimitError), match="clients"):
        round_with(phase_response(change), wobbles)


def test_more_memory_than_there_is_cannot_be_announced() -> None:
    def change(response: extensions_pb2.PhaseResponse) -> None:
        response.held[0].rows.CopyFrom(extensions_pb2.Packed.Raw(dtype=FLOAT, dim=[1 << 50]))

    with pytest.raises(ResourceLimitError, match="bytes of arrays in one message"):
        round_with(phase_response(change), wobbles)


CODES = {
    Code.CANCELLED: RetryLimitError,  # it says so of itself when it is shutting down
    Code.UNKNOWN: RemoteError,
    Code.INVALID_ARGUMENT: InvalidValueError,
    Code.DEADLINE_EXCEEDED: RetryLimitError,
    Code.NOT_FOUND: RemoteError,
    Code.RESOURCE_EXHAUSTED: ResourceLimitError,
    Code.FAILED_PRECONDITION: RetryLimitError,
    Code.ABORTED: RemoteError,
    Code.UNIMPLEMENTED: RemoteError,
    Code.INTERNAL: RemoteError,
    Code.UNAVAILABLE: RetryLimitError,
    Code.DATA_LOSS: RemoteError,
}


@pytest.mark.parametrize(("code", "error"), CODES.items(), ids=[code.name for code in CODES])
def test_every_status_is_an_error_that_has_its_message(code, error) -> None:
    with pytest.raises(error, match="the reason"):
        round_with(raising(lambda: StatusError(code, "the reason")))


def everything(make: Any) -> dict[str, Any]:
    """Returns the same wrong method for every method there is."""
    names = [name for methods in WrongService({}).methods.values() for name in methods]
    return dict.fromkeys(names, make)


async def test_a_server_that_implements_nothing_is_told_from_one_that_is_not_there() -> None:
    wrong = WrongService(everything(raising(lambda: StatusError(Code.UNIMPLEMENTED, "no such method"))))
    with served(wrong) as target:
        with executor_at(target) as executor, pytest.raises(RemoteError, match="no such method") as caught:
            await executor.create_value(double)
        assert caught.value.code == "UNIMPLEMENTED"

        def run() -> None:
            with context_over([target], retry_policy=ONCE):
                doubled_sum([1, 2])

        with pytest.raises(RemoteError, match="no such method"):
            await asyncio.to_thread(run)


@pytest.mark.parametrize("content", [GARBAGE, b"", b"\x0a\x03abc" * 5], ids=["garbage", "nothing", "another message"])
def test_a_server_that_answers_everything_alike_is_an_error_of_ours(content) -> None:
    def make(right: Method) -> Method:
        async def answer(_: object) -> AsyncIterator[bytes]:
            yield content

        if isinstance(right, (DownloadMethod, ExchangeMethod)):
            return StreamMethod(answer)

        async def answer_once(_: object) -> bytes:
            return content

        return type(right)(answer_once)

    with served(WrongService(everything(make))) as target:
        with context_over([target], retry_policy=ONCE, connect_seconds=2.0):
            with pytest.raises((InvalidValueError, ProtocolVersionError), match=target):
                Background(lambda: doubled_sum([1, 2])).result()


@pytest.mark.parametrize("method", ["Handshake", "OpenSession", "Evaluate"])
async def test_garbage_in_answer_to_one_method_is_an_error_that_names_the_peer(method) -> None:
    def garbage(right: Method) -> Method:
        async def answer(_: object) -> Any:
            return GARBAGE

        async def answers(_: object) -> AsyncIterator[bytes]:
            yield GARBAGE

        return StreamMethod(answers) if isinstance(right, ExchangeMethod) else type(right)(answer)

    with served(WrongService({method: garbage})) as target:
        with executor_at(target) as executor:

            async def work() -> None:
                function = await executor.create_value(fedstack.python_computation([FLOATS], FLOATS)(lambda x: x))
                large = await executor.create_value(np.zeros(1_000_000, np.float32), FLOATS)
                await (await executor.create_call(function, large)).compute()

            with pytest.raises(InvalidValueError):
                await asyncio.wait_for(work(), WALL)


WRONG_VALUES = {
    "a struct": extensions_pb2.Packed(struct=extensions_pb2.Packed.Members()),
    "a computation": extensions_pb2.Packed(computation=fl.federated_computation(lambda: np.int32(1)).to_proto()),
    "clients": extensions_pb2.Packed(clients=extensions_pb2.Packed.Members()),
}


@pytest.mark.parametrize("value", WRONG_VALUES.values(), ids=WRONG_VALUES)
async def test_a_value_of_another_type_is_a_type_mismatch(value) -> None:
    async def swap(_: object) -> AsyncIterator[Parcel]:
        yield Parcel(extensions_pb2.EvaluateResponse(value=value).SerializeToString())

    with served(WrongService({"Evaluate": lambda right: ExchangeMethod(swap)})) as target:
        with executor_at(target) as executor:
            with pytest.raises(TypeMismatchError, match="int32"):
                await (await executor.create_value(np.int32(1), np.int32)).compute()


async def test_a_plain_peers_value_of_another_type_is_a_type_mismatch() -> None:
    def swap(content: bytes) -> bytes:
        response = executor_pb2.ComputeResponse()
        response.value.struct.SetInParent()
        return response.SerializeToString()

    unknown = raising(lambda: StatusError(Code.UNIMPLEMENTED, "no such method"))
    with served(WrongService({"Handshake": unknown, "Compute": unary(swap)})) as target:
        with executor_at(target) as executor:
            with pytest.raises(TypeMismatchError, match="int32"):
                await (await executor.create_value(np.int32(1), np.int32)).compute()


def test_another_version_of_the_protocol_is_not_waited_for() -> None:
    def later(content: bytes) -> bytes:
        response = extensions_pb2.HandshakeResponse.FromString(content)
        response.protocol = 7
        return response.SerializeToString()

    with served(WrongService({"Handshake": unary(later)})) as target:
        with context_over([target], connect_seconds=WALL):
            with pytest.raises(ProtocolVersionError, match="Expected protocol 1 .*found protocol 7"):
                Background(lambda: doubled_sum([1, 2])).result(WALL / 2)


@pytest.mark.parametrize("seconds", [math.nan, -1.0, 0.0])
def test_silence_is_noticed_whatever_a_server_says_of_its_heartbeats(seconds) -> None:
    def claim(content: bytes) -> bytes:
        response = extensions_pb2.HandshakeResponse.FromString(content)
        response.heartbeat_seconds = seconds
        return response.SerializeToString()

    with served(WrongService({"Handshake": unary(claim), "RunPhase": silent})) as target:
        with context_over([target], retry_policy=ONCE):
            with pytest.raises(
                RetryLimitError, match="the worker at .* sent no message or heartbeat within 0.4 seconds"
            ):
                Background(lambda: doubled_sum([1, 2])).result()


def silent(right: Method) -> Method:
    async def wait(_: object) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    return StreamMethod(wait)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0, 1e300])
def test_no_interval_of_heartbeats_makes_a_round_fail(seconds) -> None:
    def claim(content: bytes) -> bytes:
        response = extensions_pb2.HandshakeResponse.FromString(content)
        response.heartbeat_seconds = seconds
        return response.SerializeToString()

    with served(WrongService({"Handshake": unary(claim)})) as target:
        with context_over([target]):  # a slow machine may miss four beats once, but not at each attempt
            assert Background(lambda: doubled_sum([1, 2])).result() == 6


@pytest.mark.parametrize("seconds", [math.nan, -1.0, 0.0, 1e300])
async def test_no_lease_that_a_server_grants_disturbs_its_client(seconds) -> None:
    def claim(content: bytes) -> bytes:
        response = extensions_pb2.OpenSessionResponse.FromString(content)
        response.lease_seconds = seconds
        return response.SerializeToString()

    with served(WrongService({"OpenSession": unary(claim)})) as target:
        with executor_at(target) as executor:
            value = await executor.create_value(np.int32(1), np.int32)
            assert await value.compute() == 1
            await asyncio.sleep(0.6)  # the keeper looks a few times, and decides what is due
            assert await value.compute() == 1


def test_many_heartbeats_do_not_hold_up_the_result() -> None:
    beats = [heartbeat_frame(number, 3, 1) for number in range(2000)]
    assert round_with(stream(lambda frames: [*beats, *frames])) == locally(mean_wobble, NUMBERS)


@pytest.mark.parametrize("pause", [0.0, 0.05], ids=["a flood", "a stream"])
async def test_endless_heartbeats_end_when_the_caller_has_enough(pause) -> None:
    ended, sent = asyncio.Event(), 0

    def make(right: Method) -> Method:
        async def beat(_: object) -> AsyncIterator[bytes]:
            nonlocal sent
            try:
                while True:
                    yield heartbeat_frame(sent)
                    sent += 1
                    await asyncio.sleep(pause)
            finally:
                ended.set()

        return StreamMethod(beat)

    with served(WrongService({"RunPhase": make})) as target:
        factory = fedstack.remote_executor_factory([target])
        context = fedstack.contexts.AsyncExecutionContext(factory)
        with fedstack.use_context(context):
            running = asyncio.ensure_future(doubled_sum([1, 2]))
            await asyncio.to_thread(eventually, lambda: sent > 2)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(running, 0.5)
        await asyncio.to_thread(eventually, ended.is_set)
        context.close()


def test_silence_after_a_header_is_not_waited_out() -> None:
    def make(right: Method) -> Method:
        async def stall(requests: Any) -> AsyncIterator[bytes]:
            answer = [frame async for frame in frames_in_answer(right)(requests)]
            yield header_of(answer)
            await asyncio.Event().wait()

        return StreamMethod(stall)

    with pytest.raises(RetryLimitError, match="sent no message or heartbeat") as caught:
        round_with(make, models)
    cause = caught.value.__cause__
    assert isinstance(cause, WorkerUnavailableError)
    assert isinstance(cause.__cause__, DeadlineExceededError)


def test_the_cause_of_a_loss_is_told_though_the_worker_was_found_well_again_meanwhile() -> None:
    class WellAtOnce(Workers):
        def lost(self, member: Worker, error: Exception) -> Exception:
            member.cause, member.state = None, MemberState.READY
            return error

    driver = WellAtOnce([Worker(ExecutorStub(GrpcConnection(parse_target("worker:1"))))])
    (worker,) = driver.members
    lost = WorkersBackend(driver).lost(worker, DeadlineExceededError("Expected a sign of life, found none"))
    assert lost.causes == {"worker:1": "Expected a sign of life, found none"}
    driver.close()


def test_a_worker_that_answers_wrongly_does_not_spoil_what_another_one_does(fleet: Fleet) -> None:
    """Wrong is not gone: the round fails with what is wrong, and is not run again."""
    lost = raising(lambda: StatusError(Code.INTERNAL, "out of order"))
    with served(WrongService({"RunPhase": lost})) as target:
        with context_over([target, fleet.start().target]):
            with pytest.raises(RemoteError, match="out of order"):
                Background(lambda: doubled_sum([1, 2])).result()


def test_a_session_that_is_always_lost_does_not_make_a_context_try_for_ever() -> None:
    calls = itertools.count()

    def lost() -> Exception:
        next(calls)
        return StaleSessionError("Expected a session of this server, found another")

    with served(WrongService({"RunPhase": raising(lost)})) as target:
        policy = fedstack.RetryPolicy(attempts=4, first_pause=0.001)
        with context_over([target], retry_policy=policy):
            with pytest.raises(RetryLimitError, match="limit: 4 attempts.*StaleSessionError"):
                Background(lambda: doubled_sum([1, 2])).result()
    assert next(calls) == 2 * 4  # each attempt opens one new session, in case that the first was merely old


def test_errors_of_functions_are_the_same_as_in_a_local_run(fleet: Fleet) -> None:
    from fault_leaves import failing_sum

    with pytest.raises(FedstackError) as expected:
        locally(failing_sum, [1, 2])
    with context_over([fleet.start().target]):
        with pytest.raises(FedstackError) as found:
            Background(lambda: failing_sum([1, 2])).result()
    assert type(found.value) is type(expected.value)
    assert "raised ZeroDivisionError: by 1; at client 0" in str(found.value)
