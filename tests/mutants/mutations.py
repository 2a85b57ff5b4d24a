"""Makes mutants of a module: each is its source with one small bug in it."""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
_COMPARED: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_COMPUTED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.LShift: ">>",
}
_CALLED = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "append": "appendleft",
    "appendleft": "append",
    "popleft": "pop",
    "extendleft": "extend",
}
# What a statement of SQL may say, and what it says with a bug in it.
_QUERIED = (
    (r"\bAND\b", "OR"),
    (r"\bOR\b(?! IGNORE| REPLACE)", "AND"),
    (r"(?<=\w) = (?=[01]\b)", " != "),
    (r"(?<=\w) = (?=\?)", " != "),
    (r"(?<=\w) != ", " = "),
    (r"(?<=\w) < ", " <= "),
    (r"\bIS NULL\b", "IS NOT NULL"),
    (r"\bIS NOT NULL\b", "IS NULL"),
    (r"= NULL\b", "= x'00'"),
    (r"\bFULL\b", "OFF"),
    (r"\bWAL\b", "DELETE"),
    (r"\bEXCLUSIVE\b", "NORMAL"),
    (r"\bCOMMIT\b", "ROLLBACK"),
    (r"\bROLLBACK\b", "COMMIT"),
    (r"\bORDER BY (\w+)", r"ORDER BY \1 DESC"),
    (r"\bOR IGNORE\b", "OR REPLACE"),
)
_SQL = re.compile(r"\b(SELECT|UPDATE|DELETE FROM|INSERT|WHERE|PRAGMA|COMMIT|ROLLBACK|ORDER BY|IS NULL)\b")
_COMMENT = re.compile(r"\s{2,}#.*$")
_NAMES = (ast.Name, ast.Tuple, ast.expr_context)
_NOT_DECIDING = frozenset({"__repr__", "__str__", "limits", "told_of"})  # words for people


@attrs.frozen
class Mutant:
    """A bug that may be planted.

    Attributes:
      path: The file of the module, from the root of the repository.
      function: The function or class that has the bug; empty in the module itself.
      line: The number of its first line.
      before: The lines that it changes, without the space around them.
      after: The same with the bug.
      source: The whole module with the bug.
    """

    path: str
    function: str
    line: int
    before: str
    after: str
    source: str = attrs.field(repr=False)

    @property
    def key(self) -> str:
        """Names it by what it changes: the same where other lines have come before it."""
        return f"{self.path}\n{self.function}\n{self.before}\n{self.after}"

    @property
    def difference(self) -> str:
        """Shows it: where, and what was and is there."""
        lines = [f"{self.path}:{self.line} in {self.function or 'the module'}"]
        lines += [f"  - {line.strip()}" for line in self.before.splitlines()]
        lines += [f"  + {line.strip()}" for line in self.after.splitlines()]
        return "\n".join(lines)


def mutants_of(path: str) -> list[Mutant]:
    """Returns all mutants of a file, given from the root of the repository; each compiles."""
    source = (ROOT / path).read_text()
    found: dict[str, Mutant] = {}
    for function, start, end, text in _Edits(source).all():
        changed = source[:start] + text + source[end:]
        try:
            compile(changed, path, "exec", dont_inherit=True)
        except SyntaxError:
            continue
        one = _mutant(path, function, source, changed)
        found.setdefault(one.key, one)
    return list(found.values())


