"""What type checkers see in the code of a user, and in that of the pages, beside an installed wheel."""

import inspect
import json
import os
import re
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import federated_language as fl
import pytest
from hatchling.builders.wheel import WheelBuilder
from test_readme import BLOCKS

ROOT = Path(__file__).resolve().parents[2]
USER = Path(__file__).with_name("typed_user.py")
STUBS = "federated_language-stubs"
# Without the path to this checkout, in place of which the wheel is to be found.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

# Of packages that are not ours: what has no types there is no mistake of the pages.
UNTYPED = ["--disable-error-code", "import-untyped", "--disable-error-code", "import-not-found"]

# The first run of a checker reads all packages, which takes minutes on a busy machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class Found(NamedTuple):
    """An error that a checker reports."""

    file: str
    line: int
    message: str


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    return Path(next(iter(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel in it, and all other packages of this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=os.name != "nt")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    command = [python, "-c", "import site; print(site.getsitepackages()[-1])"]
    packages = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout.strip()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (Path(packages) / "others.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    return python


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's code, and a file for each page but the one with mistakes."""
    folder = tmp_path_factory.mktemp("code")
    (folder / USER.name).write_text(USER.read_text(encoding="utf-8"), encoding="utf-8")
    for page in BLOCKS.keys() - {"docs/troubleshooting.md"}:
        source = "\n".join(block.source for block in BLOCKS[page])
        (folder / f"{Path(page).stem}_page.py").write_text(source, encoding="utf-8")
    return folder


def of_pyright(python: Path, code: Path) -> list[Found]:
    command = [sys.executable, "-m", "pyright", "--pythonpath", python, "--outputjson", "."]
    done = subprocess.run(command, cwd=code, env=ENVIRONMENT, capture_output=True, text=True)
    return [
        Found(Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["message"])
        for found in json.loads(done.stdout)["generalDiagnostics"]
        if found["severity"] == "error"
    ]


def of_mypy(python: Path, code: Path) -> list[Found]:
    command = [sys.executable, "-m", "mypy", "--python-executable", python, "--check-untyped-defs", *UNTYPED]
    command += ["--cache-dir", os.devnull, "."]  # nothing is checked twice
    done = subprocess.run(command, cwd=code, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stdout.startswith(("Success", "Found")) or "\nFound" in done.stdout, done.stdout + done.stderr
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return [Found(Path(file).name, int(line), message) for file, line, message in found]


@pytest.mark.parametrize("checker", [of_pyright, of_mypy])
def test_a_checker_finds_the_mistakes_in_the_code_of_a_user_and_no_others(checker, python: Path, code: Path) -> None:
    lines = enumerate(USER.read_text(encoding="utf-8").splitlines(), start=1)
    expected = {(USER.name, number) for number, line in lines if "  # error" in line}
    found = checker(python, code)
    assert [one for one in found if one[:2] not in expected] == []
    assert {one[:2] for one in found} == expected


def test_the_wheel_has_the_package_and_the_stubs_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read(f"{STUBS}/py.typed") == b"partial\n"
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"fedstack", STUBS}
    stubs = {name.partition("/")[2] for name in names if name.startswith(STUBS)}
    folder = ROOT / "typings" / STUBS
    assert stubs == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert "fedstack/py.typed" in names


def test_the_stubs_have_every_name_of_the_language() -> None:
    text = (ROOT / "typings" / STUBS / "__init__.pyi").read_text(encoding="utf-8")
    # Other modules are attributes of the language only because something imports them.
    modules = {fl.framework, fl.program}
    public = [name for name, value in vars(fl).items() if not inspect.ismodule(value) or value in modules]
    assert [name for name in public if not name.startswith("_") and not re.search(rf"\b{name}\b", text)] == []
