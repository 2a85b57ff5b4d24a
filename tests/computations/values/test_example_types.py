"""The types of example values, and leaves that take and return the structs of other libraries, with names kept."""

import dataclasses
from collections import Counter, OrderedDict, defaultdict
from typing import Any, NamedTuple

import attrs
import federated_language as fl
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fedstack
from fedstack.errors import InvalidValueError, TypeMismatchError


class Tensor:
    """What fedstack sees of a tensor of PyTorch: one that is on a device, and has a gradient."""

    def __init__(self, array: Any, dtype: str = "") -> None:
        self._array = np.asarray(array)
        self.dtype = f"torch.{dtype or self._array.dtype}"
        self.shape = self._array.shape
        self._is_plain = False

    def _changed(self, **changes: Any) -> "Tensor":
        made = Tensor(self._array, self.dtype.removeprefix("torch."))
        vars(made).update(vars(self) | changes)
        return made

    def detach(self) -> "Tensor":
        return self._changed(_has_no_gradient=True)

    def cpu(self) -> "Tensor":
        return self._changed(_is_plain=hasattr(self, "_has_no_gradient"))

    def float(self) -> "Tensor":
        return self._changed(dtype="torch.float32", _array=self._array.astype(np.float32))

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        if not self._is_plain or self.dtype == "torch.bfloat16":
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self._array


class Point(NamedTuple):
    x: Any
    y: Any


@attrs.frozen
class Model:
    w: Any


@dataclasses.dataclass
class Layer:
    w: Any


def state_dict(scale: float = 1.0) -> Any:
    return OrderedDict(
        [
            ("layer1.weight", Tensor(np.full((2, 3), scale, np.float32))),
            ("layer1.bias", Tensor(np.full(2, scale, ml_dtypes.bfloat16), "bfloat16")),
        ]
    )


STATE = fedstack.type_of(state_dict())
BFLOAT16 = ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (np.zeros((2, 3), np.float32), fl.TensorType(np.float32, [2, 3])),
        (np.float64(1), np.float64),
        (True, np.bool_),
        (5, np.int32),
        (2**40, np.int64),
        (1.5, np.float32),
        ("text", np.str_),
        (b"bytes", np.str_),
        (np.array(["a", b"b"], object), fl.TensorType(np.str_, [2])),
        ({"w": {"a": 1, "b": (1.0, "x")}}, {"w": {"a": np.int32, "b": (np.float32, np.str_)}}),
        ([1, 2.0], [np.int32, np.float32]),
        ([("a", 1), ("b", 2.0)], fl.StructType([("a", np.int32), ("b", np.float32)])),
        (Point(1, [2]), fl.StructWithPythonType([("x", np.int32), ("y", [np.int32])], Point)),
        (Model(1.0), fl.StructWithPythonType([("w", np.float32)], Model)),
        (Layer(1.0), fl.StructWithPythonType([("w", np.float32)], Layer)),
        (defaultdict(int, a=1), {"a": np.int32}),
        (Counter("aab"), {"a": np.int32, "b": np.int32}),
        (pd.Series([1.0, 2.0]), fl.TensorType(np.float64, [2])),
        (jnp.zeros((2, 1), jnp.bfloat16), fl.TensorType(BFLOAT16, [2, 1])),
        (jax.eval_shape(lambda: {"w": jnp.ones((2, 1))}), {"w": (np.float32, [2, 1])}),
        (Tensor(np.zeros((2, 3), np.int64)), fl.TensorType(np.int64, [2, 3])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_example_has_the_type_that_one_would_write(example, expected):
    found, wanted = fedstack.type_of(example), fl.to_type(expected)
    assert found == wanted
    assert repr(found) == repr(wanted)  # which has the containers


def test_a_state_dict_keeps_its_names_with_their_dots():
    assert str(STATE) == "<layer1.weight=float32[2,3],layer1.bias=bfloat16[2]>"
    assert STATE.python_container is OrderedDict


@pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
def test_a_data_frame_is_a_dict_of_columns_with_any_number_of_rows(make):
    found = fedstack.type_of(make({"age": [1, 2], "name": ["a", "b"], "share": [0.5, 1.5]}))
    expected = {"age": (np.int64, [None]), "name": (np.str_, [None]), "share": (np.float64, [None])}
    assert repr(found) == repr(fl.to_type(expected))


def test_rows_can_be_open():
    example = {"x": np.zeros((5, 3)), "y": Tensor(np.zeros(5)), "rate": 0.5}
    found = fedstack.type_of(example, open_rows=True)
    assert str(found) == "<x=float64[?,3],y=float64[?],rate=float32>"


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"a": [1, None]}, r"found None; at example.a\[1\]; pass numbers"),
        ({"layer1.weight": object()}, "at example.layer1.weight; pass numbers"),
        ({"a": {1: 2}}, r"Expected names that are text, found int 1; at example.a; use str\(name\)"),
        ({"__class__": 1}, "Expected names that the language can use; at example"),
        ({"when": np.zeros(2, "M8[s]")}, "datetime64.*; at example.when; convert it"),
        ({"mixed": np.array([1, "a"], object)}, "at example.mixed; convert it"),
        ([2**64], r"integers of at most 64 bits, found int .*; at example\[0\]"),
        (pl.DataFrame({"x": [1]}).lazy(), "call collect"),
        (type("Net", (), {"state_dict": lambda self: {}})(), r"pass its state_dict\(\)"),
        ({"d": pd.DataFrame([[1, 2]])}, r"names that are text, found int 0; at example.d; use str\(name\)"),
        (
            pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])),
            r"text, found tuple .*; at example; use",
        ),
        (
            pa.table([[1], [2]], names=["a", "a"]),
            "Expected columns with names of their own, found 'a' twice; at example",
        ),
        ({"k": jax.random.key(0)}, r"found .*; at example.k: JAX array with PRNGKey dtype .*; convert it"),
        ({"m": np.ma.array([1, 2], mask=[0, 1])}, r"found a masked array; at example.m; .* value.filled\(…\)"),
    ],
)
def test_what_has_no_type_is_an_error_with_its_path(example, message):
    with pytest.raises(TypeMismatchError, match=message):
        fedstack.type_of(example)


