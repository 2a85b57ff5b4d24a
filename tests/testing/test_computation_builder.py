"""The builder that rows write computations with, compared with the language's own front end and building blocks."""

import federated_language as fl
import numpy as np
import pytest
from federated_language.framework import ComputationBuildingBlock, ConcreteComputation

from fedstack.computations.types.language import SequenceType, StructType
from fedstack.testing.computation_builder import (
    at_clients,
    at_server,
    block,
    computation,
    data,
    function,
    generic_zero,
    intrinsic,
    literal,
    reference,
    struct,
)
from fedstack.testing.leaves import add, double, seven

INT_AT_CLIENTS, INT_AT_SERVER = at_clients(np.int32), at_server(np.int32)


@pytest.mark.parametrize(
    ("ours", "theirs", "parameters"),
    [
        (lambda x: intrinsic("federated_sum", x), fl.federated_sum, [INT_AT_CLIENTS]),
        (lambda x: intrinsic("federated_max", x), fl.federated_max, [INT_AT_CLIENTS]),
        (lambda x: intrinsic("federated_mean", x), lambda x: fl.federated_mean(x), [at_clients(np.float32)]),
        (
            lambda x, w: intrinsic("federated_weighted_mean", x, w),
            lambda x, w: fl.federated_mean(x, w),
            [at_clients(np.float32), INT_AT_CLIENTS],
        ),
        (lambda x: intrinsic("federated_map", double, x), lambda x: fl.federated_map(double, x), [INT_AT_CLIENTS]),
        (lambda x: intrinsic("federated_apply", double, x), lambda x: fl.federated_map(double, x), [INT_AT_SERVER]),
        (lambda x: intrinsic("federated_broadcast", x), fl.federated_broadcast, [INT_AT_SERVER]),
        (
            lambda: intrinsic("federated_eval_at_clients", seven),
            lambda: fl.federated_eval(seven, fl.CLIENTS),
            [],
        ),
        (
            lambda x, y: intrinsic("federated_zip_at_clients", struct(x, y)),
            lambda x, y: fl.federated_zip((x, y)),
            [INT_AT_CLIENTS, at_clients(np.str_)],
        ),
        (
            lambda x: intrinsic("federated_aggregate", x, literal(np.int32(0), np.int32), add, add, double),
            lambda x: fl.federated_aggregate(x, np.int32(0), add, add, double),
            [INT_AT_CLIENTS],
        ),
        (
            lambda x: intrinsic("federated_secure_sum", x, literal(np.int32(5), np.int32)),
            lambda x: fl.federated_secure_sum(x, 5),
            [INT_AT_CLIENTS],
        ),
        (lambda s: intrinsic("sequence_sum", s), fl.sequence_sum, [SequenceType(np.int32)]),
        (
            lambda s: intrinsic("sequence_map", double, s),
            lambda s: fl.sequence_map(double, s),
            [SequenceType(np.int32)],
        ),
        (
            lambda s, z: intrinsic("sequence_reduce", s, z, add),
            lambda s, z: fl.sequence_reduce(s, z, add),
            [SequenceType(np.int32), np.int32],
        ),
    ],
)
def test_types_are_those_of_the_front_end(ours, theirs, parameters) -> None:
    built = computation(ours, *parameters).type_signature
    declared = fl.federated_computation(theirs, *parameters).type_signature
    assert str(built.result) == str(declared.result)
    assert built.parameter is None or built.parameter.is_equivalent_to(declared.parameter)


def test_what_is_built_reads_back_as_the_languages_building_blocks() -> None:
    pair = StructType([("a", np.int32), ("b", np.float32)])
    built = computation(
        lambda x, s: block(
            [("k", intrinsic("federated_sum", x)), ("k", reference("k", INT_AT_SERVER))],
            struct(reference("k", INT_AT_SERVER), s["b"], generic_zero(pair), data("uri", np.int32), named_one=s[0]),
        ),
        INT_AT_CLIENTS,
        pair,
    )
    read = ComputationBuildingBlock.from_proto(built.to_proto())
    assert str(read.type_signature) == str(built.type_signature)
    assert ConcreteComputation.from_building_block(read).type_signature == built.type_signature


def test_a_function_of_several_parameters_names_them_as_python_does() -> None:
    built = function(lambda first, second: struct(second, first), np.int32, np.float32)
    assert str(built.type) == "(<first=int32,second=float32> -> <float32,int32>)"


def test_all_equal_values_stay_so_only_where_the_intrinsic_says() -> None:
    equal = reference("x", at_clients(np.int32, all_equal=True))
    assert str(intrinsic("federated_map", double, equal).type) == "{int32}@CLIENTS"
    assert str(intrinsic("federated_map_all_equal", double, equal).type) == "int32@CLIENTS"
    assert str(intrinsic("federated_zip_at_clients", struct(equal, equal)).type) == "<int32,int32>@CLIENTS"


def test_misuse_raises_at_once() -> None:
    one = literal(np.int32(1), np.int32)
    with pytest.raises(TypeError, match="Expected a function"):
        one(one)
    with pytest.raises(TypeError, match="Expected a struct"):
        one[0]
