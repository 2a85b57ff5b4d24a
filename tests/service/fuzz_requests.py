"""Draws requests for a fuzzed service: valid ones, but for ids that are not there now and then."""

import math
import random
from collections.abc import Callable, Sequence

import federated_language as fl
import numpy as np
from google.protobuf.message import Message

import fedstack
from fedstack.computations.codec.packing import Packer, write_typed
from fedstack.computations.codec.value_messages import value_to_proto
from fedstack.computations.plan.schedule import schedule
from fedstack.computations.plan.tasks import Phase, PhaseTask
from fedstack.computations.plan.trace import trace
from fedstack.computations.types.language import computation_pb2
from fedstack.computations.types.type_structure import contains_function
from fedstack.computations.values.columns import column_from_payloads
from fedstack.executors.folds.aggregations import FoldArgument
from fedstack.executors.remote.phase_messages import phase_template, write_phase
from fedstack.foundations.segments import Segment
from fedstack.proto import data_service_pb2 as data
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.testing.computation_builder import (
    as_expression,
    at_clients,
    block,
    function,
    intrinsic,
    literal,
    reference,
)
from fedstack.transport.peers.dispatcher_stub import DISPATCHER
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, EXTENSIONS, STATUS
from fedstack.transport.wire.frames import data_frames, header_frame

INT, F32 = fl.TensorType(np.int32), fl.TensorType(np.float32)
CLIENTS = 3
STREAMS = {
    "Evaluate": "exchange",
    "Start": "exchange",
    "Update": "upload",
    "RunPhase": "exchange",
    "Register": "upload",
    "Define": "download",
}
_DISPATCHER_METHODS = {method.name for method in data.DESCRIPTOR.services_by_name["DataDispatcher"].methods}
DEEP = 10_000


@fedstack.python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


@fedstack.python_computation([np.int32], np.int32)
def broken(x):
    raise ValueError("a leaf of the fuzzer's own")


ADD, BROKEN = as_expression(add), as_expression(broken)


def vector(length: int) -> np.ndarray:
    return np.arange(length, dtype=np.float32)


# Types with payloads, for sessions with three clients; the last ones travel beside their messages.
VALUES = [
    (np.int32(7), INT),
    ((np.int32(7), np.int32(8)), fl.StructType([INT, INT])),
    ((np.float32(1), (b"text", vector(3))), fl.StructType([("a", F32), ("b", [np.str_, (np.float32, [None])])])),
    ([np.int32(1), np.int32(2)], fl.SequenceType(INT)),
    ([(np.int32(1), b"x")], fl.SequenceType([("k", INT), ("v", np.str_)])),
    ([np.int32(k) for k in range(CLIENTS)], at_clients(INT)),
    ([(np.int32(k), vector(2)) for k in range(CLIENTS)], at_clients([INT, (np.float32, [2])])),
    ([b"a", b"", b"c"], at_clients(np.str_)),
    (np.int32(3), at_clients(INT, True)),
    (np.int32(3), fl.FederatedType(INT, fl.SERVER)),
    (np.array([True, False]), fl.TensorType(np.bool_, [2])),
    (vector(5000), fl.TensorType(np.float32, [5000])),
    ([vector(5000)] * CLIENTS, at_clients((np.float32, [None]))),
]

FUNCTIONS = [
    ADD,
    BROKEN,
    function(lambda x: x, INT),
    function(lambda v: intrinsic("federated_sum", v), at_clients(INT)),
    function(lambda v: intrinsic("federated_map", function(lambda x: ADD(x, x), INT), v), at_clients(INT)),
    function(lambda v: intrinsic("federated_map", BROKEN, v), at_clients(INT)),
    function(lambda s: intrinsic("sequence_reduce", s, literal(np.int32(0), np.int32), ADD), fl.SequenceType(INT)),
    function(lambda f, x: f(f(x)), fl.FunctionType(INT, INT), INT),
    function(lambda: literal(np.int32(1), np.int32)),
    literal(vector(3), np.float32, [3]),
    block([("x", literal(np.int32(1), np.int32))], ADD(reference("x", INT), reference("x", INT))),
]  # fmt: skip


def a_phase(body: Callable, *types: object) -> Phase:
    computation = function(body, *types).proto
    (task,) = [task for task in schedule(trace(computation)).tasks if isinstance(task, PhaseTask)]
    return task.phase


