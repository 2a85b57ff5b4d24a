"""Saving and loading the states of programs: what comes back, what is kept, what is refused."""

import asyncio
import errno
import json
import logging
import os
import subprocess
import sys
import threading
import typing
from collections import OrderedDict
from pathlib import Path

import federated_language as fl
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from fedstack.data.headed_file import FileKind
from fedstack.errors import ClosedError, InvalidValueError, ProgramStateError
from fedstack.program import FileProgramStateManager, MemoryProgramStateManager
from fedstack.program.states.folder_lock import FolderLock, holder_of


class Iterator(fl.program.FederatedDataSourceIterator):
    """An iterator whose position is part of the state."""

    def __init__(self, position: int = 0) -> None:
        self.position = position

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "Iterator":
        return cls(int(buffer))

    def to_bytes(self) -> bytes:
        return str(self.position).encode()

    @property
    def federated_type(self):
        return fl.FederatedType(np.int32, fl.CLIENTS)

    def select(self, k=None):
        raise NotImplementedError


class State(typing.NamedTuple):
    model: dict
    round_num: int
    iterator: Iterator


def state(number: int = 3) -> State:
    model = OrderedDict(w=np.arange(6, dtype=np.float32).reshape(2, 3) * number, rest=[np.int64(7), (True, None, "x")])
    return State(model, number, Iterator(number))


def run(coroutine):
    return asyncio.run(coroutine)


def same(one: object, other: object) -> bool:
    if isinstance(one, (np.ndarray, np.generic)):
        assert type(one) is type(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        return one.tobytes() == other.tobytes() if not one.dtype.hasobject else (one == other).all()
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return type(one) is type(other) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, Iterator):
        return one.position == other.position
    return type(one) is type(other) and (one == other or one != one)


@pytest.fixture(params=["file", "memory"])
def manager(request, tmp_path: Path):
    return FileProgramStateManager(tmp_path / "states") if request.param == "file" else MemoryProgramStateManager()


def test_a_state_comes_back_as_it_was(manager) -> None:
    assert run(manager.get_versions()) is None
    assert run(manager.load_latest(state(0))) == (None, 0)
    run(manager.save(state(), 1))
    assert run(manager.get_versions()) == [1]
    found, version = run(manager.load_latest(state(0)))
    assert version == 1
    assert isinstance(found, State)
    assert same(found, state())
    assert found.model["w"].flags.writeable


def test_arrays_come_back_in_the_byte_order_of_the_machine(manager) -> None:
    run(manager.save([np.arange(3, dtype=">i4")], 1))
    (found,), _ = run(manager.load_latest([np.zeros(3, np.int32)]))
    assert (found.dtype, found.tolist()) == (np.dtype(np.int32), [0, 1, 2])
    assert found.dtype.isnative


def test_a_loaded_state_is_a_copy(manager) -> None:
    saved = state()
    run(manager.save(saved, 1))
    saved.model["w"][:] = 0
    found = run(manager.load(1, state(0)))
    found.model["w"][:] = 1
    assert same(run(manager.load(1, state(0))), state())


def test_a_version_is_saved_once_and_one_that_is_not_saved_is_not_found(manager) -> None:
    run(manager.save(state(), 1))
    with pytest.raises(fl.program.ProgramStateExistsError):
        run(manager.save(state(), 1))
    with pytest.raises(fl.program.ProgramStateNotFoundError):
        run(manager.load(2, state()))
    with pytest.raises(InvalidValueError, match="version"):
        run(manager.save(state(), -1))


numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.complex_numbers(), st.text(), st.binary(), st.none())
dtypes = st.one_of(
    nps.integer_dtypes(endianness="="), nps.floating_dtypes(sizes=(16, 32, 64), endianness="="),
    nps.complex_number_dtypes(sizes=(64, 128), endianness="="), nps.boolean_dtypes(),
    nps.unicode_string_dtypes(endianness="="), nps.datetime64_dtypes(endianness="="),
    st.sampled_from([np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)]),
)  # fmt: skip


@st.composite
def arrays(draw):
    dtype = draw(dtypes)
    shape = draw(nps.array_shapes(min_dims=0, min_side=0, max_side=4))
    if dtype.kind == "V":
        return np.array(draw(nps.arrays(np.float32, shape, elements=st.floats(-8, 8, width=32)))).astype(dtype)
    found = draw(nps.arrays(dtype, shape))
    return draw(st.sampled_from([found, found.T, found[::-1] if found.ndim else found]))


