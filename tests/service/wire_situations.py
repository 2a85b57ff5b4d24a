"""Brings servers into situations, to show with which status they answer."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import federated_language as fl
import grpc
import grpc.aio
import numpy as np
from wire_exchange import raw_client

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.types.language import array_pb2, computation_pb2
from fedstack.proto import carriers_pb2, executor_pb2, extensions_pb2
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServerLimits, ServiceLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, EXTENSIONS
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.frames import data_frames, header_frame

Computation: TypeAlias = computation_pb2.Computation
RAW = raw_client()
FLOAT = fl.TensorType(np.float32)
LIMITS = ServiceLimits(max_sessions=50, max_values=3, max_clients=10, max_value_bytes=1000)
WALL = 20.0


class StatusOf(Exception):
    """A call failed with a status."""


class Peer:
    """A client of a server, which knows of messages only.

    Attributes:
      executor: Its session.
      last_method: What it has called last.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self.last_method = ""
        self.executor = executor_pb2.ExecutorId()

    def open(self, clients: int = 2) -> None:
        """Opens the session."""
        counts = [executor_pb2.Cardinality(placement=RAW.CLIENTS, cardinality=clients)]
        self.executor = self.call("GetExecutor", cardinalities=counts).executor

    def call(self, method: str, **fields: Any) -> Any:
        """Makes a call of either service."""
        package = executor_pb2 if hasattr(executor_pb2, f"{method}Request") else extensions_pb2
        request = getattr(package, f"{method}Request")(**fields)
        content = self.send(f"/{EXECUTOR_GROUP if package is executor_pb2 else EXTENSIONS}/{method}", request)
        return getattr(package, f"{method}Response").FromString(content)

    def send(self, path: str, request: Any, compression: grpc.Compression | None = None) -> bytes:
        """Makes a call with a message, or the bytes of one."""
        content = request if isinstance(request, bytes) else request.SerializeToString()

        async def work() -> bytes:
            async with grpc.aio.insecure_channel(self._target, compression=compression) as channel:
                return await channel.unary_unary(path)(content, timeout=WALL)

        return self._run(path, work)

    def stream(self, method: str, *frames: bytes) -> None:
        """Makes a call of a method that takes a stream."""

        path = f"/{EXTENSIONS}/{method}"

        async def work() -> None:
            # gRPC calls it internal when it could not write a message and the status is still on its way.
            for attempts_left in reversed(range(10)):
                try:
                    async with grpc.aio.insecure_channel(self._target) as channel:
                        async for _ in channel.stream_stream(path)(iter(frames), timeout=WALL):
                            pass
                    return
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.INTERNAL or not attempts_left:
                        raise

        self._run(path, work)

    def hold(self, path: str, count: int) -> None:
        """Makes calls that say nothing, or just enough to be let in, until the first of them ends."""

        async def one(channel: grpc.aio.Channel, is_in: asyncio.Event) -> None:
            call = channel.stream_stream(path)(timeout=WALL)
            if path == WATCH and not is_in.is_set():
                await call.write(b"")
                await call.read()
                is_in.set()
            while await call.read() is not grpc.aio.EOF:
                pass
            if await call.code() is not grpc.StatusCode.OK:
                raise StatusOf((await call.code()).name)

        async def work() -> None:
            async with grpc.aio.insecure_channel(self._target) as channel:
                is_in = asyncio.Event()
                calls = [asyncio.ensure_future(one(channel, is_in))]
                if path == WATCH:
                    await is_in.wait()  # a call that has not said anything yet would give way to the next
                calls += [asyncio.ensure_future(one(channel, is_in)) for _ in range(1, count)]
                done, rest = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                for call in rest:
                    call.cancel()
                await asyncio.gather(*done)

        self._run(path, work)

    def _run(self, path: str, work: Callable[[], Any]) -> Any:
        self.last_method = path.rpartition("/")[2]
        try:
            return io_loop.run_sync(work())
        except grpc.aio.AioRpcError as error:
            raise StatusOf(error.code().name) from None

    def create(self, value: executor_pb2.Value) -> executor_pb2.ValueRef:
        """Creates a value."""
        return self.call("CreateValue", executor=self.executor, value=value).value_ref

    def compute(self, function: Computation, argument: executor_pb2.Value | None = None) -> None:
        """Creates a function and perhaps an argument, calls it, and computes the result."""
        fields = {} if argument is None else {"argument_ref": self.create(argument)}
        ref = self.create(executor_pb2.Value(computation=function))
        called = self.call("CreateCall", executor=self.executor, function_ref=ref, **fields)
        self.call("Compute", executor=self.executor, value_ref=called.value_ref)


def number(value: float = 1.5) -> executor_pb2.Value:
    return executor_pb2.Value(array=array_pb2.Array(dtype=1, shape={}, float32_list={"value": [value]}))


def function(result: object = FLOAT, **kind: Any) -> Computation:
    """Returns a function of a number."""
    return Computation(type=fl.FunctionType(FLOAT, result).to_proto(), **kind)


def carried(message: Any) -> Computation:
    """Returns a leaf function with a carrier."""
    leaf = function(data={})
    leaf.data.content.Pack(message)
    return leaf


