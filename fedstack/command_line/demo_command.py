"""The subcommand `fedstack demo`."""

import sys
import time
from pathlib import Path

import click

from fedstack.command_line.command import SUCCESS, option, subcommand, whole_number


def run(clients: int, rounds: int, seed: int, workers: int, engine: str, out: Path) -> int:
    """Runs the demo: prints the table to standard output, and the rest to standard error and files."""
    begin = time.perf_counter()
    # Imported here because they are slow to import and need an extra.
    from fedstack.demo.picture import draw_curve
    from fedstack.demo.training import describe_clients, load_example, print_table, run_rounds, write_csv
    from fedstack.foundations.error_text import counted

    example = load_example()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"Expected a folder for --out, or the name of a new one, found a file in the path {out}; give another"
        ) from error
    except OSError as error:
        raise OSError(f"Cannot make the folder {out} for --out: {error.strerror}; give another") from error
    try:
        training, evaluation = example.load_clients(clients, seed)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except ModuleNotFoundError as error:
        raise ImportError(f'The demo needs {error.name}; install it with: pip install "fedstack[demo]"') from error
    print(f"{describe_clients(training)}.", file=sys.stderr)
    trained = run_rounds(example, training, evaluation, rounds, seed, workers, engine)
    csv_file, picture = out / "federated_averaging.csv", out / "federated_averaging.png"
    write_csv(trained, csv_file)
    draw_curve(trained, clients, picture)
    print_table(trained)
    print(
        f"Held-out accuracy {trained[-1].accuracy:.1%} after {counted(len(trained), 'round')}, "
        f"all in {time.perf_counter() - begin:.1f} s.\nWrote {picture} and {csv_file}.",
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
        option("--seed", "N", "same seed, same accuracies, to the bit", type=whole_number(0), default=0),
        option("--workers", "N", "worker processes for the clients; 0 for none", type=whole_number(0), default=0),
        click.Option(
            ["--engine"],
            type=click.Choice(["fedstack", "ray"]),
            help="engine that runs the workers; without --workers, Ray starts as many as fit",
            default="fedstack",
            show_default=True,
        ),
        option("--out", "FOLDER", "where the picture and the CSV file go", type=Path, default=Path("demo-out")),
    ],
)