leaves = st.one_of(numbers, arrays(), st.binary().map(lambda one: np.array([one, "text"], object)))
names = st.text(min_size=1, max_size=5)
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(names, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(structures)
def test_any_state_comes_back_in_its_bits(tmp_path_factory, value) -> None:
    async def saved_and_loaded() -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda descriptor: None)  # the disk takes most of the time
            manager = FileProgramStateManager(tmp_path_factory.mktemp("states"))
            await manager.save(value, 1)
            return await manager.load(1, value)

    assert same(run(saved_and_loaded()), value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"keep_total": 3, "keep_first": False}, [7, 8, 9]),
        ({"keep_total": 3}, [1, 8, 9]),
        ({"keep_total": 1}, [1, 9]),
        ({"keep_total": 2, "keep_every_k": 4}, [1, 4, 8, 9]),
        ({"keep_total": 0}, list(range(1, 10))),
    ],
)
def test_the_last_versions_and_those_that_are_asked_for_are_kept(tmp_path: Path, options, expected) -> None:
    manager = FileProgramStateManager(tmp_path, **options)
    for version in range(1, 10):
        run(manager.save(version, version))
    assert run(manager.get_versions()) == expected


def test_references_are_awaited_and_states_may_be_saved_at_the_same_time(tmp_path: Path) -> None:
    class Reference(fl.program.MaterializableValueReference):
        type_signature = fl.TensorType(np.int32)

        async def get_value(self):
            await asyncio.sleep(0)
            return np.int32(5)

    async def save() -> None:
        manager = FileProgramStateManager(tmp_path)
        await asyncio.gather(*[manager.save({"x": Reference()}, version) for version in range(5)])
        assert await manager.load(3, {"x": 0}) == {"x": 5}

    run(save())


def newest(folder: Path) -> Path:
    return max(folder.glob("program_state_*"))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "zeros", "header"])
def test_a_damaged_version_is_passed_over_with_a_warning(tmp_path: Path, damage: str, caplog) -> None:
    manager = FileProgramStateManager(tmp_path)
    for version in (1, 2):
        run(manager.save(state(version), version))
    path = newest(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[content.index(state(2).model["w"].tobytes()) + 5] ^= 1
    elif damage == "header":
        content[30] ^= 1
    else:
        content = {"cut": content[:-100], "empty": b"", "zeros": bytes(len(content))}[damage]
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "fedstack"):
        found, version = run(manager.load_latest(state(0)))
    assert (version, found.round_num) == (1, 1)
    assert "Passed over version 2" in caplog.text
    with pytest.raises(ProgramStateError, match="as it was written, found that .* damaged"):
        run(manager.load(2, state(0)))


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    manager = FileProgramStateManager(tmp_path)
    run(manager.save({"w": np.arange(4.0), "b": b"xy", "n": 3}, 1))
    content = newest(tmp_path).read_bytes()
    silent = []
    for index in range(len(content)):
        newest(tmp_path).write_bytes(content[:index] + bytes([content[index] ^ 0x10]) + content[index + 1 :])
        try:
            run(manager.load(1, {"w": np.zeros(4), "b": b"", "n": 0}))
        except ProgramStateError:
            continue
        silent.append(index)
    assert all(content[index] == 0 for index in silent)  # nothing but what fills up to multiples of 64


def test_another_kind_of_file_and_a_newer_format_are_refused(tmp_path: Path, monkeypatch) -> None:
    manager = FileProgramStateManager(tmp_path)
    (tmp_path / "program_state_1").write_bytes(b"PK\3\4" + bytes(range(100)))
    with pytest.raises(ProgramStateError, match="another kind of file"):
        run(manager.load_latest(state()))
    monkeypatch.setattr("fedstack.program.states.state_file._KIND", FileKind(b"FEDSTATE", 2, "program state"))
    run(manager.save(1, 2))
    monkeypatch.undo()
    with pytest.raises(ProgramStateError, match="Expected format 1 .* found format 2, which fedstack .* wrote"):
        run(manager.load_latest(1))