def reference(module: str, qualname: str) -> Computation:
    return carried(carriers_pb2.PythonReference(module=module, qualname=qualname))


def unknown_value() -> executor_pb2.ValueRef:
    return executor_pb2.ValueRef(id="no such value")


def upload(peer: Peer, announced: int, sent: int) -> None:
    header = extensions_pb2.EvaluateRequest(executor=peer.executor)
    value = header.creation.add(id="mine").value
    value.type.CopyFrom(fl.TensorType(np.int8, [announced]).to_proto())
    value.value.raw.dtype = 6
    value.value.raw.dim.append(announced)
    peer.stream("Evaluate", header_frame(header.SerializeToString()), *data_frames([memoryview(bytes(sent))]))


def create(peer: Peer, **creation: Any) -> None:
    request = extensions_pb2.EvaluateRequest(executor=peer.executor, creation=[extensions_pb2.Creation(**creation)])
    peer.stream("Evaluate", header_frame(request.SerializeToString()))


def _open_too_many(peer: Peer) -> None:
    for _ in range(LIMITS.max_sessions):
        peer.open()


def _create_four_values(peer: Peer) -> None:
    for _ in range(4):
        peer.create(number())


def _create_twice(peer: Peer) -> None:
    typed = extensions_pb2.TypedValue(type=FLOAT.to_proto(), value={"array": number().array})
    for _ in range(2):
        create(peer, id="mine", value=typed)


def _phase_of(peer: Peer, clients: int) -> None:
    request = extensions_pb2.PhaseRequest(executor=peer.executor, clients=clients)
    peer.stream("RunPhase", header_frame(request.SerializeToString()))


def _deep() -> bytes:
    """Returns a request whose computation has a type of very many sequences: protobuf itself would not make it."""
    content = b""
    for tag in (b"\x0a", b"\x12", b"\x0a", *(b"\x1a", b"\x0a") * 60)[::-1]:
        content = tag + extensions_pb2.Frame(header=content).SerializeToString()[1:]
    return content


CREATE_VALUE = f"/{EXECUTOR_GROUP}/CreateValue"
COMPUTES = "`Compute`, `Evaluate`"
RUNS = f"{COMPUTES}, `RunPhase`"
SELECTION = extensions_pb2.Creation.Selection(index=5)

# What a client does, in words and in calls. The last call of each is the one that counts.
SITUATIONS: tuple[tuple[str, str, Callable[[Peer], object]], ...] = (
    ("any", "the session is not there: it has ended, its lease ran out, or the server was restarted",
     lambda peer: peer.call("Compute", executor={"id": "gone"}, value_ref=unknown_value())),
    ("any", "a value is not there: it was never created in this session, or has been disposed of",
     lambda peer: peer.call("Compute", executor=peer.executor, value_ref=unknown_value())),
    ("any", "the request is not the method's message, or nests more than 100 messages",
     lambda peer: peer.send(CREATE_VALUE, _deep())),
    ("any", "the server has no such method",
     lambda peer: peer.send(f"/{EXTENSIONS}/Sing", b"")),
    ("`GetExecutor`, `OpenSession`", "a placement that is neither `clients` nor `server`, or a negative number",
     lambda peer: peer.call("GetExecutor", cardinalities=[{"placement": {"uri": "moon"}, "cardinality": 1}])),
    ("`GetExecutor`, `OpenSession`", "more clients than the server takes",
     lambda peer: peer.open(clients=11)),
    ("`GetExecutor`, `OpenSession`", "more sessions than the server keeps", _open_too_many),
    ("`CreateValue`, `Evaluate`, `Start`", "the value contradicts itself or does not fit its type",
     lambda peer: peer.create(executor_pb2.Value(array={"dtype": 1, "shape": {"dim": [2]}, "content": b"1234"}))),
    ("`CreateValue`", "the value does not show its type",
     lambda peer: peer.create(executor_pb2.Value(sequence={}))),
    ("`CreateValue`, `Evaluate`, `Start`", "another number of client values than the session has clients",
     lambda peer: peer.create(RAW.value_at_clients([1.5, 2.5, 3.5]))),
    ("`CreateValue`, `Evaluate`, `Start`", "one more value, or more bytes, than a session may have",
     _create_four_values),
    ("`CreateValue`, `Evaluate`, `Start`, `RunPhase`", "a malformed computation",
     lambda peer: peer.create(executor_pb2.Value(computation=function(reference={"name": "unbound"})))),
    ("`CreateValue`, `Evaluate`, `Start`, `RunPhase`", "a leaf with a carrier that the server does not let in",
     lambda peer: peer.create(executor_pb2.Value(computation=reference("os", "system")))),
    ("`Evaluate`, `Start`", "an id that is empty or has more than 100 characters",
     lambda peer: create(peer, id="", selection=SELECTION)),
    ("`Evaluate`, `Start`", "an id that is taken: nothing is created", _create_twice),
    ("`Evaluate`, `Start`, `Update`, `RunPhase`", "more or fewer bytes follow than the header has announced",
     lambda peer: upload(peer, 100, 99)),
    ("`Evaluate`, `Start`, `Update`, `RunPhase`", "more bytes than the server takes in one value or phase",
     lambda peer: upload(peer, 2000, 2000)),
    ("`RunPhase`", "another number of clients than the session has", lambda peer: _phase_of(peer, 3)),
    ("`RunPhase`", "more clients than the server takes", lambda peer: _phase_of(peer, 11)),
    ("`CreateCall`", "what is called is no function, or the argument does not fit its parameter",
     lambda peer: peer.call("CreateCall", executor=peer.executor, function_ref=peer.create(number()))),
    ("`CreateSelection`", "the source is no struct, or has no such member",
     lambda peer: peer.call("CreateSelection", executor=peer.executor, source_ref=peer.create(number()), index=0)),
    ("`CreateCall`, `Evaluate`, `Start`, `RunPhase`", "an intrinsic that is none of the language's",
     lambda peer: peer.compute(function(intrinsic={"uri": "federated_sing"}), number())),
    (COMPUTES, "the value is a function",
     lambda peer: peer.call(
         "Compute", executor=peer.executor, value_ref=peer.create(executor_pb2.Value(computation=RAW_MEAN)))),
    (RUNS, "a leaf cannot be loaded: there is no such module or function, or its source differs",
     lambda peer: peer.compute(reference("textwrap", "no_such_function"), number())),
    (RUNS, "no leaf runtime knows the carrier",
     lambda peer: peer.compute(carried(carriers_pb2.PythonContainer()), number())),
    (RUNS, "a leaf raises",
     lambda peer: peer.compute(reference("textwrap", "dedent"), number())),
    ("`Dispose`", "a value is not there; all others in the request are disposed of",
     lambda peer: peer.call("Dispose", executor=peer.executor, value_ref=[unknown_value()])),
    ("`Dispose`, `DisposeExecutor`", "the session is not there",
     lambda peer: peer.call("DisposeExecutor", executor={"id": "gone"})),
    ("`RenewLease`", "a session is not there: the response names it",
     lambda peer: peer.call("RenewLease", executor=[{"id": "gone"}])),
    ("`FindStores`", "it has none of the stores: the response is empty",
     lambda peer: peer.call("FindStores", id=["gone"])),
    ("`ShortenPhase`", "no phase with this id is running: the response has no `stop`",
     lambda peer: peer.call("ShortenPhase", executor=peer.executor, id="gone")),
)  # fmt: skip
RAW_MEAN = RAW.mean_function().computation

