"""The subcommand `fedstack demo`, which trains a model by federated averaging."""

import sys
import time
from pathlib import Path

import click

from fedstack.command_line.command import SUCCESS, option, subcommand, whole_number


def run(clients: int, rounds: int, seed: int, workers: int, engine: str, leaf: str, out: Path) -> int:
    """Runs the demo and writes the files. Prints the table to standard output, and other text to standard error."""
    begin = time.perf_counter()
    # Imported here because these modules are slow to import and require an extra.
    from fedstack.demo.picture import draw_curve
    from fedstack.demo.training import describe_clients, load_example, print_table, run_rounds, write_csv
    from fedstack.foundations.error_text import counted

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
        training, evaluation = example.load_clients(clients, seed)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except ModuleNotFoundError as error:
        raise ImportError(f'The demo requires {error.name}; install it with: pip install "fedstack[demo]"') from error
    print(f"{describe_clients(training)}.", file=sys.stderr)
    trained = run_rounds(example, training, evaluation, rounds, seed, workers, engine)
    csv_file, picture = out / "federated_averaging.csv", out / "federated_averaging.png"
    write_csv(trained, csv_file)
    draw_curve(trained, clients, picture)
    print_table(trained)
    print(
        f"Held-out accuracy {trained[-1].accuracy:.1%} after {counted(len(trained), 'round')}, "
        f"in {time.perf_counter() - begin:.1f} s in total.\nWrote {picture} and {csv_file}.",
        file=sys.stderr,
    )
    return SUCCESS


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
        option("--out", "FOLDER", "folder for the picture and the CSV file", type=Path, default=Path("demo-out")),
    ],
)
