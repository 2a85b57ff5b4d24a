"""The subcommand `fedstack demo`."""

import argparse
import sys
import time
from pathlib import Path

from fedstack.command_line.command import SUCCESS, UsageError, whole_number

NAME = "demo"
SUMMARY = "Train a model on handwritten digits by federated averaging, and draw how it learns."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the demo."""
    parser.add_argument("--clients", type=whole_number(1), default=100, metavar="N", help="number of clients")
    parser.add_argument("--rounds", type=whole_number(1), default=100, metavar="N", help="number of rounds")
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help="same seed, same accuracies, to the bit"
    )
    parser.add_argument(
        "--workers", type=whole_number(0), default=0, metavar="N", help="worker processes for the clients; 0 for none"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="FOLDER", help="where the picture and the CSV file go"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the demo: the table goes to standard output, the rest to standard error and into files."""
    begin = time.perf_counter()
    # Imported here because they are slow to import and need an extra.
    from fedstack.demo.picture import draw_curve
    from fedstack.demo.report import print_table, write_csv
    from fedstack.demo.training import counted, describe_clients, load_example, run_rounds

    example = load_example()
    folder: Path = options.out
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"Expected a folder for --out, or the name of a new one, found a file on the way to {folder}; give another"
        ) from error
    try:
        training, evaluation = example.load_clients(options.clients, options.seed)
    except ValueError as error:
        raise UsageError(str(error)) from error
    print(f"{describe_clients(training)}.", file=sys.stderr)
    rounds = run_rounds(example, training, evaluation, options.rounds, options.seed, options.workers)
    csv_file, picture = folder / "federated_averaging.csv", folder / "federated_averaging.png"
    write_csv(rounds, csv_file)
    draw_curve(rounds, options.clients, picture)
    print_table(rounds)
    print(
        f"Held-out accuracy {rounds[-1].accuracy:.1%} after {counted(len(rounds), 'round')}, "
        f"all in {time.perf_counter() - begin:.1f} s.\nWrote {picture} and {csv_file}.",
        file=sys.stderr,
    )
    return SUCCESS
