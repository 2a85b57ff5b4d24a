"""`fedstack demo --leaf jax`, and the example that it runs."""

import csv
import sys
from pathlib import Path

import pytest

from fedstack.__main__ import main


def learned(folder: Path) -> list[tuple[str, str]]:
    with (folder / "federated_averaging.csv").open(newline="", encoding="utf-8") as file:
        return [(row["accuracy"], row["loss"]) for row in csv.DictReader(file)]


def test_functions_in_jax_learn_the_same_here_and_on_workers(tmp_path: Path) -> None:
    small = ["demo", "--clients", "20", "--rounds", "4", "--leaf", "jax", "--out"]
    assert main([*small, str(tmp_path / "here")]) == 0
    found = learned(tmp_path / "here")
    assert float(found[-1][0]) > 0.6
    assert main([*small, str(tmp_path / "there"), "--workers", "2"]) == 0
    assert learned(tmp_path / "there") == found


def test_without_jax_the_demo_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert main(["demo", "--leaf", "jax", "--out", str(tmp_path)]) == 1
    assert '--leaf jax requires jax; install it with: pip install "fedstack[jax]"' in capsys.readouterr().err


@pytest.mark.long
def test_functions_in_jax_reach_93_percent_on_held_out_images(tmp_path: Path) -> None:
    assert main(["demo", "--leaf", "jax", "--rounds", "40", "--out", str(tmp_path)]) == 0
    assert float(learned(tmp_path)[-1][0]) >= 0.93
