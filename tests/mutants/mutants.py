"""Plants bugs in what decides over time, and looks what finds them: `make mutants`."""

import argparse
import concurrent.futures
import json
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs
from machines import MACHINES, Seeds
from mutations import ROOT, Mutant, bare, drawn, mutants_of
from planting import Budget, Finding, look

HERE = Path(__file__).parent
EQUIVALENT = HERE / "equivalent.txt"
PLANTED = HERE / "planted.txt"
_AT_ONCE = 8


def equivalents(text: str) -> dict[str, str]:
    """Reads the list of mutants that change no behaviour; returns why, by their keys."""
    found: dict[str, str] = {}
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            path, _, function = lines[0].partition(" in ")
            before = "\n".join(line[2:] for line in lines if line.startswith("- "))
            after = "\n".join(line[2:] for line in lines if line.startswith("+ "))
            why = " ".join(line for line in lines[1:] if line[:2] not in ("- ", "+ "))
            if not why:
                raise ValueError(f"Expected an argument below {lines[0]}, {before!r}, found none")
            found[f"{path}\n{function}\n{before}\n{after}"] = why
    return found


def main() -> int:
    """Runs a campaign; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at the same time")
    parser.add_argument("--in", dest="within", default="", help="only those of paths with this in them")
    parser.add_argument("--again", type=Path, help="only those that the campaign with these results did not find")
    parser.add_argument("--results", type=Path, help="where to write what was found, a line of JSON each")
    parser.add_argument("--planted", action="store_true", help="instead: those that simulations have to find")
    options = parser.parse_args()
    if options.planted:
        return find_planted([bug for bug in planted_bugs(PLANTED.read_text()) if options.within in bug.path])
    every = [one for machine in MACHINES for path in machine.paths for one in mutants_of(path)]
    mutants = [one for one in drawn(every, options.count, options.seed) if options.within in one.path]
    why = equivalents(EQUIVALENT.read_text())
    if options.again is not None:
        found = dict(json.loads(line) for line in options.again.read_text().splitlines())
        mutants = [one for one in mutants if not found.get(one.key)]
    print(f"{len(mutants)} of {len(every)} mutants", flush=True)
    results = campaign([one for one in mutants if one.key not in why], options.jobs, Budget(), options.results)
    return report(mutants, results, why)


@attrs.frozen
class PlantedBug:
    """A bug that simulations have to find: what is wrong, the module and its source with the bug, and the program."""

    what: str
    path: str
    source: str
    finder: Seeds


def planted_bugs(text: str) -> list[PlantedBug]:
    """Reads the list of them."""
    found: list[PlantedBug] = []
    for block in text.split("\n\n")[1:]:
        path, what, *lines, by = block.strip().splitlines()
        before, after = ([line[2:] for line in lines if line.startswith(sign)] for sign in "-+")
        program, count = by.split()
        found.append(PlantedBug(what, path, with_bug(ROOT / path, before, after), Seeds(program, int(count))))
    return found


def find_planted(bugs: Sequence[PlantedBug]) -> int:
    """Looks whether simulations find these bugs; returns the exit status."""
    left = 0
    for bug in bugs:
        ((_, finding),) = look(bug.path, [bug.source], [bug.finder], Budget())
        left += not finding.by
        print(f"{bug.what}: {finding.by or 'NOT found'} ({finding.cpu_seconds:.1f} s of a core)", flush=True)
    return 1 if left else 0


def with_bug(file: Path, before: Sequence[str], after: Sequence[str]) -> str:
    """Returns the source of a file with other lines in place of some that it must have once; indented as those."""
    lines = file.read_text().splitlines()
    found = [
        index for index in range(len(lines)) if list(map(bare, lines[index : index + len(before)])) == list(before)
    ]
    if len(found) != 1:
        raise ValueError(f"Expected once in {file}: {before}, found it {len(found)} times; see planted.txt")
    first = lines[found[0]]
    indent = first[: len(first) - len(first.lstrip())]
    lines[found[0] : found[0] + len(before)] = [indent + line for line in after]
    return "\n".join(lines) + "\n"


def campaign(mutants: Sequence[Mutant], jobs: int, budget: Budget, kept: Path | None) -> dict[str, Finding]:
    """Looks for each mutant; returns by key what found it."""
    results: dict[str, Finding] = {}
    lock, begun = threading.Lock(), time.monotonic()
    parts: queue.SimpleQueue[list[Mutant]] = queue.SimpleQueue()
    for path in dict.fromkeys(one.path for one in mutants):
        some = [one for one in mutants if one.path == path]
        for start in range(0, len(some), _AT_ONCE):
            parts.put(some[start : start + _AT_ONCE])

    def work() -> None:
        while True:
            try:
                part = parts.get_nowait()
            except queue.Empty:
                return
            path = part[0].path
            (finders,) = (machine.finders for machine in MACHINES if path in machine.paths)
            for index, finding in look(path, [one.source for one in part], finders, budget):
                with lock:
                    results[part[index].key] = finding
                    if kept is not None:
                        with kept.open("a") as file:
                            print(json.dumps([part[index].key, finding.by]), file=file)
                    seconds = f"{len(results)}, {time.monotonic() - begun:.0f} s, {finding.cpu_seconds:.1f} s of a core"
                    if finding.by:
                        print(f"found ({seconds}): {part[index].path}:{part[index].line}: {finding.by}", flush=True)
                    else:
                        print(f"NOT found ({seconds}): {part[index].difference}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(work) for _ in range(jobs)]:
            future.result()
    return results


def report(mutants: Sequence[Mutant], results: dict[str, Finding], why: dict[str, str]) -> int:
    """Prints what became of the mutants; returns the exit status."""
    planted, found, same = Counter[str](), Counter[str](), Counter[str]()
    survivors: list[Mutant] = []
    for one in mutants:
        planted[one.path] += 1
        if one.key in why:
            same[one.path] += 1
        elif one.key in results and results[one.key].by:
            found[one.path] += 1
        else:
            survivors.append(one)
    for one in survivors:
        print(f"\n{one.difference}")
    print(f"\n{'':58}{'planted':>9}{'found':>9}{'equal':>9}{'left':>9}")
    rows = [(path, planted[path], found[path], same[path]) for path in sorted(planted)]
    rows.append(("all", planted.total(), found.total(), same.total()))
    for path, number, caught, equal in rows:
        print(f"{path:58}{number:9}{caught:9}{equal:9}{number - caught - equal:9}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
