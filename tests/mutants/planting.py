"""Runs what is to find a bug, in a process of its own in which one module has that bug."""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType

import attrs
from machines import Seeds, Tests
from mutations import ROOT

SIMULATIONS = ROOT / "tests" / "testing" / "simulation"
# What takes long to import, and has none of the modules: imported once for all mutants of one.
_COMMON = ("numpy", "federated_language", "grpc", "pytest", "pytest_asyncio", "hypothesis.stateful", "sqlite3")
# As much of the package as comes before the module.
_PACKAGE = ("fedstack", "fedstack.testing")
_POLL_SECONDS = 0.05


@attrs.frozen
class Budget:
    """What finding one mutant may cost: seconds of a core, and of a clock on the wall."""

    cpu_seconds: int = 90
    wall_seconds: float = 600.0


@attrs.frozen
class Finding:
    """What became of a mutant.

    Attributes:
      by: The test or the seed that found it; empty if none has.
      cpu_seconds: What that cost.
    """

    by: str
    cpu_seconds: float


class _Forks(importlib.machinery.SourceFileLoader):
    """Loads a module once for each of several sources, each time in another child of this process."""

    def __init__(
        self, name: str, path: str, sources: Sequence[str], done: Callable[[int, Finding], None], budget: Budget
    ):
        super().__init__(name, path)
        self._sources = sources
        self._done = done
        self._budget = budget
        self.report: Path | None = None

    def get_code(self, fullname: str) -> CodeType:
        for index, source in enumerate(self._sources):
            folder = Path(tempfile.mkdtemp())
            child = os.fork()
            if not child:
                self.report = folder / "report"
                _begin_child(folder, self._budget)
                return compile(source, self.path, "exec", dont_inherit=True)
            self._done(index, _ended(child, folder / "report", self._budget))
            shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        os._exit(0)

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None


def find(
    path: str,
    sources: Sequence[str],
    finders: Sequence[Tests | Seeds],
    done: Callable[[int, Finding], None],
    budget: Budget,
) -> None:
    """Looks for the bug in each source of a module; does not return.

    Args:
      path: The file of the module, from the root of the repository.
      sources: What the module is to have in place of its own source.
      finders: What may find it, until one does.
      done: Gets the index of each source and what became of it.
      budget: What each may cost.
    """
    for name in _COMMON:
        importlib.import_module(name)
    sys.path[:0] = [str(SIMULATIONS), str(ROOT)]
    name = path.removesuffix(".py").replace("/", ".")
    loader = _Forks(name, str(ROOT / path), sources, done, budget)
    sys.meta_path.insert(0, loader)  # type: ignore[arg-type]
    status = 1
    try:
        for module in (*_PACKAGE, name):
            importlib.import_module(module)
        by = _found_by(finders)
        _write(loader, by)
        status = 0
    except BaseException as error:
        if loader.report is None:
            raise
        _write(loader, f"import: {error!r}")
        status = 0
    finally:
        if loader.report is not None:
            os._exit(status)


def _write(loader: _Forks, by: str) -> None:
    if loader.report is not None:
        loader.report.write_text(by)


def _begin_child(folder: Path, budget: Budget) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (budget.cpu_seconds, budget.cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    output = os.open(folder / "output", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _ended(child: int, report: Path, budget: Budget) -> Finding:
    """Waits for the end of a child."""
    until, by = time.monotonic() + budget.wall_seconds, ""
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            by = f"more than {budget.wall_seconds:g} s"
            os.killpg(child, signal.SIGKILL)
            until = float("inf")
        time.sleep(_POLL_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has started
    if report.exists():
        by = report.read_text()
    elif not by:
        by = f"ended by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "ended early"
    return Finding(by, usage.ru_utime + usage.ru_stime)


def _found_by(finders: Sequence[Tests | Seeds]) -> str:
    for finder in finders:
        by = _failed_test(finder.names) if isinstance(finder, Tests) else _failed_seed(finder)
        if by:
            return by
    return ""


class _FirstFailure:
    """A plugin of pytest that knows the first test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: object) -> None:
        self._note(report)

    def pytest_collectreport(self, report: object) -> None:
        self._note(report)

    def _note(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.name:
            self.name = str(getattr(report, "nodeid", ""))


def _failed_test(names: Sequence[str]) -> str:
    import pytest
    from hypothesis import Phase, settings

    # What fails is not made smaller; the same examples each time.
    settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
    )
    first = _FirstFailure()
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", "--timeout=0"]
    options += [
        "-o",
        "fedstack_leak_grace_seconds=3",  # what a bug leaves open stays open
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        f"--rootdir={ROOT}",
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    status = pytest.main([*options, *(str(ROOT / name) for name in names)], plugins=[first])
    return "" if not status else first.name or f"pytest: {status!r}"


def _failed_seed(finder: Seeds) -> str:
    from simulate import RUNS

    logging.disable(logging.ERROR)
    try:
        for seed in range(finder.count):
            try:
                RUNS[finder.program](seed)
            except BaseException as error:
                return f"{finder.program}, seed {seed}: {str(error).splitlines()[:1]}"
    finally:
        logging.disable(logging.NOTSET)
    return ""


def main() -> None:
    """Does the work that stands in a file, and prints a line of JSON for each source."""
    work = json.loads(Path(sys.argv[1]).read_text())
    finders = [Tests(tuple(one["names"])) if "names" in one else Seeds(**one) for one in work["finders"]]
    out = os.fdopen(os.dup(1), "w")

    def done(index: int, finding: Finding) -> None:
        print(json.dumps([index, attrs.asdict(finding)]), file=out, flush=True)

    find(work["path"], work["sources"], finders, done, Budget(**work["budget"]))


def look(
    path: str, sources: Sequence[str], finders: Sequence[Tests | Seeds], budget: Budget
) -> Iterator[tuple[int, Finding]]:
    """Looks for the bug in each source of a module, in processes of their own; yields the index of each that is done.

    Args:
      path: The file of the module, from the root of the repository.
      sources: What the module is to have in place of its own source.
      finders: What may find it, until one does.
      budget: What each may cost.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = {"path": path, "sources": sources, "finders": finders, "budget": budget}
        file = Path(folder) / "work"
        file.write_text(json.dumps(work, default=attrs.asdict))
        command = [sys.executable, __file__, str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("[") and line.endswith("}]\n"):
                    index, finding = json.loads(line)
                    yield index, Finding(**finding)


if __name__ == "__main__":
    main()
