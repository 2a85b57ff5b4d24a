"""Names in the package: one class per name, and a protocol only where several places use it."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "fedstack"
MODULES = sorted(file for file in PACKAGE.rglob("*.py") if not file.stem.endswith("_pb2"))
# `fedstack.service.Server` and `fedstack.rpc.Server` are both public, with the names that their originals have.
TWICE = {"Server": {"service/cluster/server.py", "service/rpc/server.py"}}


def classes_in(file: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)]


def test_a_name_of_a_class_stands_once_in_the_package() -> None:
    files = defaultdict[str, set[str]](set)
    for file in MODULES:
        for found in classes_in(file):
            files[found.name].add(file.relative_to(PACKAGE).as_posix())
    assert {name: found for name, found in files.items() if len(found) > 1} == TWICE


def test_a_protocol_is_used_in_more_than_one_place() -> None:
    protocols = {
        found.name
        for file in MODULES
        for found in classes_in(file)
        if any(ast.unparse(base).startswith("Protocol") for base in found.bases)
    }
    named = Counter(re.findall(r"\w+", "\n".join(file.read_text(encoding="utf-8") for file in MODULES)))
    assert {name for name in protocols if named[name] < 3} == set(), "annotate what the one place uses"