def test_a_state_of_another_structure_is_refused_or_migrated(tmp_path: Path) -> None:
    run(FileProgramStateManager(tmp_path).save({"model": {"w": 1.0, "b": 2.0}, "round": 3}, 1))
    structure = {"model": {"weights": 0.0, "b": 0.0}, "round": 0, "rate": 0.0}
    with pytest.raises(InvalidValueError) as caught:
        run(FileProgramStateManager(tmp_path).load(1, structure))
    assert "Expected a state with model/b, model/weights, rate, round in " in str(caught.value)
    assert "found model/b, model/w, round; missing: model/weights, rate; new: model/w" in str(caught.value)

    def migrate(values):
        return {"model/weights": values["model/w"], "model/b": values["model/b"], "round": values["round"], "rate": 0.1}

    manager = FileProgramStateManager(tmp_path, migrate=migrate)
    assert run(manager.load(1, structure)) == {"model": {"weights": 1.0, "b": 2.0}, "round": 3, "rate": 0.1}


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    manager = FileProgramStateManager(tmp_path)
    with pytest.raises(InvalidValueError, match="found .* at model/rng; convert it"):
        run(manager.save({"model": {"rng": np.random.default_rng(0)}}, 1))
    with pytest.raises(InvalidValueError, match="an array of objects at x"):
        run(manager.save({"x": np.array([object()])}, 1))
    assert run(manager.get_versions()) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(2, [("a", "f4")]), "arrays of numbers or strings .* found .* at x; save its fields"),
        (np.zeros(1, [("a", "f4")])[0], "arrays of numbers or strings .* found .* at x; save its fields"),
        (np.void(b"ab"), "arrays of numbers or strings .* found .* at x; save its fields"),
        (range(3), "found a range at x; pass a list or an array"),
        ({"y": range(3)}, "found a range at x/y; pass a list or an array"),
        (memoryview(b"ab"), "found a memoryview at x; pass a list or an array"),
        ({1, 2}, "found set {1, 2} at x; convert it"),
        (print, "found .* at x; convert it"),
        (object(), "found .* at x; convert it"),
    ],
)  # fmt: skip
def test_what_would_not_come_back_is_refused(manager, value: object, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        run(manager.save({"x": value}, 1))
    assert run(manager.get_versions()) is None


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch) -> None:
    manager = FileProgramStateManager(tmp_path)
    run(manager.save(state(1), 1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ProgramStateError, match=r"Cannot write .*_2: .*No space left on device.* unchanged") as caught:
        run(manager.save(state(2), 2))
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert run(manager.get_versions()) == [1]
    assert not list(tmp_path.glob(".program_state*"))
    run(manager.save(state(2), 2))


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProgramStateError, match=r"Cannot create .*file.inside"):
        run(FileProgramStateManager(tmp_path / "file" / "inside").save(1, 1))
    with pytest.raises(InvalidValueError, match="the path of a folder as root_dir, found ''"):
        FileProgramStateManager("")
    with pytest.raises(InvalidValueError, match="the beginning of a file name"):
        FileProgramStateManager(tmp_path, prefix="a/b")


HOLD = """
import asyncio, sys
from fedstack.program import FileProgramStateManager
manager = FileProgramStateManager(sys.argv[1], name="first")
asyncio.run(manager.save(1, 1))
print("saved", flush=True)
sys.stdin.read()
"""


def test_a_second_run_in_a_folder_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"saved\n"
        manager = FileProgramStateManager(tmp_path)
        try:
            with pytest.raises(ProgramStateError) as caught:
                run(manager.load_latest(0))
            assert f"found that the run 'first' of process {process.pid} on " in str(caught.value)
            assert run(manager.load(1, 0)) == 1  # who only looks needs no lock
        finally:
            process.kill()
            process.wait(20)
    assert run(manager.load_latest(0)) == (1, 1)
    with pytest.raises(ProgramStateError, match="of this process uses it"):
        run(FileProgramStateManager(tmp_path).save(2, 2))
    manager.close()
    run(FileProgramStateManager(tmp_path).save(2, 2))


