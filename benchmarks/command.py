"""Defines the command line of the benchmarks."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.harness import FULL, QUICK, Measurement
from benchmarks.workloads import WORKLOADS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs workloads, shows a table and writes JSON.

    Args:
      arguments: The words of the command line; by default those of this process.

    Returns:
      0: a limit that is missed shows in the table and is no failure of the benchmarks.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures fedstack against floors.")
    parser.add_argument(
        "--only", action="append", choices=[w.name for w in WORKLOADS], help="run this one; may be given again"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and shorter times")
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else FULL
    measurements: list[Measurement] = []
    print(report.heading(), flush=True)
    for workload in WORKLOADS:
        if options.only and workload.name not in options.only:
            continue
        print(f"{workload.name}: {workload.title}", flush=True)
        for measurement in workload.run(effort):
            measurements.append(measurement)
            print("  " + report.line(measurement), flush=True)
    asked = [m for m in measurements if m.used is not None]
    within = sum(m.used is not None and m.used <= 1 for m in asked)
    print(f"{within} of {len(asked)} within reach")
    print(f"wrote {_shown(report.write(measurements, options.json))}")
    return 0


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
