"""Writes docs/semantics.md out of the conformance rows. Run it after changing a row:

python tests/testing/semantics_page.py
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from federated_language.compiler import intrinsic_defs

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stacks import EXECUTORS, FACTORIES, ExecutorStack, FactoryStack

from fedstack.testing import executor_rows, stack_rows
from fedstack.testing.conformance import ALL_TAGS, promises

PAGE = Path(__file__).resolve().parents[2] / "docs" / "semantics.md"
# What stands above is written by hand, what stands below by this module.
MARK = "<!-- From here on written by tests/testing/semantics_page.py -->\n"

TITLES = {
    "contract": "The verbs",
    "laziness": "When things run",
    "failures": "What is refused",
    "values": "Values and types",
    "functions": "Names and functions",
    "placements": "Placements, maps and operators",
    "aggregations": "Aggregations",
    "folds": "One tree for all folds",
    "empty": "No clients",
    "open_types": "Narrower types",
    "select": "Selecting by key",
    "secure": "Secure sums",
    "survivors": "Clients that fail",
    "survivor_errors": "Errors of calls whose clients may fail",
    "sequences": "Sequences",
    "sequence_intrinsics": "Intrinsics over sequences",
    "contexts": "Contexts",
    "factories": "Factories",
}
# What precedes the promises of a section.
REMARKS = {
    "secure": (
        "They are computed in the clear: there is no secure aggregation (SecAgg) in which the server cannot see a "
        "client's value.\n[SECURITY](../SECURITY.md#what-fedstack-does-not-protect) says who sees what.\n"
    )
}


def generated() -> str:
    return "\n".join([*promise_tables(), *intrinsic_table()]) + "\n"


def promise_tables() -> Iterator[str]:
    section = ""
    for promise in promises():
        module = promise.check.__module__.rpartition(".")[2]
        if module != section:
            section = module
            yield f"\n## {TITLES[module]}\n"
            if module in REMARKS:
                yield REMARKS[module]
            yield "| promise | row | in |"
            yield "| --- | --- | --- |"
        suites = [name for name, is_in in (("executor", promise.of_executors), ("stack", promise.of_stacks)) if is_in]
        yield f"| {promise.sentence} | `{promise.name}` | {', '.join(suites)} |"


def intrinsic_table() -> Iterator[str]:
    stacks = {**EXECUTORS, **FACTORIES}
    kinds = list(dict.fromkeys(stack.kind for stack in stacks.values()))
    yield "\n## Intrinsics and stacks\n"
    yield "The number of rows that check an intrinsic of the language, over every stack of a kind:\n"
    for kind in kinds:
        yield f"* {kind}: {', '.join(name for name, stack in stacks.items() if stack.kind == kind and is_whole(name))}"
    passing = ", ".join(name for name in stacks if not is_whole(name))
    yield f"\nThese stacks pass values on unchanged, so only the rows about errors and timing run over them: {passing}."
    yield f"\n| intrinsic | {' | '.join(kinds)} |"
    yield f"| --- |{' --- |' * len(kinds)}"
    for uri in language_intrinsics():
        yield f"| `{uri}` | {' | '.join(str(rows_over(kind, uri)) for kind in kinds)} |"


def language_intrinsics() -> list[str]:
    return sorted(v.uri for v in vars(intrinsic_defs).values() if isinstance(v, intrinsic_defs.IntrinsicDef))


def is_whole(name: str) -> bool:
    """Returns whether all rows run over a stack: over the executor or the factory of that name, if it has both."""
    return any(has_all_rows(stacks[name]) for stacks in (EXECUTORS, FACTORIES) if name in stacks)


def has_all_rows(stack: ExecutorStack | FactoryStack) -> bool:
    return set(stack.tags) == set(ALL_TAGS) and not stack.is_second_twin


def rows_over(kind: str, uri: str) -> int:
    """Counts the rows about an intrinsic that run over each of the stacks of a kind."""
    executors = [stack for stack in EXECUTORS.values() if stack.kind == kind and has_all_rows(stack)]
    factories = [stack for stack in FACTORIES.values() if stack.kind == kind and has_all_rows(stack)]
    running = [executor_rows(without=stack.without) for stack in executors]
    running += [stack_rows(without=stack.without) for stack in factories]
    return min(sum(uri in row.promise.intrinsics for row in rows) for rows in running)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(MARK)] + MARK + generated(), encoding="utf-8")