def test_who_looks_for_the_holder_of_a_lock_disturbs_nobody(tmp_path: Path) -> None:
    ended, held = threading.Event(), set()

    def look() -> None:
        while not ended.is_set():
            held.add(holder_of(tmp_path) is not None)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(200):
            lock = FolderLock(tmp_path, "a run")
            lock.acquire()
            lock.release()
        lock = FolderLock(tmp_path, "a run")
        lock.acquire()
        assert str(holder_of(tmp_path)) == "the run 'a run' of this process"
    finally:
        ended.set()
        thread.join(20)
    assert True in held
    lock.release()
    assert holder_of(tmp_path) is None
    assert holder_of(tmp_path / "none") is None


def test_states_are_those_of_the_call_and_are_saved_in_its_order(tmp_path: Path) -> None:
    async def save() -> None:
        manager, gate, order = FileProgramStateManager(tmp_path), asyncio.Event(), []

        class Reference(fl.program.MaterializableValueReference):
            type_signature = fl.TensorType(np.int32)

            async def get_value(self):
                await gate.wait()
                return np.int32(5)

        async def saved(coroutine, version: int) -> None:
            await coroutine
            order.append(version)

        iterator = Iterator(1)
        slow = asyncio.create_task(saved(manager.save({"x": Reference(), "iterator": iterator}, 1), 1))
        iterator.position = 2
        quick = asyncio.create_task(saved(manager.save({"x": 6, "iterator": iterator}, 2), 2))
        iterator.position = 3
        for _ in range(100):
            await asyncio.sleep(0)
        assert await manager.get_versions() is None
        gate.set()
        await asyncio.gather(slow, quick)
        assert order == [1, 2]
        found = [await manager.load(version, {"x": 0, "iterator": Iterator()}) for version in (1, 2)]
        assert [(one["x"], one["iterator"].position) for one in found] == [(5, 1), (6, 2)]

    run(save())


def test_arrays_may_change_as_soon_as_save_was_called(manager) -> None:
    async def save() -> None:
        weights, content = np.zeros(3), bytearray(b"a")
        saving = manager.save({"w": weights, "view": weights[::-1], "b": content}, 1)
        weights += 1
        content[:] = b"z"
        await saving
        found = await manager.load(1, {"w": weights, "view": weights, "b": b""})
        assert [found["w"].tolist(), found["view"].tolist(), found["b"]] == [[0, 0, 0], [0, 0, 0], b"a"]

    run(save())


