"""`fedstack demo`, and the example that it runs."""

import contextlib
import csv
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedstack.__main__ import main
from fedstack.demo.baselines import compare
from fedstack.demo.faults import FaultyRounds, Kill
from fedstack.demo.live_view import draw_clients, draw_curve
from fedstack.demo.report import describe_clients, print_table, write_csv
from fedstack.demo.training import Round, load_example, run_rounds

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "federated_averaging.py"


def rounds(number: int) -> list[Round]:
    return [Round(n, 1 - 1 / (n + 1), 1 / n, 0.5, 200.0) for n in range(1, number + 1)]


def read_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "federated_averaging.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def learned(folder: Path) -> list[tuple[str, str]]:
    return [(row["accuracy"], row["loss"]) for row in read_csv(folder)]


def small_run(folder: Path, seed: int, *more: str) -> list[tuple[str, str]]:
    assert main(["demo", "--clients", "20", "--rounds", "3", "--seed", str(seed), "--out", str(folder), *more]) == 0
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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Runs the demo; returns its folder and what it has written to standard output and standard error."""
    folder = tmp_path_factory.mktemp("small") / "new" / "folder"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        small_run(folder, seed=0)
    return folder, out.getvalue(), err.getvalue()


def test_the_table_goes_to_standard_output_and_the_rest_to_standard_error(small: tuple[Path, str, str]) -> None:
    folder, out, err = small
    lines = out.splitlines()
    assert lines[0].split() == ["round", "accuracy", "loss", "seconds", "clients/s"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3"]
    assert "Held-out accuracy" in err
    assert str(folder / "federated_averaging.png") in err
    assert re.search(
        r"^With all data in one place it is \d+\.\d%, and for a client alone \d+\.\d%\.$", err, re.MULTILINE
    )


def test_the_files_are_pictures_and_all_rounds_with_every_digit(small: tuple[Path, str, str]) -> None:
    folder, _, _ = small
    for suffix, magic in ((".png", b"\x89PNG\r\n"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        assert (folder / f"federated_averaging{suffix}").read_bytes().startswith(magic)
    for number, row in enumerate(read_csv(folder), start=1):
        assert int(row["number"]) == number
        assert float(row["accuracy"]) * 360 == pytest.approx(round(float(row["accuracy"]) * 360))
        assert repr(float(row["loss"])) == row["loss"]
        assert float(row["seconds"]) * float(row["clients_per_second"]) == pytest.approx(20)
        assert (row["failed"], row["seed"]) == ("0", "0")


@pytest.mark.slow
def test_a_killed_worker_and_failing_clients_cost_no_round_and_the_kill_no_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = small_run(tmp_path / "failing", 0, "--fail", "0.1")
    out, err = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines()] == ["failed", "2", "2", "2"]
    assert "In each round, 2 clients of 20 failed and were left out.\n" in err
    assert small_run(tmp_path / "killed", 0, "--fail", "0.1", "--kill") == failing
    err = capsys.readouterr().err
    said = re.search(
        r"^Round 2: worker (\d) \(process \d+\) was killed while it had .* on worker (\d), .*$", err, re.MULTILINE
    )
    assert said is not None, err
    assert {said[1], said[2]} == {"0", "1"}
    assert said[0].endswith(" and the round went on. The model has the same bits as without the kill.")


@pytest.mark.long
def test_each_seed_has_the_numbers_of_a_run_of_its_own(tmp_path: Path) -> None:
    both = small_run(tmp_path / "both", 4, "--seeds", "2")
    assert both == small_run(tmp_path / "first", 4) + small_run(tmp_path / "second", 5)
    assert [row["seed"] for row in read_csv(tmp_path / "both")] == ["4"] * 3 + ["5"] * 3


def test_other_clients_fail_in_each_round_but_the_same_ones_with_the_same_seed() -> None:
    example = load_example()
    clients = example.load_clients(10, 0)
    found: list[list[object]] = []
    for seed in (0, 0, 1):
        rounds = FaultyRounds(example.train_round, 10, seed, share=0.2)
        failed: list[object] = []
        run_rounds(example, *clients, 1, seed, faults=rounds)
        failed.append(rounds.failed)
        run_rounds(example, *clients, 1, seed, faults=rounds)
        failed.append(rounds.failed)
        assert len(rounds.failed) == 2
        assert failed[0] != failed[1]
        found.append(failed)
    assert found[0] == found[1] != found[2]


def test_a_client_with_all_kinds_of_digits_is_judged_by_all_held_out_images() -> None:
    example = load_example()
    clients = example.load_clients(1, 0)
    rounds = FaultyRounds(example.train_round, 1, 0)
    [only] = run_rounds(example, *clients, 1, 0, faults=rounds)
    compared = compare(example, rounds.first, rounds.last, *clients, 1, 0)
    assert compared.shared.tolist() == [only.accuracy]
    assert compared.alone.tolist() == [compared.alone_on_all]
    assert compared.one_place > 0.9


def test_a_model_of_all_data_in_one_place_is_trained_to_its_end() -> None:
    example = load_example()
    clients = example.load_clients(30, 0)
    rounds = FaultyRounds(example.train_round, 30, 0)
    run_rounds(example, *clients, 1, 0, faults=rounds)
    assert compare(example, rounds.first, rounds.last, *clients, 100, 0).one_place > 0.973  # the shared one has 0.972


def test_a_curve_in_a_terminal_rises_from_the_left_and_leaves_room_for_what_comes() -> None:
    *lines, axis = [line.replace("[cyan]", "").replace("[/]", "") for line in draw_curve([0.0, 1.0], 3)]
    assert lines[0].startswith("  100% │")
    assert len({len(line) for line in (*lines, axis)}) == 1
    drawn = [[place for place, cell in enumerate(line[8:]) if cell != "\u2800"] for line in lines]
    assert drawn[-1][0] == 0  # the first value is at the left, at the bottom
    assert drawn[0][-1] == max(map(max, drawn)) == 29  # the second at the top, half-way
    assert list(draw_curve([0.5], 1))


def test_a_terminal_shows_who_failed_and_who_ran_again() -> None:
    kill = Kill(round=7, worker=0, pid=1, lost=[1, 2], by=[1], same_bits=True)
    first, *rest = draw_clients(5, [2, 3], kill)
    for colour in ("red", "yellow", "dim"):
        first = first.replace(f"[{colour}]", "")
    assert first.replace("[/]", "") == "clients ·↻✗✗·"
    assert "2 clients failed in this round" in rest[0]
    assert "worker 0 was killed in round 7; 2 clients ran again on worker 1" in rest[1]
    assert len(list(draw_clients(10_000, [2], None))) == 1  # too many for a character each


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
    [
        ("--clients", "0"),
        ("--clients", "1438"),
        ("--rounds", "0"),
        ("--rounds", "many"),
        ("--seed", "-1"),
        ("--fail", "1"),
        ("--fail", "some"),
        ("--engine=ray", "--kill"),
    ],
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
