"""Draws types of every kind that values have."""

import federated_language as fl
import ml_dtypes
import numpy as np
from hypothesis import strategies as st

DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16,
    ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.complex128, np.str_,
]  # fmt: skip

tensors = st.builds(
    fl.TensorType, st.sampled_from(DTYPES), st.none() | st.lists(st.none() | st.integers(0, 3), max_size=2)
)


def structs(members):
    named = st.lists(st.tuples(st.sampled_from("dcba"), members), max_size=4, unique_by=lambda member: member[0])
    return st.builds(fl.StructType, st.lists(members, max_size=3) | named)


element_types = st.recursive(tensors, structs, max_leaves=5)
member_types = element_types | st.builds(fl.SequenceType, element_types) | structs(st.builds(fl.SequenceType, tensors))
federated_types = st.one_of(
    st.builds(fl.FederatedType, member_types, st.just(fl.SERVER)),
    st.builds(fl.FederatedType, member_types, st.just(fl.CLIENTS), st.booleans()),
)
types = st.recursive(member_types | federated_types, structs, max_leaves=4)
