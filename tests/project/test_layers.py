"""The architecture, read from the import statements of every module."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "fedstack"

# What each room of the package may import of the others. Files beside the rooms are rooms of their own.
ROOMS = {
    "_version": set[str](),
    "errors": set[str](),
    "proto": set[str](),
    "computations": {"proto", "errors"},
    "transport": {"proto", "errors", "computations", "_version"},
    "executors": {"proto", "errors", "computations", "transport"},
    "service": {"proto", "errors", "computations", "transport", "executors", "_version"},
}
EVERY_ROOM = set(ROOMS) | {"testing"}
# These may import everything, and only each other imports them.
FRONT_DOORS = {"__init__", "__main__", "testing", "demo"}

# Where packages from outside may be imported: anywhere, in some rooms, or in the files named.
ANYWHERE = {"attrs", "google", "numpy"}
IN_ROOMS = {
    "grpc": {"transport", "service"},
    "grpc_health": {"transport", "service"},
    "grpc_reflection": {"service"},
    "hypothesis": {"testing"},
    "pytest": {"testing"},
}
IN_FILES = {"federated_language": {"computations/types/language.py", "errors.py"}}
# Each in at most one file, wherever that is: what is optional, or can be replaced, has one door.
IN_ONE_FILE = {
    "cloudpickle",
    "cryptography",
    "flatbuffers",
    "jax",
    "jaxlib",
    "matplotlib",
    "ml_dtypes",
    "psutil",
    "rich",
    "sklearn",
    "threadpoolctl",
    "uvloop",
}
# None of these is needed to start: `import fedstack` and a local run of a NumPy function stay quick.
NOT_ON_IMPORT = {
    "cloudpickle",
    "cryptography",
    "grpc",
    "jax",
    "matplotlib",
    "rich",
    "scipy",
    "sklearn",
    "threadpoolctl",
}

MAX_LINES = 400


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(file: Path) -> set[str]:
    """Every module that a file names in an import, at its top or inside a function."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(file)}, line {node.lineno}: imports are absolute"
            # `from fedstack import errors` imports the module `fedstack.errors`, other names are the front door's.
            if node.module == "fedstack":
                names = {alias.name for alias in node.names}
                found |= {f"fedstack.{name if name in EVERY_ROOM | FRONT_DOORS else '__init__'}" for name in names}
            elif node.module:
                found.add(node.module)
    return found


def rooms_imported_by(file: Path) -> set[str]:
    parts = (module.split(".") for module in imported_modules(file))
    return {part[1] if len(part) > 1 else "__init__" for part in parts if part[0] == "fedstack"}


def packages_imported_by(file: Path) -> set[str]:
    tops = {module.split(".")[0] for module in imported_modules(file)}
    return tops - {"fedstack"} - sys.stdlib_module_names


GENERATED = sorted(PACKAGE.rglob("*_pb2.py"))
MODULES = sorted(set(PACKAGE.rglob("*.py")) - set(GENERATED))
each_module = pytest.mark.parametrize("file", MODULES, ids=name_of)


@each_module
def test_a_module_imports_only_rooms_below_its_own(file: Path) -> None:
    room = room_of(file)
    assert room in ROOMS or room in FRONT_DOORS, f"fedstack/{room} is new: say in ROOMS what it may import"
    allowed = EVERY_ROOM | FRONT_DOORS if room in FRONT_DOORS else ROOMS[room]
    assert rooms_imported_by(file) - {room} <= allowed


@each_module
def test_a_package_from_outside_is_imported_only_where_it_belongs(file: Path) -> None:
    misplaced = {
        package
        for package in packages_imported_by(file) - ANYWHERE - IN_ONE_FILE
        if room_of(file) not in IN_ROOMS.get(package, ()) and name_of(file) not in IN_FILES.get(package, ())
    }
    assert not misplaced, "a new package: say above where it may be imported"


def test_each_optional_package_is_imported_in_at_most_one_module() -> None:
    files = defaultdict[str, list[str]](list)
    for file in MODULES:
        for package in packages_imported_by(file) & IN_ONE_FILE:
            files[package].append(name_of(file))
    assert {package: found for package, found in files.items() if len(found) > 1} == {}


@each_module
def test_a_module_is_short_enough_to_be_read_at_once(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_importing_fedstack_imports_nothing_heavy_or_optional() -> None:
    program = "import sys, fedstack; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert set(found) & NOT_ON_IMPORT == set()