def test_a_state_that_cannot_be_saved_does_not_keep_others_from_being_saved(tmp_path: Path) -> None:
    async def save() -> list:
        manager = FileProgramStateManager(tmp_path)
        tasks = [manager.save({"x": object()}, 1), manager.save(2, 2), manager.save(3, 2), manager.save(4, 4)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third, fourth = run(save())
    assert isinstance(first, InvalidValueError)
    assert isinstance(third, fl.program.ProgramStateExistsError)
    assert (second, fourth) == (None, None)
    assert run(FileProgramStateManager(tmp_path).get_versions()) == [2, 4]


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".program_state_7.new").write_bytes(b"half")
    run(FileProgramStateManager(tmp_path).save(1, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run", "program_state_1"]


def test_a_file_has_no_pickles_and_its_header_is_json(tmp_path: Path) -> None:
    run(FileProgramStateManager(tmp_path).save(state(), 1))
    content = newest(tmp_path).read_bytes()
    length = int.from_bytes(content[12:20], "little")
    header = json.loads(content[20 : 20 + length])
    assert [entry["name"] for entry in header["values"]][:2] == ["model/rest/0", "model/rest/1/0"]
    assert b"pickle" not in content


def test_values_whose_names_would_be_the_same_are_refused(tmp_path) -> None:
    manager = FileProgramStateManager(tmp_path)
    with pytest.raises(InvalidValueError, match="found 'a/b' twice"):
        asyncio.run(manager.save({"a/b": 1, "a": {"b": 2}}, 1))


def test_a_damaged_version_may_be_saved_again(tmp_path) -> None:
    manager = FileProgramStateManager(tmp_path)
    for number in (1, 2):
        asyncio.run(manager.save(number, number))
    manager.close()
    path = tmp_path / "program_state_2"
    path.write_bytes(path.read_bytes()[:-1])
    manager = FileProgramStateManager(tmp_path)
    assert asyncio.run(manager.load_latest(0)) == (1, 1)
    asyncio.run(manager.save(22, 2))
    assert asyncio.run(manager.load_latest(0)) == (22, 2)


@pytest.mark.parametrize(
    ("saved", "passed"),
    [
        ({"w": np.zeros((3, 2)), "n": 1}, {"w": np.zeros((3, 4)), "n": 1}),
        ({"w": np.zeros(3)}, {"w": np.zeros((3, 1))}),
        ({"w": np.zeros(3)}, {"w": 0.0}),
        ({"w": np.zeros(3)}, {"w": np.zeros(4)}),
        ({"w": np.zeros(3, np.float32)}, {"w": np.zeros(3)}),
        ({"w": np.zeros((5, 2), np.float32)}, {"w": np.zeros((0, 2))}),
        ({"w": "three"}, {"w": 3}),
        ({"w": b"three"}, {"w": 3}),
    ],
)
def test_a_state_that_is_not_like_the_programs_is_refused_or_migrated(
    tmp_path: Path, saved: dict[str, object], passed: dict[str, object]
) -> None:
    manager = FileProgramStateManager(tmp_path, migrate=lambda values: {**values, "w": passed["w"]})
    run(manager.save(saved, 1))
    with pytest.raises(InvalidValueError, match=r"found .* for w, where it passes .* pass migrate="):
        run(FileProgramStateManager(tmp_path).load(1, passed))
    found, version = run(manager.load_latest(passed))
    assert (str(found), version) == (str(passed), 1)


@pytest.mark.parametrize(
    ("saved", "passed"),
    [
        (np.zeros((5, 2)), np.zeros((0, 2))),  # it grows with the rounds
        (np.zeros(3, ">i4"), np.ones(3, np.int32)),
        (np.array(["a", "text"]), np.array(["b", "c"], object)),
        (np.int32(3), 0),
        (3.5, np.zeros(())),
        (None, np.zeros(3)),
        (np.zeros(3), None),
        (np.float16(1), True),
    ],
)
def test_what_may_change_while_a_program_runs_is_loaded(tmp_path: Path, saved: object, passed: object) -> None:
    manager = FileProgramStateManager(tmp_path)
    run(manager.save(saved, 1))
    found, _ = run(manager.load_latest(passed))
    np.testing.assert_array_equal(np.asarray(found, object), np.asarray(saved, object))


def test_a_migration_that_returns_something_else_is_named(tmp_path: Path) -> None:
    run(FileProgramStateManager(tmp_path).save({"w": 1.0}, 1))
    with pytest.raises(InvalidValueError, match="Expected a function as migrate, found dict"):
        FileProgramStateManager(tmp_path, migrate={"w": "v"})
    returned = [
        (None, "Expected migrate to return .* by name, .* found None"),
        ({"x": 1}, "migrate returns .* found x; mis"),
    ]
    returned += [({"v": "text"}, "found a string for v, where it passes a number. Return"), ([("v", 1)], "found list")]
    for value, message in returned:
        with pytest.raises(InvalidValueError, match=message) as caught:
            run(FileProgramStateManager(tmp_path, migrate=lambda _, value=value: value).load(1, {"v": 0.0}))
        assert "pass migrate=" not in str(caught.value)


def test_a_masked_array_is_refused_since_its_mask_would_be_lost(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="a masked one at w"):
        run(FileProgramStateManager(tmp_path).save({"w": np.ma.masked_equal([1, 2], 2)}, 1))


def test_a_manager_that_is_closed_saves_nothing_more(tmp_path: Path) -> None:
    manager = FileProgramStateManager(tmp_path)
    run(manager.save(1, 1))
    manager.close()
    with pytest.raises(ClosedError, match="found that it has been closed; open it again"):
        run(manager.save(2, 2))
    assert run(FileProgramStateManager(tmp_path).load_latest(0)) == (1, 1)


def test_a_pipe_in_place_of_a_state_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "program_state_1")
    with pytest.raises(ProgramStateError, match="found no regular file"):
        run(FileProgramStateManager(tmp_path).load_latest(0))


@pytest.mark.parametrize("name", ["", "  ", 3, "a\0b", "two\nlines"])
def test_a_name_is_a_line_of_text(tmp_path: Path, name: object) -> None:
    with pytest.raises(InvalidValueError, match="Expected a name of printable characters as name"):
        FileProgramStateManager(tmp_path, name=name)
