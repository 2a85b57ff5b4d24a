"""Computations that something has changed give a typed error or the right result, and never hang."""

import asyncio
import collections
import random

import federated_language as fl
import pytest
from example_counts import examples
from federated_language.proto import computation_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_computations import LEAVES, SLOW_IS_FINE, assert_same, bare, programs
from reference_interpreter import Reference

from fedstack.computations.values.federated_values import normalize_argument
from fedstack.errors import FedstackError
from fedstack.executors import FederatingExecutor, LeafExecutor, ReferenceResolvingExecutor, SequenceExecutor

pytestmark = pytest.mark.long

LIMIT_SECONDS = 40
NUMBERS = [0, 1, 2, 3, 7]
WORDS = [
    "", "a", "b", "n1", "n2", "clients", "server", "federated_sum", "federated_map", "federated_mean",
    "federated_broadcast", "federated_value_at_server", "generic_plus", "generic_zero", "sequence_sum",
]  # fmt: skip


class Mutator:
    """Changes messages at random places: members are moved, left out, and taken from elsewhere."""

    def __init__(self, seed, messages):
        self.random = random.Random(seed)
        self.parts = collections.defaultdict(list)
        for message in messages:
            for part in parts_of(message):
                self.parts[part.DESCRIPTOR.full_name].append(part)

    def mutate(self, message):
        part = self.random.choice(list(parts_of(message)))
        if self.random.random() < 0.4:
            part.CopyFrom(self.random.choice(self.parts[part.DESCRIPTOR.full_name]))
            return
        fields = [field for field, _ in part.ListFields()]
        if not fields or self.random.random() < 0.3:
            fields = list(part.DESCRIPTOR.fields)
        if fields:
            self.change(part, self.random.choice(fields))

    def change(self, part, field):
        if is_repeated(part, field):
            self.change_repeated(getattr(part, field.name), field)
        elif field.message_type is None:
            setattr(part, field.name, self.scalar(field))
        elif self.parts[field.message_type.full_name] and self.random.random() < 0.7:
            getattr(part, field.name).CopyFrom(self.random.choice(self.parts[field.message_type.full_name]))
        else:
            part.ClearField(field.name)

    def change_repeated(self, values, field):
        if values and self.random.random() < 0.5:
            del values[self.random.randrange(len(values))]
        elif field.message_type is None:
            values.append(self.scalar(field))
        elif self.parts[field.message_type.full_name]:
            values.add().CopyFrom(self.random.choice(self.parts[field.message_type.full_name]))

    def scalar(self, field):
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.random.choice(WORDS)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.random.choice([b"", b"\xff", b"abc"])
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self.random.random() < 0.5
        if field.type == FieldDescriptor.TYPE_ENUM:
            return self.random.choice(field.enum_type.values).number
        return self.random.choice(NUMBERS)


def is_repeated(part, field):
    value = getattr(part, field.name)
    return not isinstance(value, (str, bytes)) and hasattr(value, "__len__")


def parts_of(message):
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if is_repeated(message, field) else [value]:
                yield from parts_of(part)


async def run(proto, value, clients):
    """Returns the type and the value of what a message computes for an argument."""
    executor = ReferenceResolvingExecutor(FederatingExecutor(SequenceExecutor(LeafExecutor()), clients))
    try:
        made = await executor.create_value(proto)
        signature = made.type_signature
        if isinstance(signature, fl.FunctionType):
            argument = None
            if signature.parameter is not None:
                argument = await executor.create_value(value, signature.parameter)
            made = await executor.create_call(made, argument)
        return made.type_signature, await made.compute()
    finally:
        executor.close()


def check(seed, mutations, program, other):
    original = program[0].to_proto()
    proto = computation_pb2.Computation()
    proto.CopyFrom(original)
    mutator = Mutator(seed, [original, other[0].to_proto()])
    for _ in range(mutations):
        mutator.mutate(proto)
    note(str(proto))
    try:
        proto = computation_pb2.Computation.FromString(proto.SerializeToString())
    except DecodeError:
        return
    _, value, meaning, clients = program
    try:
        type_spec, found = asyncio.run(asyncio.wait_for(run(proto, value, clients), LIMIT_SECONDS))
    except FedstackError as error:
        assert str(error)
        return
    normalize_argument(bare(found), type_spec)  # raises unless the result is one of its type
    if proto.type == original.type:
        assert_same(bare(found), bare(Reference(LEAVES, clients).run(proto, meaning)))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(seed=st.integers(0, 2**32), mutations=st.integers(1, 3), program=programs(), other=programs())
def test_a_mutated_computation_gives_a_typed_error_or_the_right_result(seed, mutations, program, other):
    check(seed, mutations, program, other)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=examples(20_000), deadline=None, suppress_health_check=SLOW_IS_FINE)
@given(seed=st.integers(0, 2**32), mutations=st.integers(1, 5), program=programs(), other=programs())
def test_many_mutated_computations_give_a_typed_error_or_the_right_result(seed, mutations, program, other):
    check(seed, mutations, program, other)
