"""The stubs written by hand, compared with the packages that they describe."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TYPINGS = Path(__file__).resolve().parents[2] / "typings"
STUBS = sorted(path for path in TYPINGS.rglob("*.pyi") if not path.stem.endswith("_pb2"))


def module_of(stub: Path) -> str:
    package, *rest = stub.relative_to(TYPINGS).with_suffix("").parts
    return ".".join([package.removesuffix("-stubs"), *rest]).removesuffix(".__init__")


def functions_in(owner: object, body: list[ast.stmt], path: str) -> Iterator[tuple[str, ast.FunctionDef, object]]:
    """Yields each function of a stub with its path and its counterpart; fails for a name without one."""
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            private = re.match("_[^_]", node.target.id)  # the stub's own, to say a type once
            assert private or hasattr(owner, node.target.id), f"{path}.{node.target.id}"
        elif isinstance(node, ast.ClassDef):
            assert hasattr(owner, node.name), f"{path}.{node.name}"
            yield from functions_in(getattr(owner, node.name), node.body, f"{path}.{node.name}")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__getattr__":
            assert hasattr(owner, node.name), f"{path}.{node.name}"
            yield f"{path}.{node.name}", node, getattr(owner, node.name)


def parameters_of(function: object) -> set[str] | None:
    """The names of the parameters, or `None` when the function does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a property, or written in C
        return None
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    return {p.name for p in parameters}


@pytest.mark.parametrize("stub", STUBS, ids=module_of)
def test_every_name_and_parameter_of_a_stub_is_in_the_package(stub: Path) -> None:
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    module = importlib.import_module(module_of(stub))
    for path, node, function in functions_in(module, tree.body, module_of(stub)):
        known = parameters_of(function)
        stated = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)} - {"self", "cls", "mcs"}
        if known is not None and (node.name == "__init__" or not node.name.startswith("__")):
            assert stated <= known, path
