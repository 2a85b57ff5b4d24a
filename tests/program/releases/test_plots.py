"""Pictures of released numbers: what is drawn, and that the file is a table that survives kills."""

import asyncio
import math
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest
from PIL import Image

from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.observe.figures import SUFFIXES, draw_panels
from fedstack.program import FileProgramStateManager, PlotReleaseManager


def release(manager: PlotReleaseManager, *rounds: tuple[object, int]) -> None:
    for value, key in rounds:
        asyncio.run(manager.release(value, key))


@pytest.fixture(params=SUFFIXES)
def suffix(request) -> str:
    return request.param


STARTS = {".pdf": b"%PDF-", ".png": b"\x89PNG\r\n", ".svg": b"<?xml"}


def points(axes) -> list[tuple[float, float]]:
    return [tuple(point) for point in axes.lines[0].get_xydata()]


def test_a_picture_is_of_the_kind_that_its_path_ends_with(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"curves{suffix}"
    release(PlotReleaseManager(path), ({"loss": np.float32(0.5)}, 1), ({"loss": 0.25}, 2))
    assert path.read_bytes().startswith(STARTS[suffix])
    assert sorted(one.name for one in path.parent.iterdir()) == [path.name]


def test_a_later_process_draws_the_same_file_as_one_that_was_not_interrupted(tmp_path: Path, suffix: str) -> None:
    rounds = [({"loss": 1 / key, "accuracy": {"top": math.nan if key == 2 else key}}, key) for key in range(1, 6)]
    whole, resumed = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    release(PlotReleaseManager(whole), *rounds)
    release(PlotReleaseManager(resumed), *rounds[:2], ({"loss": 99, "accuracy": {"top": 98}}, 3))
    program = (
        "import asyncio, math, sys\nfrom fedstack.program import PlotReleaseManager\n"
        "manager = PlotReleaseManager(sys.argv[1])\n"
        "for key in (3, 4, 5):\n"
        "    asyncio.run(manager.release({'loss': 1 / key, 'accuracy': {'top': key}}, key))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "MPLBACKEND": "Agg"}
    environment.pop("DISPLAY", None)
    environment.pop("WAYLAND_DISPLAY", None)
    subprocess.run([sys.executable, "-c", program, str(resumed)], env=environment, check=True, timeout=100)
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_key_that_is_released_again_replaces_its_point(tmp_path: Path) -> None:
    again, once = tmp_path / "again.png", tmp_path / "once.png"
    release(PlotReleaseManager(again), ({"x": 3}, 1), ({"x": 2}, 2), ({"x": 1}, 1))
    release(PlotReleaseManager(once), ({"x": 1}, 1), ({"x": 2}, 2))
    assert again.read_bytes() == once.read_bytes()


def test_the_order_of_the_releases_does_not_change_the_curve(tmp_path: Path) -> None:
    images = []
    for name, keys in (("forward.png", [1, 2, 3]), ("backward.png", [3, 2, 1])):
        release(PlotReleaseManager(tmp_path / name), *(({"x": key**2}, key) for key in keys))
        with Image.open(tmp_path / name) as image:
            images.append(np.asarray(image))
    np.testing.assert_array_equal(*images)


def test_several_paths_have_the_same_picture_each_in_its_kind(tmp_path: Path) -> None:
    paths = [tmp_path / f"m{suffix}" for suffix in SUFFIXES]
    release(PlotReleaseManager(paths), ({"x": 1}, 1), ({"x": 2}, 2))
    for path in paths:
        release(PlotReleaseManager(tmp_path / f"alone{path.suffix}"), ({"x": 1}, 1), ({"x": 2}, 2))
        assert path.read_bytes() == (tmp_path / f"alone{path.suffix}").read_bytes()


def test_a_picture_is_drawn_with_the_state_that_contains_it(tmp_path: Path) -> None:
    path = tmp_path / "m.png"
    states = FileProgramStateManager(tmp_path / "states")
    manager = PlotReleaseManager(path, state_manager=states)
    for key in (1, 2):
        release(manager, ({"loss": key / 4}, key))
        before = path.read_bytes() if path.exists() else b""
        asyncio.run(states.save(key, key))
    release(manager, ({"loss": 9}, 3))
    states.close()
    complete = path.read_bytes()
    assert before not in (b"", complete)
    path.write_bytes(before)  # as if the process had been killed between the state and the file
    later = FileProgramStateManager(tmp_path / "states")
    PlotReleaseManager(path, state_manager=later)
    asyncio.run(later.load_latest(0))
    assert path.read_bytes() == complete


def test_each_number_has_a_panel_and_arrays_and_strings_have_none(tmp_path: Path) -> None:
    manager = PlotReleaseManager(tmp_path / "m.svg")
    value = {"loss": np.array(1.5), "flag": True, "weights": np.zeros(3), "name": "run", "none": None, "z": 1j}
    release(manager, (value, 1))
    with_arrays = (tmp_path / "m.svg").read_bytes()
    release(PlotReleaseManager(tmp_path / "n.svg"), ({"loss": 1.5, "flag": 1.0}, 1))
    assert (tmp_path / "n.svg").read_bytes() == with_arrays


def test_a_value_without_numbers_is_a_picture_that_says_so(tmp_path: Path) -> None:
    release(PlotReleaseManager(tmp_path / "m.png"), (np.zeros(3), 1))
    assert (tmp_path / "m.png").read_bytes().startswith(STARTS[".png"])
    (axes,) = draw_panels({}, "round").axes
    assert [text.get_text() for text in axes.texts] == ["no numbers"]


def test_a_curve_is_broken_where_a_value_is_not_finite_and_has_a_cross_there() -> None:
    figure = draw_panels({"loss": [(1, 1.0), (2, math.nan), (3, 4.0), (5, -math.inf), (6, 1e305)]}, "round")
    (axes,) = figure.axes
    np.testing.assert_array_equal(points(axes), [(1, 1), (2, np.nan), (3, 4), (5, np.nan), (6, np.nan)])
    assert list(axes.lines[1].get_xdata()) == [2, 5, 6]
    figure.savefig(BytesIO())


def test_panels_have_names_units_of_the_keys_and_the_same_range() -> None:
    figure = draw_panels({"a $b$": [(1, 1.0)], "b" * 80: [(10, 2.0), (20, 3.0)], "c": [(5, 0.0)]}, "round", "Title")
    assert [axes.get_title("left") for axes in figure.axes] == ["a $b$", "…" + "b" * 35, "c"]
    assert [axes.get_title("right") for axes in figure.axes] == ["1", "3", "0"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "round", "round"]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    figure.savefig(BytesIO())  # dollars are no formulas


@pytest.mark.parametrize(("panels", "rounds"), [(1, 1), (2, 1000), (20, 3)])
def test_pictures_grow_with_panels_and_not_with_rounds(tmp_path: Path, panels: int, rounds: int) -> None:
    figure = draw_panels({f"m{n}": [(key, float(key * n)) for key in range(rounds)] for n in range(panels)}, "round")
    assert len(figure.axes) == panels
    width, height = figure.get_size_inches()
    assert width <= 16
    assert height == pytest.approx(0.6 + 2.6 * {1: 1, 2: 1, 20: 5}[panels])


@pytest.mark.parametrize("path", ["m.jpg", "m", ["m.png", "m.gif"]])
def test_a_path_of_another_kind_is_refused(path: object) -> None:
    with pytest.raises(InvalidValueError, match=r"a path that ends in \.pdf, \.png, \.svg"):
        PlotReleaseManager(path)


@pytest.mark.parametrize("path", ["", [], 3, None, "m\0.png", ["m.png", b"m.svg"]])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(InvalidValueError, match=r"the path of a file as file_path, found .*pass a string"):
        PlotReleaseManager(path)


@pytest.mark.parametrize("key", ["last", None, 1.5, True, 2**63])
def test_keys_are_whole_numbers(tmp_path: Path, key: object) -> None:
    with pytest.raises(InvalidValueError, match="Expected a whole number of 64 bits as a key"):
        asyncio.run(PlotReleaseManager(tmp_path / "m.png").release({"x": 1}, key))


def test_a_picture_of_something_else_is_not_written_over(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m{suffix}"
    for content in (STARTS[suffix], b"fedstack-rows:AAAA;", b"fedstack-rows:A;"):
        path.write_bytes(content)
        with pytest.raises(ProgramStateError, match="found another kind of file"):
            release(PlotReleaseManager(path), ({"x": 1}, 1))
        assert path.read_bytes() == content


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProgramStateError, match=r"Cannot (create|read) .*file"):
        release(PlotReleaseManager(tmp_path / "file" / "m.png"), ({"x": 1}, 1))


def test_after_a_failure_the_same_release_writes_the_file(tmp_path: Path) -> None:
    manager = PlotReleaseManager(tmp_path / "m.png")
    blocked = tmp_path / ".m.png.new"
    blocked.mkdir()  # whoever runs this may write to any folder, so permissions stop nobody
    with pytest.raises(ProgramStateError, match="Cannot write .*m.png"):
        release(manager, ({"x": 1}, 1))
    assert not (tmp_path / "m.png").exists()
    blocked.rmdir()
    release(manager, ({"x": 1}, 1))
    assert (tmp_path / "m.png").exists()


def test_it_is_a_release_manager_of_the_language(tmp_path: Path) -> None:
    one, other = PlotReleaseManager(tmp_path / "a.png"), PlotReleaseManager(tmp_path / "b.svg")
    asyncio.run(fl.program.GroupingReleaseManager([one, other]).release({"x": 1}, 1))
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "b.svg"}


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "fedstack.observe.figures")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "fedstack\[plots\]"'):
        PlotReleaseManager(tmp_path / "m.png")
