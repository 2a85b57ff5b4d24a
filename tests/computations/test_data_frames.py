"""Data frames are tables of columns, each with a name and a dtype of its own."""

import numpy as np
import pytest

from fedstack.computations.client_data import batches
from fedstack.computations.client_tables import by_client
from fedstack.errors import InvalidValueError

WIDE = 2**53 + 1  # the first integer that float64 has not


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
    with pytest.raises(InvalidValueError, match="found several named 'x'; at arrays; rename or drop"):
        batches(twice, 2)
    with pytest.raises(InvalidValueError, match="found several named 'x'; at by_client; rename or drop"):
        by_client(twice, "who")
    with pytest.raises(InvalidValueError, match="found several named 'x'; at by_client"):
        by_client(twice, "x", ["y"])
    assert by_client(twice, "who", ["y"])[1]["y"].tolist() == [3, 4]
