"""Data frames are tables of columns, each with a name and a dtype of its own, and gaps in them stay no secret."""

import federated_language as fl
import numpy as np
import pytest

from fedstack.computations.values.federated_values import normalize_argument
from fedstack.computations.values.values import normalize
from fedstack.data.client_data import batches
from fedstack.data.client_tables import by_client
from fedstack.errors import InvalidValueError, TypeMismatchError

WIDE = 2**53 + 1  # the first integer that float64 has not


class NullableDtype:
    def __init__(self, dtype):
        self.numpy_dtype = np.dtype(dtype)

    def __repr__(self):
        return self.numpy_dtype.name.capitalize()


class Nullable:
    """Becomes an array as a nullable column of pandas does: of floats or objects if a value is missing."""

    def __init__(self, values, dtype):
        self.values = values
        self.dtype = NullableDtype(dtype)

    def isna(self):
        return np.array([value is None for value in self.values], np.bool_)

    def __array__(self, dtype=None, copy=None):
        if None not in self.values:
            return np.array(self.values, dtype or self.dtype.numpy_dtype)
        lossy = object if self.dtype.numpy_dtype.kind == "b" else float
        return np.array([np.nan if value is None else value for value in self.values], dtype or lossy)


class Polar(Nullable):
    """The same with the name that polars has for it."""

    is_null = Nullable.isna
    isna = None


class Frame:
    """A data frame: several columns of one name come together, and all of them in one array of one dtype."""

    def __init__(self, *columns):
        self._columns = columns
        self.columns = [name for name, _ in columns]

    def __getitem__(self, name):
        found = [column for other, column in self._columns if other == name]
        return found[0] if len(found) == 1 else np.stack(found, 1)

    def __array__(self, dtype=None, copy=None):
        return np.stack([np.asarray(column) for _, column in self._columns], 1)


FRAME = Frame(
    ("who", np.array(["b", "a", "b"])),
    ("id", np.array([1, WIDE, 3])),
    ("x", np.array([0.5, np.nan, 2.5], np.float32)),
)


@pytest.mark.parametrize("seed", [None, 3])
def test_batches_of_a_data_frame_are_dicts_of_its_columns_each_with_its_own_dtype(seed):
    found = list(batches(FRAME, 2, shuffle_seed=seed))
    assert [list(batch) for batch in found] == [["who", "id", "x"]] * 2
    assert [batch["id"].dtype for batch in found] == [np.int64] * 2
    assert [batch["x"].dtype for batch in found] == [np.float32] * 2
    assert sorted(k for batch in found for k in batch["id"].tolist()) == [1, 3, WIDE]


def test_batches_take_data_frames_inside_of_other_containers():
    (batch,) = batches({"frame": FRAME, "y": [1, 2, 3]}, 3)
    assert batch["frame"]["id"].tolist() == [1, WIDE, 3]
    with pytest.raises(InvalidValueError, match=r"found arrays\['frame'\]\['who'\]: 3, .*, arrays\['y'\]: 2;"):
        batches({"frame": FRAME, "y": [1, 2]}, 3)


def test_a_record_array_with_a_field_called_columns_is_an_array():
    rows = np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("columns", np.int64), ("x", np.float64)])
    (batch,) = batches(rows, 2)
    assert batch.tolist() == [(1, 2.0), (3, 4.0)]


