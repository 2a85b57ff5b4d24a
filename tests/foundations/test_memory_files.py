"""Files in memory: what they hold comes back in another process, and nothing is left of them."""

import gc
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from fedstack.foundations import memory_files
from fedstack.foundations.memory_files import MemoryFile, ReceivedFile, SealedFile
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


def test_nobody_can_change_a_sealed_file_and_what_is_mapped_stays() -> None:
    before = len(os.listdir("/proc/self/fd"))
    views = [array.data.cast("B") for array in arrays() if array.size]
    file = SealedFile(views)
    with pytest.raises(PermissionError):
        os.pwrite(file.descriptor, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(file.descriptor, 0)
    received = ReceivedFile(os.dup(file.descriptor))
    found = [received.view(start, len(view)) for start, view in zip(file.starts, views)]
    del file, received
    gc.collect()
    for part, view in zip(found, views):
        assert part is not None
        assert part.readonly
        assert bytes(part) == bytes(view)
    del found, part
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_a_sealed_file_with_enough_bytes_is_mapped() -> None:
    content = b"12345678"
    whole = SealedFile([memoryview(content)])
    open_file = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.pwrite(open_file, content, 0)
    read, write = os.pipe()
    os.close(write)
    assert ReceivedFile(os.dup(whole.descriptor)).view(2, 6) == b"345678"
    assert ReceivedFile(os.dup(whole.descriptor)).view(2, 7) is None
    assert ReceivedFile(os.dup(whole.descriptor)).view(1 << 62, 1 << 62) is None
    assert ReceivedFile(open_file).view(0, 8) is None
    assert ReceivedFile(read).view(0, 8) is None


def test_so_many_files_are_mapped_at_a_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_files, "_MOST_MAPPED", len(memory_files._mapped) + 2)
    file = SealedFile([memoryview(b"12345678")])
    received = [ReceivedFile(os.dup(file.descriptor)) for _ in range(3)]
    found = [one.view(0, 8) for one in received]
    assert [one is not None for one in found] == [True, True, False]
    assert received[0].view(4, 4) == b"5678", "a file is mapped once"
    del found, received
    gc.collect()
    assert ReceivedFile(os.dup(file.descriptor)).view(0, 8) == b"12345678"