INTS = column_from_payloads([np.int32(k) for k in range(CLIENTS)], INT)
VECTORS = column_from_payloads([vector(5000)] * CLIENTS, fl.TensorType(np.float32, [None]))
NO_ARGUMENT = FoldArgument([], [])
PHASES = [
    (a_phase(lambda v: intrinsic("federated_sum", v), at_clients(INT)), [INTS], [NO_ARGUMENT]),
    (a_phase(lambda v: intrinsic("federated_mean", v), at_clients((np.float32, [None]))), [VECTORS], [NO_ARGUMENT]),
    (
        a_phase(lambda v: intrinsic("federated_map", function(lambda x: ADD(x, x), INT), v), at_clients(INT)),
        [INTS],
        [],
    ),
    (
        a_phase(
            lambda v: intrinsic(
                "federated_aggregate", v, literal(np.int32(0), np.int32), ADD, ADD, function(lambda x: x, INT)
            ),
            at_clients(INT),
        ),
        [INTS],
        [FoldArgument([np.int32(0)], [[], [], []])],
    ),
    (
        a_phase(lambda v: intrinsic("federated_secure_sum", v, literal(np.int32(9), np.int32)), at_clients(INT)),
        [INTS],
        [FoldArgument([np.int32(9)], [])],
    ),
]


class Request:
    """One call: its method, its messages, and the types of the values that it makes if nothing is wrong with it."""

    def __init__(self, method: str, frames: list[bytes], makes: Sequence[fl.Type | None] = ()) -> None:
        self.method = method
        self.frames = frames
        self.makes = makes

    @property
    def path(self) -> str:
        if self.method in _DISPATCHER_METHODS:
            return f"/{DISPATCHER}/{self.method}"
        service = EXECUTOR_GROUP if hasattr(plain, f"{self.method}Request") else EXTENSIONS
        if self.method == "GetStatus":
            service = STATUS
        return f"/{service}/{self.method}"

    @property
    def kind(self) -> str:
        return STREAMS.get(self.method, "unary")

    def __repr__(self) -> str:
        shown = [frame[:400].hex() + ("…" if len(frame) > 400 else "") for frame in self.frames[:4]]
        return f"{self.method} with {len(self.frames)} messages: {', '.join(shown)}"


def unary(method: str, message: object, *makes: fl.Type | None) -> Request:
    return Request(method, [message.SerializeToString()], makes)


def phase_request(
    session: str,
    phase: Phase,
    inputs: Sequence,
    arguments: Sequence,
    first: int = 0,
    mark: Callable[[extended.PhaseRequest.Input], None] = lambda message: None,
    packs: bool = False,
) -> Request:
    packer, clients = Packer(), range(first, first + CLIENTS)
    request = write_phase(phase_template(phase, lambda found: found, "fuzz"), phase, inputs, arguments, clients, packer)
    request.executor.id = session
    marked = list(request.input)
    if packs:
        program = request.program.SerializeToString()
        Packer(large_bytes=len(program) + 1).pack(request.packed_program.value, program, fl.TensorType(np.str_))
        request.ClearField("program")
        marked.append(request.packed_program)
    for message in marked:
        mark(message)
    return Request("RunPhase", [header_frame(request.SerializeToString()), *data_frames(packer.segments, 1 << 20)])


