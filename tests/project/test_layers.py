"""The architecture, read from the import statements of every module."""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "fedstack"

# The rooms in their order: each imports what stands before it, and nothing that comes after it. A module belongs to the
# longest of these names that its path begins with.
ROOMS = (
    "errors",
    "_version",
    "foundations",
    "observe",
    "proto",
    "computations/types",
    "computations/values",
    "computations/leaves",
    "computations/codec",
    "computations/plan",
    "leaves",
    "data",
    "transport/wire",
    "transport/peers",
    "transport/grpc",
    "transport/stream",
    "membership",
    "executors/concurrency",
    "executors/survivors",
    "executors/folds",
    "executors/base",
    "executors/stored",
    "executors/remote",
    "executors/worker",
    "executors",
    "contexts",
    "backends/elastic",
    "backends",
    "backends/ray_cluster",
    "service/host/limits",
    "service/host/calls",
    "service/host/doors",
    "service/host",
    "service/executor",
    "service/rpc",
    "service/data/reading",
    "service/data/datasets",
    "service/data/dispatcher",
    "service/data/consumer",
    "service/data/worker",
    "service/data",
    "service/cluster",
    "service/pool",
    "service/coordinator/calls",
    "service/coordinator",
    "service",
    "program/argument_checks",
    "program/states",
    "program/value_reference",
    "program/clients",
    "program/releases",
    "program/sources",
    "program/runs",
    "program",
    "__init__",
    "demo",
    "command_line",
    "testing",
    "testing/simulation",
    "testing/rows",
    "testing/rows/federated",
    "testing/conformance",
    "__main__",
)
# A folder with more in it is a warehouse.
MAX_MODULES = 15

# Where packages from outside may be imported: anywhere, in some rooms, or in the files named.
ANYWHERE = {"attrs", "google", "numpy"}
IN_ROOMS = {
    "click": {"command_line"},
    "grpc": {"transport/grpc", "service/host/doors"},
    "grpc_health": {"transport/peers", "service/host"},
    "grpc_reflection": {"service/host"},
    "hypothesis": {"testing"},
    "pytest": {"testing"},
}
IN_FILES = {
    "cryptography": {"command_line/certificates.py", "transport/grpc/credential_files.py"},
    "federated_language": {"computations/types/language.py", "errors.py"},
    "grpc": {"service/host/host.py"},
    "ray": {"backends/ray_cluster/ray_api.py", "data/object_refs.py"},
    "tomli": {"transport/wire/cluster_documents.py"},
}
# The modules of ours that hand on a package from outside.
HANDED_ON = {"fedstack.transport.grpc.grpc_module": "grpc"}
# Each in at most one file, wherever that is: what is optional, or can be replaced, has one door.
IN_ONE_FILE = {
    "cloudpickle",
    "flatbuffers",
    "jax",
    "jaxlib",
    "matplotlib",
    "ml_dtypes",
    "mlflow",
    "opentelemetry",
    "prometheus_client",
    "psutil",
    "rich",
    "sklearn",
    "tensorboard",
    "threadpoolctl",
    "uvloop",
}
# None of these is needed to start: `import fedstack` and a local run of a NumPy function stay quick.
NOT_ON_IMPORT = {
    "click",
    "cloudpickle",
    "cryptography",
    "grpc",
    "jax",
    "matplotlib",
    "mlflow",
    "opentelemetry",
    "prometheus_client",
    "ray",
    "rich",
    "scipy",
    "sklearn",
    "tensorboard",
    "threadpoolctl",
}

MAX_LINES = 400
MAX_LINES_OF_ARCHITECTURE = 140


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def room_of(name: str) -> str:
    """Returns the room of a module, given by its path in the package without the suffix.

    The face of a folder with rooms inside of it stands in the last of them: it may show what is in all of them.
    """
    name = name.removesuffix("/__init__")
    inside = [room for room in ROOMS if room.startswith(f"{name}/")]
    found = [room for room in ROOMS if name == room or name.startswith(f"{room}/")]
    assert found or inside, f"fedstack/{name} is in no room: say in ROOMS where it stands"
    return max(found, key=len) if found else inside[-1]


