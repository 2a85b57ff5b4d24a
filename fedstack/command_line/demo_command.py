"""The subcommand `fedstack demo`, which trains a model by federated averaging."""

import contextlib
import sys
import time
from pathlib import Path

import click

from fedstack.command_line.command import FAILURE, SUCCESS, option, subcommand, whole_number

_WORKERS_TO_KILL = 2


def _share(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (number := float(text)) < 1:
            return number
    raise click.BadParameter(f"expected a share from 0 to less than 1, found {text!r}")


def run(
    clients: int,
    rounds: int,
    seed: int,
    seeds: int,
    workers: int,
    engine: str,
    leaf: str,
    fail: float,
    kill: bool,
    out: Path,
) -> int:
    """Runs the demo and writes the files. Prints the table to standard output, and other text to standard error."""
    begin = time.perf_counter()
    # Imported here because these modules are slow to import and require an extra.
    from fedstack.demo.baselines import compare
    from fedstack.demo.faults import FaultyRounds
    from fedstack.demo.picture import draw_figure, save_figure
    from fedstack.demo.report import describe_clients, last_lines, print_table, write_csv
    from fedstack.demo.training import load_example, run_rounds

    if kill and engine != "fedstack":
        raise click.UsageError(
            f"expected --kill without --engine {engine}, since it kills a worker process of fedstack"
        )
    try:
        example = load_example(leaf)
    except ModuleNotFoundError as error:
        raise ImportError(
            f'--leaf {leaf} requires {error.name}; install it with: pip install "fedstack[jax]"'
        ) from error
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"Expected --out to be a folder or a new path, found a file at or above {out}; choose another path"
        ) from error
    except OSError as error:
        raise OSError(f"Cannot create the folder {out} for --out: {error.strerror}; choose another path") from error
    try:
        data = [example.load_clients(clients, number) for number in range(seed, seed + seeds)]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except ModuleNotFoundError as error:
        raise ImportError(f'The demo requires {error.name}; install it with: pip install "fedstack[demo]"') from error
    training, evaluation = data[0]
    print(f"{describe_clients(training)}.", file=sys.stderr)
    # The worker is killed half-way through the first run.
    kill_in = (rounds + 1) // 2 if kill else 0
    first = FaultyRounds(example.train_round, clients, seed, fail, kill_in)
    workers = workers or (_WORKERS_TO_KILL if kill else 0)
    runs = [run_rounds(example, training, evaluation, rounds, seed, workers, engine, first)]
    for number, (images, held_out) in enumerate(data[1:], start=seed + 1):
        faults = FaultyRounds(example.train_round, clients, number, fail)
        runs.append(run_rounds(example, images, held_out, rounds, number, workers, engine, faults))
    compared = compare(load_example(), first.first, first.last, training, evaluation, rounds, seed)
    csv_file = out / "federated_averaging.csv"
    write_csv([one for run in runs for one in run], csv_file)
    picture, *others = save_figure(
        draw_figure(runs, compared, first.kill), out / "federated_averaging", f"fedstack demo, seed {seed}"
    )
    print_table(runs[0])
    for line in last_lines(runs, compared, first.kill, time.perf_counter() - begin):
        print(line, file=sys.stderr)
    also = " and ".join(path.suffix for path in others)
    print(f"Wrote {picture} (also as {also}) and {csv_file}.", file=sys.stderr)
    return SUCCESS if first.kill is None or first.kill.same_bits else FAILURE


COMMAND = subcommand(
    "demo",
    run,
    "Train a model on handwritten digits by federated averaging, and plot its progress.",
    [
        option("--clients", "N", "number of clients", type=whole_number(1), default=100),
        option("--rounds", "N", "number of rounds", type=whole_number(1), default=100),
        option(
            "--seed",
            "N",
            "seed of the demo; runs with the same seed have bit-identical accuracies",
            type=whole_number(0),
            default=0,
        ),
        option("--seeds", "N", "number of seeds to run, for a band in the picture", type=whole_number(1), default=1),
        option(
            "--workers",
            "N",
            "number of worker processes that run clients; 0 runs clients in this process",
            type=whole_number(0),
            default=0,
        ),
        click.Option(
            ["--engine"],
            type=click.Choice(["fedstack", "ray"]),
            help="engine that runs the workers; without --workers, Ray starts as many as the cluster has room for",
            default="fedstack",
            show_default=True,
        ),
        click.Option(
            ["--leaf"],
            type=click.Choice(["python", "jax"]),
            help="what the functions of clients are written in; JAX compiles them",
            default="python",
            show_default=True,
        ),
        option(
            "--fail", "SHARE", "share of the clients that fail in each round, such as 0.1", type=_share, default=0.0
        ),
        click.Option(
            ["--kill"],
            is_flag=True,
            help="kill a worker process half-way, and check that no bit changes; starts two workers if there are none",
        ),
        option("--out", "FOLDER", "folder for the pictures and the CSV file", type=Path, default=Path("demo-out")),
    ],
)
