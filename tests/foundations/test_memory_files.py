"""Files in memory: what they hold comes back in another process, and nothing is left of them."""

import gc
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from fedstack.foundations.memory_files import MemoryFile
from fedstack.foundations.segments import Rows

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has files in memory")

SUM = "import pickle, sys; print([float(one.sum()) for one in pickle.load(sys.stdin.buffer)])"


def arrays() -> list[np.ndarray]:
    return [np.arange(1000, dtype=np.float32), np.zeros(0), np.full((3, 5), 7, np.int8)]


def test_arrays_come_back_read_only_with_their_bits() -> None:
    file = MemoryFile([*arrays(), Rows([np.ones(4, np.float32)] * 3)])
    *found, rows = pickle.loads(pickle.dumps(file))
    for array, expected in zip(found, arrays()):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype
        assert not array.flags.writeable
    assert [row.tolist() for row in rows.arrays] == [[1.0] * 4] * 3


def test_another_process_reads_them() -> None:
    file = MemoryFile(arrays())
    ended = subprocess.run(
        [sys.executable, "-c", SUM], input=pickle.dumps(file), stdout=subprocess.PIPE, timeout=60, check=True
    )
    assert ended.stdout.decode().strip() == str([float(one.sum()) for one in arrays()])


def test_a_file_is_closed_with_its_object_and_whoever_comes_later_gets_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = MemoryFile(arrays())
    pickled = pickle.dumps(file)
    found = pickle.loads(pickled)
    del file
    gc.collect()
    assert found[0][3] == 3.0, "what is mapped stays"
    assert pickle.loads(pickled) == []
    del found
    assert len(os.listdir("/proc/self/fd")) == before
