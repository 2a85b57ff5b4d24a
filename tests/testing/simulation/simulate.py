"""Runs the simulated programs over many seeds, on all cores: `make simulate SEEDS=100000`."""

import argparse
import concurrent.futures
import functools
import itertools
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from data_programs import fatal_passes, rough_passes
from elastic_programs import elastic_rounds, ending_rounds, surviving_rounds
from programs import PROGRAMS, rough_run

from fedstack.testing import SimulationError

_AT_ONCE = 10
RUNS = {
    **{name: functools.partial(rough_run, name) for name in PROGRAMS},
    "elastic_rounds": elastic_rounds,
    "surviving_rounds": surviving_rounds,
    "ending_rounds": ending_rounds,
    "passes": rough_passes,
    "passes_over_fatal_elements": fatal_passes,
}


def failures_of(name: str, seeds: Sequence[int]) -> list[str]:
    """Runs a program over seeds; returns what is wrong, and how to see it again."""
    logging.disable(logging.ERROR)
    found: list[str] = []
    for seed in seeds:
        try:
            RUNS[name](seed)
        except (SimulationError, AssertionError) as error:
            found.append(f"{name}, make simulate FIRST={seed} SEEDS=1:\n{error}")
    return found


def main() -> int:
    """Runs them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first")
    options = parser.parse_args()
    begin, failures, done = time.monotonic(), 0, 0
    seeds = range(options.first, options.first + options.seeds)
    work = ((name, seeds[start : start + _AT_ONCE]) for start in range(0, len(seeds), _AT_ONCE) for name in RUNS)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        # Bounded: a hundred thousand futures would take their time to make.
        while wave := list(itertools.islice(work, 100)):
            for found in pool.map(failures_of, *zip(*wave)):
                for failure in found:
                    print(failure, flush=True)
                failures += len(found)
            done += sum(len(part) for _, part in wave)
            print(f"{done} runs, {failures} failures, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
