"""Values in TensorBoard, read by TensorBoard itself: what each kind becomes, and rounds that are released again."""

import asyncio
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.program import FileProgramStateManager, TensorBoardReleaseManager


def release(manager: TensorBoardReleaseManager, *rounds: tuple[object, int]) -> None:
    for value, key in rounds:
        asyncio.run(manager.release(value, key))


class Shown:
    """What TensorBoard has read from a folder."""

    def __init__(self, folder: Path) -> None:
        self._events = EventAccumulator(str(folder))
        self._events.Reload()

    @property
    def names(self) -> dict[str, str]:
        tags = self._events.Tags()["tensors"]
        return {tag: self._events.SummaryMetadata(tag).plugin_data.plugin_name for tag in tags}

    def __getitem__(self, name: str) -> list[tuple[int, object]]:
        return [(event.step, make_ndarray(event.tensor_proto).tolist()) for event in self._events.Tensors(name)]


def test_numbers_are_scalars_arrays_histograms_and_strings_texts(tmp_path: Path) -> None:
    value = {
        "train": {"loss": np.float64(0.5), "n": 3},
        "weights": np.arange(6.0).reshape(2, 3),
        "text": "hi",
        "x": None,
    }
    release(TensorBoardReleaseManager(tmp_path / "new" / "runs"), (value, 1), ({"train": {"loss": 0.25, "n": 4}}, 2))
    shown = Shown(tmp_path / "new" / "runs")
    assert shown.names == {"text": "text", "train/loss": "scalars", "train/n": "scalars", "weights": "histograms"}
    assert shown["train/loss"] == [(1, 0.5), (2, 0.25)]
    assert shown["train/n"] == [(1, 3), (2, 4)]
    assert shown["text"] == [(1, b"hi")]
    ((step, buckets),) = shown["weights"]
    assert step == 1
    assert (buckets[0][0], buckets[-1][1], sum(count for _, _, count in buckets)) == (0, 5, 6)


def test_values_that_are_not_finite_or_too_large_are_shown(tmp_path: Path) -> None:
    value = {
        "h": np.array([1, np.nan, np.inf, 3]),
        "empty": np.zeros(0),
        "nan": math.nan,
        "big": 10**400,
        "low": -1e300,
    }
    release(TensorBoardReleaseManager(tmp_path), (value, 1))
    shown = Shown(tmp_path)
    assert math.isnan(shown["nan"][0][1])
    assert [shown["big"], shown["low"]] == [[(1, math.inf)], [(1, -math.inf)]]
    assert sum(count for _, _, count in shown["h"][0][1]) == 2
    assert sum(count for _, _, count in shown["empty"][0][1]) == 0


def test_a_single_value_is_named_value(tmp_path: Path) -> None:
    release(TensorBoardReleaseManager(tmp_path), (0.5, 1))
    assert Shown(tmp_path)["value"] == [(1, 0.5)]


@pytest.mark.parametrize("new_process", [False, True])
def test_a_round_that_is_released_again_is_drawn_once(tmp_path: Path, new_process: bool) -> None:
    first = TensorBoardReleaseManager(tmp_path)
    release(first, *(({"loss": key, "seldom": key}, key) for key in range(1, 6)))
    again = TensorBoardReleaseManager(tmp_path) if new_process else first
    release(again, ({"loss": 40.0}, 4), ({"loss": 50.0}, 5), ({"loss": 60.0}, 6))
    shown = Shown(tmp_path)
    assert shown["loss"] == [(1, 1), (2, 2), (3, 3), (4, 40), (5, 50), (6, 60)]
    assert shown["seldom"] == [(1, 1), (2, 2), (3, 3)]
    assert len(list(tmp_path.iterdir())) == 1 + new_process


