"""Compiles our .proto files, and stubs for the language's, with a pinned protoc; the results are checked in.

Run `make protos` after a change of a .proto file. `--check` compares instead of writing and fails when what is
checked in is stale.

The generator is old on purpose: code from grpcio-tools 1.71.2 (gencode 5.29.0) loads on every protobuf that the
language allows, and newer code does not. It wants an older protobuf than we develop with, hence an environment of
its own. The language's wheel has no .proto files, so protoc reads the descriptors of its generated modules.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-protos"
PYTHON = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
REQUIREMENTS = ("federated-language==0.5.4", "grpcio-tools==1.71.2")

OURS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "fedstack" / "proto").glob("*.proto"))
LANGUAGE = tuple(f"federated_language/proto/{name}.proto" for name in ("array", "computation", "data_type"))
# Each output folder holds generated files of these patterns and, beside them, files that were written by hand.
GENERATED = {"fedstack/proto": ("*_pb2.py", "*_pb2.pyi"), "typings/federated_language-stubs/proto": ("*_pb2.pyi",)}

# Runs in the private environment: writes the descriptors of the named modules and of all they import.
DUMP_DESCRIPTORS = """
import importlib, sys
from google.protobuf.descriptor_pb2 import FileDescriptorSet

files = {}

def add(descriptor):
    for dependency in descriptor.dependencies:
        add(dependency)
    files.setdefault(descriptor.name, descriptor)

for proto in sys.argv[2:]:
    add(importlib.import_module(proto.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR)
result = FileDescriptorSet()
for descriptor in files.values():
    descriptor.CopyToProto(result.file.add())
with open(sys.argv[1], "wb") as output:
    output.write(result.SerializeToString())
"""


def run(*command: object) -> None:
    """Runs a command, and ends the script with its output when it fails."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}")


def prepare_environment() -> None:
    """Makes the private environment, unless it is there with the right requirements."""
    stamp = ENVIRONMENT / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"making {ENVIRONMENT.name} with {', '.join(REQUIREMENTS)}")
    venv.create(ENVIRONMENT, clear=True)
    pip = (sys.executable, "-m", "pip", "--python", PYTHON)  # this one's: it is newer, and it is there
    run(*pip, "install", "--quiet", "--quiet", "--disable-pip-version-check", "--no-compile", *REQUIREMENTS)
    stamp.write_text(wanted)


def generate(target: Path) -> None:
    """Writes all generated files below `target`, which has the layout of the repository."""
    with tempfile.TemporaryDirectory() as scratch:
        descriptors = Path(scratch) / "language.bin"
        run(PYTHON, "-c", DUMP_DESCRIPTORS, descriptors, *LANGUAGE)
        protoc = (PYTHON, "-m", "grpc_tools.protoc", f"--descriptor_set_in={descriptors}", f"--proto_path={ROOT}")
        run(*protoc, f"--python_out={target}", f"--pyi_out={target}", *OURS)
        run(*protoc, f"--pyi_out={scratch}", *LANGUAGE)
        # A package of stubs alone is called after the one that it describes, with a suffix.
        shutil.move(Path(scratch, "federated_language"), target / "typings" / "federated_language-stubs")


def generated_files(root: Path) -> dict[str, Path]:
    """Returns the generated files below `root` by their path from there."""
    found = (path for folder, patterns in GENERATED.items() for glob in patterns for path in (root / folder).glob(glob))
    return {path.relative_to(root).as_posix(): path for path in sorted(found)}


def differences(fresh: dict[str, Path]) -> list[str]:
    """Returns the names of generated files that differ from the fresh ones, are missing or are left over."""
    here = generated_files(ROOT)
    names = sorted(here.keys() | fresh.keys())
    return [name for name in names if lines_of(here.get(name)) != lines_of(fresh.get(name))]


def lines_of(path: Path | None) -> list[str] | None:
    """Returns the lines of a file, whatever its line ends, or `None` for no file."""
    return None if path is None else path.read_text(encoding="utf-8").splitlines()


def main() -> None:
    """Generates, or with `--check` compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a checked-in file is stale")
    check = parser.parse_args().check
    prepare_environment()
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = generated_files(Path(scratch))
        stale = differences(fresh)
        if check:
            sys.exit(f"stale, run `make protos`: {', '.join(stale)}" if stale else 0)
        for name in stale:
            if name in fresh:
                (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(fresh[name], ROOT / name)
            else:
                (ROOT / name).unlink()
            print(f"{'wrote' if name in fresh else 'removed'} {name}")


if __name__ == "__main__":
    main()
