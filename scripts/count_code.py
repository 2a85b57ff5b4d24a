"""Counts lines of code, by folder: those that are neither blank, comment, docstring nor import."""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "fedstack"
# What protoc has written is not counted.
GENERATED = "proto"
# Tools for the tests of others are counted apart.
APART = "testing"
_EMPTY = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(source: str) -> int:
    """Returns how many lines of a module are code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _EMPTY:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_docstring(node):
            assert isinstance(node, ast.stmt)
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _is_docstring(node: ast.AST) -> bool:
    """Returns whether a statement is a string and nothing else: the docstring of what it stands in, or follows."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def main() -> None:
    """Prints the counts."""
    code: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for file in sorted(PACKAGE.rglob("*.py")):
        folder = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if folder != GENERATED:
            code[folder] += code_lines(file.read_text(encoding="utf-8"))
            modules[folder] += 1
    print(f"{'folder':20} {'modules':>8} {'code':>8}")
    for folder, lines in code.most_common():
        if folder != APART:
            print(f"{folder:20} {modules[folder]:8,} {lines:8,}")
    apart = code.pop(APART, 0), modules.pop(APART, 0)
    print(f"{'all but testing':20} {modules.total():8,} {code.total():8,}")
    print(f"{APART:20} {apart[1]:8,} {apart[0]:8,}")


if __name__ == "__main__":
    main()