def imports_of(file: Path) -> Iterator[tuple[str, str | None]]:
    """Yields the modules and, where there is one, the name that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(file)}, line {node.lineno}: imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def module_of(module: str, name: str | None) -> str:
    """Returns the path, without the suffix, of the module of ours where a name that is imported comes from."""
    path = "/".join(module.split(".")[1:])
    if not (PACKAGE / path).is_dir():
        return path
    if name is None:
        return f"{path}/__init__".removeprefix("/")
    if (PACKAGE / path / name).is_dir() or (PACKAGE / path / f"{name}.py").is_file():
        return f"{path}/{name}".removeprefix("/")
    # A name of a face: it belongs where the face has it from.
    for source, given in imports_of(PACKAGE / path / "__init__.py"):
        if given == name and source.startswith("fedstack"):
            return module_of(source, name)
    return f"{path}/__init__".removeprefix("/")


def rooms_imported_by(file: Path) -> set[str]:
    ours = ((module, name) for module, name in imports_of(file) if module.split(".")[0] == "fedstack")
    return {room_of(module_of(module, name)) for module, name in ours}


def packages_imported_by(file: Path) -> set[str]:
    tops = {HANDED_ON.get(module, module.split(".")[0]) for module, _ in imports_of(file)}
    return tops - {"fedstack"} - sys.stdlib_module_names


GENERATED = sorted(PACKAGE.rglob("*_pb2.py"))
MODULES = sorted(set(PACKAGE.rglob("*.py")) - set(GENERATED))
each_module = pytest.mark.parametrize("file", MODULES, ids=name_of)


@each_module
def test_a_module_imports_only_what_stands_before_it(file: Path) -> None:
    room = room_of(name_of(file).removesuffix(".py"))
    rank = ROOMS.index(room)
    if file.name == "__init__.py":  # what it shows of rooms inside of its folder counts as theirs, see `module_of`
        rank = max([rank, *(i for i, inside in enumerate(ROOMS) if inside.startswith(f"{file.parent.name}/"))])
    assert {room for room in rooms_imported_by(file) if ROOMS.index(room) > rank} == set()


def test_a_folder_can_be_seen_at_a_glance() -> None:
    folders = Counter(file.parent.relative_to(PACKAGE).as_posix() for file in MODULES if file.name != "__init__.py")
    assert {folder: modules for folder, modules in folders.items() if modules > MAX_MODULES} == {}


@pytest.mark.parametrize("file", [file for file in MODULES if "transport" in file.parts], ids=name_of)
def test_the_transport_sees_a_header_and_segments_and_knows_no_values(file: Path) -> None:
    assert rooms_imported_by(file) & {"computations/values", "computations/codec"} == set()


@pytest.mark.parametrize("file", [file for file in MODULES if "host/calls/" in name_of(file)], ids=name_of)
def test_what_happens_to_a_call_does_not_depend_on_its_transport(file: Path) -> None:
    transports = {room for room in rooms_imported_by(file) if room.startswith("transport/")}
    assert transports <= {"transport/wire", "transport/peers"}


@pytest.mark.parametrize("file", [file for file in MODULES if "codec" not in file.parts], ids=name_of)
def test_values_become_messages_in_one_codec(file: Path) -> None:
    made = re.findall(r"\b(?:Packed|TypedValue)\(", file.read_text(encoding="utf-8"))
    assert made == [], "let a Packer write it, or write_typed"


@each_module
def test_a_package_from_outside_is_imported_only_where_it_belongs(file: Path) -> None:
    room, name = room_of(name_of(file).removesuffix(".py")), name_of(file)
    misplaced = {
        package
        for package in packages_imported_by(file) - ANYWHERE - IN_ONE_FILE
        if room not in IN_ROOMS.get(package, ()) and name not in IN_FILES.get(package, ())
    }
    assert not misplaced, "a new package: say above where it may be imported"


@pytest.mark.long
def test_each_optional_package_is_imported_in_at_most_one_module() -> None:
    files = defaultdict[str, list[str]](list)
    for file in MODULES:
        for package in packages_imported_by(file) & IN_ONE_FILE:
            files[package].append(name_of(file))
    assert {package: found for package, found in files.items() if len(found) > 1} == {}


@each_module
def test_a_module_is_short_enough_to_be_read_at_once(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_what_is_handed_on_unseen_is_in_one_context_variable() -> None:
    made = re.compile(r"^(\w+).*\bContextVar\(", re.MULTILINE)
    found = {name_of(file): made.findall(file.read_text(encoding="utf-8")) for file in MODULES}
    assert {name: variables for name, variables in found.items() if variables} == {
        "computations/leaves/work_scope.py": ["_scope"]
    }, "put it into WorkScope"


def test_importing_fedstack_imports_nothing_heavy_or_optional() -> None:
    program = "import sys, fedstack; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert set(found) & NOT_ON_IMPORT == set()


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/internals.md"])
def test_the_pages_for_engineers_name_files_and_rooms_that_exist(page: str) -> None:
    root = PACKAGE.parent
    text = (root / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.(?:py|proto)|\w+(?:/\w+)+/?)`", text))
    there = [
        f"/{path.relative_to(root).as_posix()}"
        for folder in (PACKAGE, root / "tests", root / "typings")
        for path in folder.rglob("*")
    ]
    missing = {name for name in named if not any(path.endswith(f"/{name.rstrip('/')}") for path in there)}
    assert named
    assert missing == set()


def test_the_architecture_can_be_read_at_once() -> None:
    text = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES_OF_ARCHITECTURE
    rooms = {path.stem for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {room for room in rooms if f"`{room}`" not in text} == set()


def test_tests_stand_in_folders_named_after_the_rooms() -> None:
    tests = PACKAGE.parent / "tests"
    of_the_whole = {"benchmarks", "engines", "faults", "frameworks", "mutants", "project"}
    folders = {file.parent.relative_to(tests).as_posix() for file in tests.rglob("test_*.py")} - of_the_whole
    assert [folder for folder in sorted(folders) if not (PACKAGE / folder).is_dir()] == []


def test_modules_of_the_tests_have_names_of_their_own() -> None:
    """pytest puts the folder of each on the path, so of two with one name only one is found."""
    names = Counter(file.name for file in (PACKAGE.parent / "tests").rglob("*.py") if file.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
