"""Workers of other makes are understood by their bytes, and get what they know."""

import struct

import federated_language as fl
import foreign_bytes as fb
import numpy as np
import pytest
from federated_language.common_libs.structure import Struct
from foreign_bytes import CLIENTS, FLOAT, INT32, SERVER, STRING, array, federated, listed, message, raw

from fedstack.errors import TypeMismatchError
from fedstack.executors import RemoteExecutor
from fedstack.proto import executor_pb2
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP, ExecutorStub
from fedstack.transport.peers.methods import Service, UnaryMethod

INT, F32 = fl.TensorType(np.int32), fl.TensorType(np.float32)
FLOAT_TYPE, INT_TYPE = fb.tensor_type(FLOAT), fb.tensor_type(INT32)
ELEMENTS = [[listed(FLOAT, [k]), listed(FLOAT, [10 * k])] for k in (1, 2)]


def f32(*values):
    return struct.pack(f"<{len(values)}f", *values)


def scalar(value):
    return array(listed(FLOAT, [value]))


class ForeignWorker(Service):
    """Answers as a worker of another make, whatever it is asked to compute."""

    def __init__(self, value):
        self.value = value
        self.requests = []
        self.made = 0

    @property
    def methods(self):
        answers = {
            "GetExecutor": lambda: message(1, fb.executor_id(b"clients=3/21057/0")),
            "Compute": lambda: message(1, self.value),
            "Dispose": bytes,
            "DisposeExecutor": bytes,
        }
        names = ["CreateValue", "CreateCall", "CreateStruct", "CreateSelection", *answers]
        return {EXECUTOR_GROUP: {name: self._method(name, answers.get(name, self._new_ref)) for name in names}}

    def _new_ref(self):
        self.made += 1
        return message(1, message(1, b"%d" % (self.made - 1)))

    def _method(self, name, answer):
        async def handle(request):
            self.requests.append((name, request))
            return answer()

        return UnaryMethod(handle)


async def answered(value, type_spec, **options):
    """Computes a value at a worker of another make that answers with some bytes."""
    worker = ForeignWorker(value)
    executor = RemoteExecutor(ExecutorStub(InMemoryConnection(worker), keeps_handles=True), **options)
    executor.set_cardinalities({fl.CLIENTS: 3})
    try:
        made = await executor.create_value(zero_of(type_spec), type_spec)
        return bare(await made.compute()), worker
    finally:
        executor.close()


def zero_of(type_spec):
    if isinstance(type_spec, fl.StructType):
        return tuple(zero_of(member) for member in type_spec.children())
    if isinstance(type_spec, fl.SequenceType):
        return []
    if isinstance(type_spec, fl.FederatedType):
        is_list = type_spec.placement is fl.CLIENTS and not type_spec.all_equal
        return [zero_of(type_spec.member)] * 3 if is_list else zero_of(type_spec.member)
    return b"" if type_spec.dtype.type is np.str_ else np.zeros([d or 0 for d in type_spec.shape], type_spec.dtype)[()]


def bare(value):
    if isinstance(value, Struct):
        return tuple(map(bare, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(bare, value))
    return value if isinstance(value, bytes) else np.asarray(value).tolist()


NAMED = fl.StructType([("b", F32), ("a", [("c", INT)])])
FIVE = fb.literal(FLOAT_TYPE, listed(FLOAT, [5]))
SIX = fb.struct_of(array(listed(INT32, [6])))
AT_CLIENTS, AT_SERVER = fl.FederatedType(F32, fl.CLIENTS), fl.FederatedType(F32, fl.SERVER)
ANSWERS = {
    "array, listed": (scalar(5), F32, 5),
    "array, raw": (array(raw(FLOAT, f32(5, 6), [2])), fl.TensorType(np.float32, [2]), [5, 6]),
    "vector, listed": (array(listed(FLOAT, [5, 6], [2])), fl.TensorType(np.float32, [2]), [5, 6]),
    "scalar, raw": (array(raw(FLOAT, f32(5), [])), F32, 5),
    "literal": (FIVE, F32, 5),
    "literal of a vector": (
        fb.literal(fb.tensor_type(FLOAT, [2]), listed(FLOAT, [5, 6], [2])), fl.TensorType(np.float32, [None]), [5, 6],
    ),
    "string": (array(listed(STRING, [b"\xff\0"])), fl.TensorType(np.str_), b"\xff\0"),
    "no names": (fb.struct_of(scalar(5), SIX), NAMED, (5, (6,))),
    "literals in a struct": (
        fb.struct_of(FIVE, SIX), NAMED, (5, (6,)),
    ),
    "at the server, without member": (federated(SERVER, scalar(5), all_equal=True), AT_SERVER, 5),
    "at clients, without member": (
        federated(CLIENTS, scalar(5), scalar(6), scalar(7)), AT_CLIENTS, [5, 6, 7],
    ),
    "the same at all clients, once for each": (
        federated(CLIENTS, scalar(5), scalar(5), scalar(5)), fl.FederatedType(F32, fl.CLIENTS, True), 5,
    ),
    "literals at clients": (
        federated(CLIENTS, *[FIVE] * 3), AT_CLIENTS, [5] * 3,
    ),
    "structs at clients": (
        federated(CLIENTS, *[fb.struct_of(scalar(5), SIX)] * 3),
        fl.FederatedType(NAMED, fl.CLIENTS), [(5, (6,))] * 3,
    ),
    "a sequence without element type": (fb.sequence(*ELEMENTS), fl.SequenceType([F32, F32]), [(1, 10), (2, 20)]),
    "an empty sequence": (fb.sequence(), fl.SequenceType([F32, F32]), []),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
async def test_answers_of_other_workers_are_read_by_the_type_that_we_know(name):
    value, type_spec, expected = ANSWERS[name]
    found, worker = await answered(value, type_spec)
    assert found == expected
    assert [method for method, _ in worker.requests[:3]] == ["GetExecutor", "CreateValue", "Compute"]


@pytest.mark.parametrize(
    "type_spec", [INT, fl.StructType([F32]), fl.FederatedType(F32, fl.SERVER), fl.SequenceType(F32)]
)
async def test_an_answer_of_another_type_is_refused(type_spec):
    with pytest.raises(TypeMismatchError, match="at result"):
        await answered(scalar(5), type_spec)


async def test_what_we_send_to_other_workers_is_what_they_know():
    type_spec = fl.FederatedType(
        fl.StructType([("x", (np.float32, [2])), ("y", fl.SequenceType(np.int32))]), fl.CLIENTS
    )
    worker = ForeignWorker(b"")
    executor = RemoteExecutor(ExecutorStub(InMemoryConnection(worker)))
    executor.set_cardinalities({fl.CLIENTS: 3})
    await executor.create_value([(np.array([1, 2], np.float32), [7])] * 3, type_spec)
    requests = dict(worker.requests)
    assert requests["GetExecutor"] == fb.get_executor(clients=3)
    member_type = fb.struct_type((b"x", fb.tensor_type(FLOAT, [2])), (b"y", fb.sequence_type(INT_TYPE)))
    sequence = fb.sequence([listed(INT32, [7])], element_type=INT_TYPE)
    member = fb.struct_of((b"x", array(raw(FLOAT, f32(1, 2), [2]))), (b"y", sequence))
    value = federated(CLIENTS, member, member, member, member=member_type)
    sent = executor_pb2.CreateValueRequest.FromString(requests["CreateValue"])
    assert sent == executor_pb2.CreateValueRequest.FromString(fb.create_value(b"clients=3/21057/0", value))
    executor.close()