class Drawer:
    """Draws requests. What it draws depends on the generator and on the ids that it is told only.

    Attributes:
      sessions: The ids of sessions, each with the ids of its values and their types, as far as these are known.
    """

    def __init__(self, generator: random.Random) -> None:
        self.choose = generator
        self.sessions: dict[str, dict[str, fl.Type | None]] = {}
        self.new_ids = 0
        self.kept: list[str] = []
        self.uploads: list[tuple[str, str, Message, Sequence[Segment]]] = []

    # What there is.

    def session(self) -> str:
        """Draws the id of a session; now and then of one that is not there."""
        if not self.sessions or self.choose.random() < 0.03:
            return self.choose.choice(["", "nobody", "0" * 32, "\0", "é" * 40, "x" * 70_000])
        return self.choose.choice(list(self.sessions))

    def value(self, session: str, fits: Callable[[fl.Type], bool] = lambda type_spec: True) -> str:
        """Draws the id of a value, most of the time of one that fits."""
        values = self.sessions.get(session, {})
        if not values or self.choose.random() < 0.05:
            others = [value for known in self.sessions.values() for value in known]
            return self.choose.choice(["", "0", "nothing", *others[:3]])
        fitting = [value for value, type_spec in values.items() if type_spec is not None and fits(type_spec)]
        return self.choose.choice(fitting if fitting and self.choose.random() < 0.9 else list(values))

    def function_and_argument(self, session: str) -> tuple[str, str, fl.Type | None]:
        """Draws the ids of a function and of an argument that it takes, and the type of the result."""
        function = self.value(session, lambda t: isinstance(t, fl.FunctionType))
        signature = self.sessions.get(session, {}).get(function)
        if not isinstance(signature, fl.FunctionType) or signature.parameter is None:
            return function, self.value(session), getattr(signature, "result", None)
        parameter = signature.parameter
        return function, self.value(session, parameter.is_assignable_from), signature.result

    def new_id(self, session: str) -> str:
        if self.choose.random() < 0.03:
            return self.choose.choice(["", "x" * 101, self.value(session)])
        self.new_ids += 1
        return f"chosen-{self.new_ids}"

    def request(self) -> Request:
        weights = {
            self.create_value: 12, self.create_call: 8, self.create_struct: 3, self.create_selection: 4,
            self.compute: 3, self.evaluate: 15, self.start: 3, self.update: 2, self.phase: 3,
            self.get_executor: 0.5, self.open_session: 0.5, self.dispose_executor: 0.3,
            self.handshake: 0.3, self.renew: 0.3, self.shorten: 0.3, self.find_stores: 0.3, self.status: 0.3,
            self.dispose: 1,
        }  # fmt: skip
        (draw,) = self.choose.choices(list(weights), list(weights.values()))
        if not self.sessions and self.choose.random() < 0.5:
            draw = self.choose.choice([self.get_executor, self.open_session])
        return draw(self.session())

    def cardinalities(self) -> list[plain.Cardinality]:
        clients = -1 if len(self.sessions) > 5 else self.choose.choice([CLIENTS] * 7 + [0, 1, 1000])
        return [plain.Cardinality(placement=computation_pb2.Placement(uri="clients"), cardinality=clients)]

    def get_executor(self, session: str) -> Request:
        return unary("GetExecutor", plain.GetExecutorRequest(cardinalities=self.cardinalities()))

    def open_session(self, session: str) -> Request:
        lease = self.choose.choice([0.0, 60.0, -1.0, math.inf, -math.inf, math.nan])
        return unary(
            "OpenSession", extended.OpenSessionRequest(cardinalities=self.cardinalities(), lease_seconds=lease)
        )

    def executor(self, session: str) -> plain.ExecutorId:
        return plain.ExecutorId(id=session)

    def ref(self, session: str) -> plain.ValueRef:
        return plain.ValueRef(id=self.value(session))

    def create_value(self, session: str) -> Request:
        if self.choose.random() < 0.5:
            drawn = self.choose.choice(FUNCTIONS)
            value, type_spec = plain.Value(computation=drawn.proto), drawn.type
        else:
            payload, type_spec = self.choose.choice(VALUES)
            value = value_to_proto(payload, type_spec)
        request = plain.CreateValueRequest(value=value, executor=self.executor(session))
        return unary("CreateValue", request, type_spec)

    def create_call(self, session: str) -> Request:
        function, argument, result = self.function_and_argument(session)
        request = plain.CreateCallRequest(executor=self.executor(session))
        request.function_ref.id = function
        if self.choose.random() < 0.9:
            request.argument_ref.id = argument
        return unary("CreateCall", request, result)

    def elements(self, session: str) -> list[plain.CreateStructRequest.Element]:
        names = ["", "", "a", "b", "_asdict"]
        count = self.choose.randrange(4)
        return [
            plain.CreateStructRequest.Element(name=self.choose.choice(names), value_ref=self.ref(session))
            for _ in range(count)
        ]

    def create_struct(self, session: str) -> Request:
        elements = self.elements(session)
        request = plain.CreateStructRequest(element=elements, executor=self.executor(session))
        types = [self.sessions.get(session, {}).get(element.value_ref.id) for element in elements]
        return unary("CreateStruct", request, None if None in types else fl.StructType(types))

    def index(self) -> int:
        return self.choose.choice([0, 0, 1, 1, 2, -1, 2**31 - 1, -(2**31)])

    def create_selection(self, session: str) -> Request:
        source = self.value(session, lambda type_spec: isinstance(type_spec, fl.StructType))
        request = plain.CreateSelectionRequest(index=self.index(), executor=self.executor(session))
        request.source_ref.id = source
        return unary("CreateSelection", request, None)

    def compute(self, session: str) -> Request:
        request = plain.ComputeRequest(executor=self.executor(session))
        request.value_ref.id = self.computable(session)
        return unary("Compute", request)

    def computable(self, session: str) -> str:
        return self.value(session, lambda type_spec: not contains_function(type_spec))

    def dispose(self, session: str) -> Request:
        refs = [self.ref(session) for _ in range(self.choose.randrange(4))]
        return unary("Dispose", plain.DisposeRequest(value_ref=refs, executor=self.executor(session)))

    def dispose_executor(self, session: str) -> Request:
        return unary("DisposeExecutor", plain.DisposeExecutorRequest(executor=self.executor(session)))

    def handshake(self, session: str) -> Request:
        return unary("Handshake", extended.HandshakeRequest(protocol=1, version="fuzz", nonce=b"nonce"))

    def renew(self, session: str) -> Request:
        executors = [self.executor(self.session()) for _ in range(self.choose.randrange(4))]
        return unary("RenewLease", extended.RenewLeaseRequest(executor=executors))

    def shorten(self, session: str) -> Request:
        rate = self.choose.choice([0.0, -1.0, 5.0, float("inf"), float("nan")])
        request = extended.ShortenPhaseRequest(executor=self.executor(session), id="7", clients_per_second=rate)
        return unary("ShortenPhase", request)

    def find_stores(self, session: str) -> Request:
        ids = self.choose.choice([[], ["0" * 32], ["../../etc", "\0", "x" * 10_000], ["0"] * 10_000])
        return unary("FindStores", extended.FindStoresRequest(id=ids))

    def status(self, session: str) -> Request:
        return unary("GetStatus", extended.GetStatusRequest())

    def typed(self) -> tuple[extended.TypedValue, list[memoryview]]:
        payload, type_spec = self.choose.choice(VALUES)
        packer = Packer()
        return write_typed(payload, type_spec, packer), packer.segments

    def creation(self, session: str) -> extended.Creation:
        creation = extended.Creation(id=self.new_id(session))
        kind = self.choose.choice(
            ["value", "value", "computation", "computation", "call", "call", "struct", "selection"]
        )
        if kind == "value":
            creation.value.CopyFrom(self.typed()[0])
        elif kind == "computation":
            creation.computation.CopyFrom(self.choose.choice(FUNCTIONS).proto)
        elif kind == "call":
            creation.call.function_ref.id, creation.call.argument_ref.id, _ = self.function_and_argument(session)
        elif kind == "struct":
            creation.struct.element.extend(self.elements(session))
        else:
            creation.selection.source_ref.id = self.value(session, lambda t: isinstance(t, fl.StructType))
            creation.selection.index = self.index()
        return creation

    def creations(self, session: str) -> list[extended.Creation]:
        return [self.creation(session) for _ in range(self.choose.randrange(1, 4))]

    def evaluate(self, session: str) -> Request:
        request = extended.EvaluateRequest(executor=self.executor(session))
        segments = self.created_beside(session, request)
        if self.choose.random() < 0.7:
            request.value_ref.id = request.creation[0].id if request.creation else self.computable(session)
        return self.in_frames("Evaluate", request, segments)

    def start(self, session: str) -> Request:
        request = extended.StartRequest(executor=self.executor(session))
        segments = self.created_beside(session, request)
        for _ in range(self.choose.randrange(3)):
            known = self.choose.random() < 0.7 and request.creation
            request.value_ref.add(id=request.creation[0].id if known else self.computable(session))
        if self.choose.random() < 0.2:
            request.cancel_ref.add(id=self.value(session))
        return self.in_frames("Start", request, segments)

    def update(self, session: str) -> Request:
        typed, segments = self.typed()
        request = extended.UpdateRequest(how=self.choose.choice([0, 0, 1, 2, 7]))
        request.executor.id, request.value_ref.id = session, self.value(session)
        if self.uploads and self.choose.random() < 0.8:  # most of the time one of its own type
            request.executor.id, request.value_ref.id, typed, segments = self.uploads[-1]
        request.value.CopyFrom(typed)
        return self.in_frames("Update", request, list(segments))

    def created_beside(self, session: str, request: extended.EvaluateRequest | extended.StartRequest) -> list[Segment]:
        segments: list[Segment] = []
        for _ in range(self.choose.randrange(3)):
            typed, beside = self.typed()
            request.creation.add(id=self.new_id(session), value=typed)
            self.uploads.append((request.executor.id, request.creation[-1].id, typed, beside))
            segments += beside
            request.creation.add().CopyFrom(self.creation(session))
        return segments

    def in_frames(self, method: str, request: Message, segments: list[Segment]) -> Request:
        frames = data_frames(segments, self.choose.choice([999, 1 << 20]))
        return Request(method, [header_frame(request.SerializeToString()), *frames])

    def phase(self, session: str) -> Request:
        first = self.choose.choice([0, 0, 7, 2**40, 2**62])
        chosen, packs = self.choose.choice(PHASES), self.choose.random() < 0.3
        return phase_request(session, *chosen, first, lambda message: self.mark(session, message), packs)

    def mark(self, session: str, message: extended.PhaseRequest.Input) -> None:
        """Asks for an input of a phase to be kept, or refers to what may have been."""
        if self.choose.random() < 0.2:
            message.keep = self.new_id(session)
            self.kept.append(message.keep)
        elif self.choose.random() < 0.2:
            message.kept = self.choose.choice([*self.kept[-3:], self.value(session)])
            message.first_member = self.choose.choice([0, 0, 1, 2**63])
            message.ClearField("value")
        elif self.choose.random() < 0.2:
            for clients in (self.choose.choice([0, 1, 2, 2**63]), 1):
                part = message.part.add(clients=clients, value=message.value)
                self.mark(session, part)
            message.ClearField("value")