WATCH = "/grpc.health.v1.Health/Watch"
RUN_PHASE = f"/{EXTENSIONS}/RunPhase"
AT_THE_DOOR: tuple[tuple[str, str, dict[str, Any], Callable[[Peer], object]], ...] = (
    ("any", "the server wants a token and the call has none that it knows, whatever the method (but health)",
     {"credentials": ServerCredentials(tokens=("secret",))}, Peer.open),
    ("any", "more calls run at a time than the server takes",
     {"limits": ServerLimits(max_calls=1)}, lambda peer: peer.hold(RUN_PHASE, 2)),
    ("any", "the message is larger than `--max-message-bytes`",
     {"limits": ServerLimits(max_message_bytes=1)}, Peer.open),
    ("any", "the message is compressed, and the server was not started with `--compression`",
     {}, lambda peer: peer.send(WATCH.replace("Watch", "Check"), bytes(1000), grpc.Compression.Gzip)),
    ("`Evaluate`, `Start`, `Update`, `RunPhase`", "the stream does not begin, or go on, within `--header-seconds`",
     {"limits": ServerLimits(header_seconds=0.05)}, lambda peer: peer.hold(RUN_PHASE, 1)),
    ("`Watch`, `ServerReflectionInfo`", "more calls watch the server than it takes",
     {"limits": ServerLimits(max_watches=1)}, lambda peer: peer.hold(WATCH, 2)),
)  # fmt: skip


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[Peer]:
    """Serves with small limits for the block."""
    policy = CarrierPolicy(modules=["textwrap"])
    service = ExecutorService(fedstack.local_executor_factory(), limits=LIMITS, policy=policy)
    with ServerThread(GrpcServer([service], **options)) as server:
        yield Peer(server.target)


def status_of(act: Callable[[Peer], object], peer: Peer) -> str:
    """Returns the status of the call with which an action ends."""
    try:
        act(peer)
    except StatusOf as error:
        return str(error)
    return "OK"


def status_table() -> Iterator[str]:
    """Yields the rows of the table of situations."""
    yield "| method | situation | status |"
    yield "| --- | --- | --- |"
    for method, situation, options, act in AT_THE_DOOR:
        with serving(**options) as peer:
            yield f"| {method} | {situation} | {status_of(act, peer)} |"
    for method, situation, act in SITUATIONS:
        with serving() as peer:
            peer.open()
            status = status_of(act, peer)
            assert method == "any" or f"`{peer.last_method}`" in method, situation
            yield f"| {method} | {situation} | {status} |"


if __name__ == "__main__":
    print("\n".join(status_table()))