def drawn(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draws some. Which ones does not depend on where they stand, nor on mutants that come or go elsewhere."""
    return sorted(mutants, key=lambda one: hashlib.sha256(f"{seed}\n{one.key}".encode()).digest())[:count]


def bare(line: str) -> str:
    """Returns a line without the space around it and without the comment behind it, which may be reworded."""
    return _COMMENT.sub("", line.strip())


def _mutant(path: str, function: str, source: str, changed: str) -> Mutant:
    old, new = source.splitlines(), changed.splitlines()
    first = next(index for index, (one, other) in enumerate(zip(old, new)) if one != other)
    last = next(index for index, (one, other) in enumerate(zip(reversed(old), reversed(new))) if one != other)
    before, after = ("\n".join(map(bare, lines[first : len(lines) - last])) for lines in (old, new))
    return Mutant(path, function, first + 1, before, after, changed)


class _Edits:
    """What may be changed in a source: from where to where, and into what."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tree = ast.parse(source)
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._bytes = source.encode()

    def all(self) -> Iterator[tuple[str, int, int, str]]:
        """Yields them with the function that each is in."""
        yield from self._within(self._tree, "")

    def _within(self, node: ast.AST, function: str) -> Iterator[tuple[str, int, int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                if child.name in _NOT_DECIDING:
                    continue
                name = f"{function}.{child.name}" if function else child.name
                parts: list[ast.AST] = list(child.body)
                if not isinstance(child, ast.ClassDef):
                    parts += [*child.args.defaults, *(one for one in child.args.kw_defaults if one is not None)]
                for part in parts:
                    yield from self._part(part, name)
            else:
                yield from self._part(child, function)

    def _part(self, node: ast.AST, function: str) -> Iterator[tuple[str, int, int, str]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield from self._within(ast.Module([node], []), function)  # type: ignore[list-item]
            return
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.alias):
            if isinstance(node, ast.Raise):
                yield from self._statement(node, function)
            return
        if _is_docstring(node):
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from self._part(node.value, function)
                if function and not isinstance(node.target, ast.Name):
                    yield from self._statement(node, function)
            return
        for start, end, text in self._changes(node):
            yield function, start, end, text
        if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Delete | ast.Return | ast.Break | ast.Continue):
            yield from self._statement(node, function)
        if not isinstance(node, ast.JoinedStr):
            yield from self._within(node, function)

    def _statement(self, node: ast.stmt, function: str) -> Iterator[tuple[str, int, int, str]]:
        if isinstance(node, ast.Assign) and all(isinstance(one, _NAMES) for one in ast.walk(node.targets[0])):
            return  # what has no name then fails in any case
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom):
            return
        if not function or (isinstance(node, ast.Return) and node.value is None):
            return
        if isinstance(node, ast.Return):
            return  # values are changed, not dropped
        other = {ast.Break: "continue", ast.Continue: "break"}.get(type(node), "pass")
        yield (function, *self._span(node), other)

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        """Yields what may be changed in one node itself."""
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield (*self._span(node.test), f"(not ({self._text(node.test)}))")
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield (*self._span(test), f"(not ({self._text(test)}))")
        elif isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators):
                for other in _COMPARED[type(operator)]:
                    yield self._between(left, right, other)
        elif isinstance(node, ast.BoolOp):
            other = "or" if isinstance(node.op, ast.And) else "and"
            for left, right in zip(node.values, node.values[1:]):
                yield self._between(left, right, other)
        elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
            yield self._between(node.left, node.right, _COMPUTED[type(node.op)])
        elif isinstance(node, ast.AugAssign) and type(node.op) in _COMPUTED:
            yield self._between(node.target, node.value, f"{_COMPUTED[type(node.op)]}=")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield (*self._span(node), f"bool({self._text(node.operand)})")
        elif isinstance(node, ast.Call):
            yield from self._called(node)
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.JoinedStr):
            yield from self._queried(node)

    def _called(self, node: ast.Call) -> Iterator[tuple[int, int, str]]:
        name = node.func
        if isinstance(name, ast.Name) and name.id in _CALLED:
            yield (*self._span(name), _CALLED[name.id])
        elif isinstance(name, ast.Attribute) and name.attr in _CALLED:
            end = self._span(name)[1]
            yield end - len(name.attr), end, _CALLED[name.attr]

    def _constant(self, node: ast.Constant) -> Iterator[tuple[int, int, str]]:
        if isinstance(node.value, bool):
            yield (*self._span(node), str(not node.value))
        elif isinstance(node.value, int | float):
            for other in {node.value + 1, node.value - 1 if node.value else node.value + 1}:
                yield (*self._span(node), f"({other!r})")
        elif isinstance(node.value, str):
            yield from self._queried(node)

    def _queried(self, node: ast.expr) -> Iterator[tuple[int, int, str]]:
        start, end = self._span(node)
        text = self._text(node)
        if _SQL.search(text) and "CREATE" not in text:
            for pattern, other in _QUERIED:
                for match in re.finditer(pattern, text):
                    yield start, end, text[: match.start()] + match.expand(other) + text[match.end() :]

    def _between(self, left: ast.expr, right: ast.expr, other: str) -> tuple[int, int, str]:
        """Changes the operator between two nodes; parentheses around them stay."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self._source[start:end]
        operator = re.search(r"not\s+in\b|is\s+not\b|[a-z]+|[-+*/<>=!]+", gap)
        assert operator is not None
        return start + operator.start(), start + operator.end(), other

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    def _span(self, node: "ast.expr | ast.stmt") -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def _place(self, line: int, column: int) -> int:
        return len(self._bytes[: self._starts[line - 1] + column].decode())


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
