"""docs/semantics.md says what the rows check, all of it and nothing else."""

import re

import pytest
from semantics_page import MARK, PAGE, generated, is_whole, language_intrinsics, rows_over
from stacks import EXECUTORS, FACTORIES

from fedstack.testing.conformance import promises

TEXT = PAGE.read_text(encoding="utf-8")


def test_every_promise_is_in_the_page_with_its_row_and_the_other_way_round() -> None:
    found = re.findall(r"^\| (.+) \| `(\w+)` \| (?:executor|stack|executor, stack) \|$", TEXT, re.MULTILINE)
    assert found == [(promise.sentence, promise.name) for promise in promises()]


def test_the_page_is_up_to_date() -> None:
    above, mark, below = TEXT.partition(MARK)
    assert above.startswith("# Semantics\n")
    assert mark
    assert below == generated(), "run: python tests/testing/semantics_page.py"


@pytest.mark.parametrize("kind", sorted({stack.kind for stack in (*EXECUTORS.values(), *FACTORIES.values())}))
def test_every_intrinsic_is_checked_over_every_stack(kind) -> None:
    assert [uri for uri in language_intrinsics() if rows_over(kind, uri) < 1] == []
    for name, stack in (*EXECUTORS.items(), *FACTORIES.items()):
        if stack.kind == kind:
            place = rf"^\* {kind}: " if is_whole(name) else "^These stacks pass values on "
            assert re.search(rf"{place}.*\b{name}\b", TEXT, re.MULTILINE), name
