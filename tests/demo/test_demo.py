"""`fedstack demo`, and the example that it runs."""

import csv
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedstack.__main__ import main
from fedstack.demo.training import Round, describe_clients, load_example, print_table, run_rounds, write_csv

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "federated_averaging.py"


def rounds(number: int) -> list[Round]:
    return [Round(n, 1 - 1 / (n + 1), 1 / n, 0.5, 200.0) for n in range(1, number + 1)]


def read_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "federated_averaging.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def learned(folder: Path) -> list[tuple[str, str]]:
    return [(row["accuracy"], row["loss"]) for row in read_csv(folder)]


def small_run(folder: Path, seed: int) -> list[tuple[str, str]]:
    assert main(["demo", "--clients", "20", "--rounds", "3", "--seed", str(seed), "--out", str(folder)]) == 0
    return learned(folder)


@pytest.mark.long
def test_the_same_seed_gives_the_same_numbers_to_the_bit_and_another_gives_others(tmp_path: Path) -> None:
    first = small_run(tmp_path / "first", seed=5)
    assert len(first) == 3
    assert small_run(tmp_path / "again", seed=5) == first
    assert small_run(tmp_path / "other", seed=6) != first


@pytest.mark.long
def test_a_hundred_clients_on_several_threads_give_the_same_numbers_each_time() -> None:
    example = load_example()
    runs = [run_rounds(example, *example.load_clients(100, 0), 3, 0) for _ in range(5)]
    assert len({tuple((r.accuracy, r.loss) for r in run) for run in runs}) == 1


def test_the_table_goes_to_standard_output_and_the_rest_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_run(tmp_path, seed=0)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["round", "accuracy", "loss", "seconds", "clients/s"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3"]
    assert "Held-out accuracy" in err
    assert str(tmp_path / "federated_averaging.png") in err


def test_the_files_are_a_picture_and_all_rounds_with_every_digit(tmp_path: Path) -> None:
    small_run(tmp_path / "new" / "folder", seed=0)
    assert (tmp_path / "new" / "folder" / "federated_averaging.png").read_bytes().startswith(b"\x89PNG\r\n")
    for number, row in enumerate(read_csv(tmp_path / "new" / "folder"), start=1):
        assert int(row["number"]) == number
        assert float(row["accuracy"]) * 360 == pytest.approx(round(float(row["accuracy"]) * 360))
        assert repr(float(row["loss"])) == row["loss"]
        assert float(row["seconds"]) * float(row["clients_per_second"]) == pytest.approx(20)


@pytest.mark.parametrize("number", [1, 2, 10, 11, 99, 1000])
def test_the_table_has_the_first_round_and_the_last_and_few_between(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(rounds(number))
    shown = [int(line.split()[0]) for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown[0] == 1
    assert shown[-1] == number
    assert len(shown) <= 12
    assert shown == sorted(set(shown))


def test_a_terminal_gets_a_drawn_table(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    print_table(rounds(3))
    assert "────" in terminal.getvalue()


def test_a_terminal_without_rich_gets_a_plain_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.delitem(sys.modules, "fedstack.contexts.rich_display", raising=False)
    monkeypatch.setitem(sys.modules, "rich", None)
    print_table(rounds(1))
    assert (
        terminal.getvalue()
        == "round  accuracy    loss  seconds  clients/s\n    1    0.5000  1.0000    0.500        200\n"
    )


def test_clients_of_one_size_are_described_by_one_number() -> None:
    def client(images: int) -> dict[str, np.ndarray]:
        return {"pixels": np.zeros((images, 64)), "digit": np.zeros(images, np.int32)}

    assert describe_clients([client(1437)]).startswith("1 client with 1437 handwritten digits each, of 1.0 kinds")
    assert describe_clients([client(3), client(5)]).startswith("2 clients with 3 to 5 handwritten digits each, of")


def test_a_csv_file_can_be_written_over(tmp_path: Path) -> None:
    write_csv(rounds(5), tmp_path / "federated_averaging.csv")
    write_csv(rounds(2), tmp_path / "federated_averaging.csv")
    assert len(read_csv(tmp_path)) == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [("--clients", "0"), ("--clients", "1438"), ("--rounds", "0"), ("--seed", "-1"), ("--rounds", "many")],
)
def test_an_option_out_of_range_is_wrong_usage(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path), option, value]) == 2
    assert "expected" in capsys.readouterr().err


def test_an_output_folder_that_is_a_file_is_an_error_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/x"):
        assert main(["demo", "--out", str(tmp_path / name)]) == 1
        assert f"Expected --out to be a folder or a new path, found a file at or above {tmp_path}" in (
            capsys.readouterr().err
        )


def test_an_output_folder_that_cannot_be_made_is_an_error_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ("x" * 300)
    assert main(["demo", "--out", str(folder)]) == 1
    reason = "File name too long; choose another path"
    expected = f"fedstack demo: error: Cannot create the folder {folder} for --out: {reason}"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("package", ["sklearn", "matplotlib"])
def test_without_its_extra_the_demo_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for module in ("fedstack.demo.picture", "fedstack.observe.figures"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo", "--out", str(tmp_path)]) == 1
    assert 'pip install "fedstack[demo]"' in capsys.readouterr().err


@pytest.mark.parametrize("num_clients", [1, 100, 1437])
def test_every_image_is_dealt_out_once_and_nobody_goes_empty(num_clients: int) -> None:
    training, evaluation = load_example().load_clients(num_clients, 3)
    sizes = [len(client["digit"]) for client in training]
    assert len(sizes) == num_clients
    assert min(sizes) >= 1
    images = [client["image"] for client in training] + [batch["image"] for held in evaluation for batch in held]
    assert len(np.unique(np.concatenate(images), axis=0)) == 1797


def test_clients_hold_few_kinds_of_digits_each() -> None:
    training, _ = load_example().load_clients(100, 0)
    kinds = [len(np.unique(client["digit"])) for client in training]
    assert np.mean(kinds) < 5  # of 10; dealt out evenly, it would be more than 7
    assert "of 4.3 kinds on average" in describe_clients(training)


def test_a_wheel_has_the_examples_where_the_demo_looks_for_them() -> None:
    for example in (EXAMPLE, EXAMPLE.with_name("federated_averaging_jax.py")):
        entry = f'"{example.relative_to(ROOT).as_posix()}" = "fedstack/demo/examples/{example.name}"\n'
        assert entry in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    assert main(["demo", "--out", str(folder)]) == 0
    return folder


@pytest.mark.long
def test_the_demo_reaches_93_percent_on_held_out_images(default_run: Path) -> None:
    assert float(read_csv(default_run)[-1]["accuracy"]) >= 0.93


@pytest.mark.long
def test_the_example_alone_gives_the_numbers_of_the_demo(default_run: Path) -> None:
    with subprocess.Popen([sys.executable, "-u", EXAMPLE], stdout=subprocess.PIPE, text=True) as example:
        try:
            assert example.stdout is not None
            said = [example.stdout.readline() for _ in range(3)]
        finally:
            example.kill()  # what follows from the same numbers is the same
    assert said == [
        f"round {row['number']}: accuracy {float(row['accuracy']):.4f}, loss {float(row['loss']):.4f}\n"
        for row in read_csv(default_run)[9:30:10]
    ]