def test_a_file_comes_after_those_of_a_clock_that_was_ahead(tmp_path: Path) -> None:
    release(TensorBoardReleaseManager(tmp_path), ({"loss": 1}, 1), ({"loss": 2}, 2))
    (old,) = tmp_path.iterdir()
    old.rename(tmp_path / "events.out.tfevents.9999999998.elsewhere.1")
    release(TensorBoardReleaseManager(tmp_path), ({"loss": 20}, 2))
    assert Shown(tmp_path)["loss"] == [(1, 1), (2, 20)]


def test_a_killed_run_that_is_resumed_shows_each_round_once(tmp_path: Path) -> None:
    states = FileProgramStateManager(tmp_path / "states")
    manager = TensorBoardReleaseManager(tmp_path / "board", state_manager=states)
    for key in (1, 2):
        release(manager, ({"loss": key}, key))
        asyncio.run(states.save(key, key))
    release(manager, ({"loss": 3}, 3))  # the process ends before it saves the third state
    states.close()
    assert Shown(tmp_path / "board")["loss"] == [(1, 1), (2, 2)]

    later = FileProgramStateManager(tmp_path / "states")
    resumed = TensorBoardReleaseManager(tmp_path / "board", state_manager=later)
    assert asyncio.run(later.load_latest(0)) == (2, 2)
    assert Shown(tmp_path / "board")["loss"] == [(1, 1), (2, 2)]
    release(resumed, ({"loss": 3}, 3))
    asyncio.run(later.save(3, 3))
    assert Shown(tmp_path / "board")["loss"] == [(1, 1), (2, 2), (3, 3)]


def test_an_event_that_a_kill_has_cut_off_hides_nothing(tmp_path: Path) -> None:
    release(TensorBoardReleaseManager(tmp_path), ({"loss": 1}, 1), ({"loss": 2}, 2))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    release(TensorBoardReleaseManager(tmp_path), ({"loss": 2}, 2))
    assert Shown(tmp_path)["loss"] == [(1, 1), (2, 2)]


def test_a_folder_that_cannot_be_written_is_named_and_a_later_release_uses_it(tmp_path: Path) -> None:
    (tmp_path / "board").write_text("a file")
    manager = TensorBoardReleaseManager(tmp_path / "board")
    with pytest.raises(ProgramStateError, match=r"Cannot write events to .*board: .*; free some space"):
        release(manager, ({"loss": 1}, 1))
    (tmp_path / "board").unlink()
    release(manager, ({"loss": 1}, 1))
    assert Shown(tmp_path / "board")["loss"] == [(1, 1)]


def test_a_file_that_is_gone_is_followed_by_another(tmp_path: Path) -> None:
    manager = TensorBoardReleaseManager(tmp_path / "board")
    release(manager, ({"loss": 1}, 1))
    (tmp_path / "board").rename(tmp_path / "moved")
    with pytest.raises(ProgramStateError, match="Cannot write events"):
        release(manager, ({"loss": 2}, 2))
    release(manager, ({"loss": 2}, 2))
    assert Shown(tmp_path / "board")["loss"] == [(2, 2)]


@pytest.mark.parametrize("key", [None, "last", 2**63])
def test_steps_are_whole_numbers(tmp_path: Path, key: object) -> None:
    with pytest.raises(InvalidValueError, match="Expected a whole number of 64 bits as a key"):
        asyncio.run(TensorBoardReleaseManager(tmp_path).release({"x": 1}, key))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_needed() -> None:
    with pytest.raises(InvalidValueError, match="Expected the path of a folder as summary_dir"):
        TensorBoardReleaseManager("")


def test_nothing_imports_tensorflow(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\nimport numpy as np\nfrom fedstack.program import TensorBoardReleaseManager\n"
        "sys.modules['tensorflow'] = None\n"
        "value = {'h': np.arange(3), 't': 'x', 's': 1.5}\n"
        "asyncio.run(TensorBoardReleaseManager(sys.argv[1]).release(value, 1))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=100)
    assert Shown(tmp_path).names.keys() == {"h", "t", "s"}


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "fedstack.program.releases.event_file", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=re.escape('pip install "fedstack[tensorboard]"')):
        TensorBoardReleaseManager(tmp_path)