def test_a_missing_value_in_a_data_frame_is_an_error_with_its_row():
    frame = pd.DataFrame({"x": pd.array([1, None], "Int64")})
    with pytest.raises(InvalidValueError, match="found no value in row 1 .*at example.x"):
        fedstack.type_of(frame)


@fedstack.python_computation([STATE, np.float32], STATE)
def scaled(state, factor):
    return OrderedDict((name, Tensor(value * factor, str(value.dtype))) for name, value in state.items())


@fl.federated_computation(fl.FederatedType(STATE, fl.SERVER), fl.FederatedType(np.float32, fl.CLIENTS))
def scaled_sum(state, factors):
    return fl.federated_sum(fl.federated_map(scaled, (fl.federated_broadcast(state), factors)))


def test_leaves_take_and_return_a_state_dict():
    with fedstack.create_sync_local_execution_context():
        found = scaled_sum(state_dict(0.5), [1.0, 3.0])
    assert type(found) is OrderedDict
    assert {name: (value.dtype, value.tolist()) for name, value in found.items()} == {
        "layer1.weight": (np.float32, [[2.0] * 3] * 2),
        "layer1.bias": (BFLOAT16, [2.0, 2.0]),
    }


def test_the_result_type_of_a_leaf_that_returns_tensors_is_found():
    def leaf(state):
        return {"w": Tensor(state["layer1.weight"]), "loss": jnp.float32(0)}

    result = fedstack.python_computation([STATE])(leaf).type_signature.result
    assert repr(result) == repr(fl.to_type({"w": (np.float32, [2, 3]), "loss": np.float32}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer1.weight": Tensor(np.zeros((2, 3)))}, r"found an array float64\[2, 3\]; at arg.state.layer1.weight"),
        ({"layer1.bias": Tensor(np.zeros(3, BFLOAT16), "bfloat16")}, r"found shape \[3\]; at arg.state.layer1.bias"),
        ({"layer2.bias": 1}, "found the extra 'layer2.bias'; at arg.state"),
    ],
)
def test_a_mismatch_in_a_state_dict_names_its_path(changes, message):
    with fedstack.create_sync_local_execution_context():
        with pytest.raises(TypeMismatchError, match=message):
            scaled_sum({**state_dict(), **changes}, [1.0])