def test_several_columns_of_one_name_are_refused_by_that_name():
    twice = Frame(("who", np.array([1, 1])), ("x", np.array([1, 2])), ("y", np.array([3, 4])), ("x", np.array([5, 6])))
    with pytest.raises(InvalidValueError, match="at arrays, found several columns named 'x'; rename or drop"):
        batches(twice, 2)
    with pytest.raises(InvalidValueError, match="at by_client, found several columns named 'x'; rename or drop"):
        by_client(twice, "who")
    with pytest.raises(InvalidValueError, match="at by_client, found several columns named 'x'"):
        by_client(twice, "x", ["y"])
    assert by_client(twice, "who", ["y"])[1]["y"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (Nullable([WIDE, None, None], np.int64), "Int64"),
        (Nullable([True, None, None], np.bool_), "Bool"),
        (Nullable([0.5, None, None], np.float64), "Float64"),
        (Polar([WIDE, None, None], np.int64), "Int64"),
    ],
)
def test_a_nullable_column_with_a_missing_value_is_refused_with_its_name_and_the_row(column, shown):
    fill = "fill_null" if isinstance(column, Polar) else "fillna"
    message = rf"in every row of a column of {shown}, found no value in row 1 \(2 missing\); at %s; .* rows.*{fill}"
    frame = Frame(("who", np.array([1, 1, 2])), ("x", column))
    with pytest.raises(InvalidValueError, match=message % "column 'x'"):
        by_client(frame, "who")
    with pytest.raises(InvalidValueError, match=message % "column 'x'"):
        by_client(frame, "x")
    with pytest.raises(InvalidValueError, match=message % r"arrays\['x'\]"):
        batches(frame, 2)
    with pytest.raises(InvalidValueError, match=message % r"arrays\[0\]"):
        batches((column,), 2)


@pytest.mark.parametrize("kind", [Nullable, Polar])
def test_a_nullable_column_is_no_argument_if_a_value_is_missing(kind):
    three = fl.TensorType(np.float64, [3])
    with pytest.raises(InvalidValueError, match=r"column of Int64, found no value in row 1 \(1 missing\); at arg\.x; "):
        normalize({"x": kind([5, None, 6], np.int64)}, fl.StructType([("x", three)]))
    assert normalize(kind([5, 4, 6], np.float64), three).tolist() == [5, 4, 6]


@pytest.mark.parametrize("kind", [Nullable, Polar])
def test_a_nullable_column_without_missing_values_keeps_its_dtype(kind):
    frame = Frame(("who", kind([7, 7], np.int64)), ("x", kind([WIDE, 2], np.int64)), ("b", kind([True, False], bool)))
    (batch,) = batches(frame, 2)
    for found in (batch, by_client(frame, "who")[7]):
        assert (found["x"].dtype, found["x"].tolist()) == (np.int64, [WIDE, 2])
        assert (found["b"].dtype, found["b"].tolist()) == (np.bool_, [True, False])


def test_nan_in_a_column_of_numpys_own_floats_is_a_float_like_any_other():
    class Series:
        def __init__(self, values):
            self._values = np.array(values)
            self.dtype = self._values.dtype

        def isna(self):
            return np.isnan(self._values)

        def __array__(self, dtype=None, copy=None):
            return self._values

    frame = Frame(("who", np.array([1, 1])), ("x", Series([0.5, np.nan])))
    assert np.isnan(by_client(frame, "who")[1]["x"]).tolist() == [False, True]
    (batch,) = batches(frame, 2)
    assert np.isnan(batch["x"]).tolist() == [False, True]


STRUCT = fl.to_type({"id": (np.int64, [None]), "x": (np.float32, [None])})


@pytest.mark.parametrize(
    ("value", "type_spec", "message"),
    [
        (
            [FRAME],
            fl.FederatedType(STRUCT, fl.CLIENTS),
            "found a Frame with the columns ['who', 'id', 'x']; at arg[client 0]; pass {c: df[c].to_numpy() for c in "
            "df.columns}, or split the rows of all clients with fedstack.by_client(df, id)",
        ),
        (
            FRAME,
            fl.FederatedType(STRUCT, fl.CLIENTS),
            "at arg; pass list(fedstack.by_client(df, id).values()), where id is the column with the client's id",
        ),
        (
            [FRAME],
            fl.FederatedType(fl.SequenceType(STRUCT), fl.CLIENTS),
            "at arg[client 0]; pass fedstack.batches(df, batch_size)",
        ),
    ],
)
def test_a_data_frame_in_place_of_what_is_made_of_it_is_refused_without_being_shown(value, type_spec, message):
    with pytest.raises(TypeMismatchError) as caught:
        normalize_argument(value, type_spec)
    assert message in str(caught.value)
