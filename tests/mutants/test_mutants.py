"""Mutants: which there are, how they are named, and that simulations find a bug that was planted."""

import ast

import pytest
from machines import MACHINES, Seeds
from mutants import EQUIVALENT, PLANTED, equivalents, planted_bugs
from mutations import ROOT, drawn, mutants_of
from planting import Budget, look

RETRY = "fedstack/transport/peers/retry.py"
LOSSES = "fedstack/service/coordinator/losses.py"


def test_a_mutant_is_its_module_with_one_change() -> None:
    source = (ROOT / LOSSES).read_text()
    mutants = mutants_of(LOSSES)
    assert len({one.key for one in mutants}) == len(mutants) > 30
    for one in mutants:
        assert ast.dump(ast.parse(one.source)) != ast.dump(ast.parse(source)), one
        lines = source.splitlines()
        before = one.before.splitlines()
        assert [line.strip() for line in lines[one.line - 1 : one.line - 1 + len(before)]] == before
    changes = {(one.before, one.after) for one in mutants}
    rebuilt = "return closure.repeatable and closure.copy is None and closure.depth"
    assert (f"{rebuilt} <= MOST_DEPTH", f"{rebuilt} < MOST_DEPTH") in changes
    assert ("if not closure.repeatable:", "if (not (not closure.repeatable)):") in changes
    assert ("worker.values.clear()", "pass") in changes


def test_what_is_drawn_follows_from_the_seed_and_not_from_what_else_there_is() -> None:
    mutants = mutants_of(LOSSES)
    some = drawn(mutants, 10, 1)
    assert drawn(reversed(mutants), 10, 1) == some
    assert drawn(mutants, 10, 2) != some
    assert [one for one in drawn([*mutants, *mutants_of(RETRY)], 10, 1) if one.path == LOSSES] <= some


@pytest.mark.long
def test_all_that_is_listed_is_there() -> None:
    keys = {one.key for machine in MACHINES for path in machine.paths for one in mutants_of(path)}
    for key in equivalents(EQUIVALENT.read_text()):
        assert key in keys, f"this is no mutant any more, and need not be argued for:\n{key}"
    assert len(planted_bugs(PLANTED.read_text())) > 8


def test_a_mutant_without_an_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected an argument"):
        equivalents("a.py in f\n- one\n+ two\n")


@pytest.mark.long
def test_a_planted_bug_is_found_and_the_module_as_it_is_has_none() -> None:
    bugs = {bug.what: bug for bug in planted_bugs(PLANTED.read_text())}
    bug = bugs["a call that may not be repeated runs again"]
    sources = [(ROOT / bug.path).read_text(), bug.source]
    sound, spoiled = look(bug.path, sources, [Seeds(bug.finder.program, 10)], Budget())
    assert (sound[0], sound[1].by) == (0, "")
    assert spoiled[0] == 1
    assert "calls_that_are_not_repeated, seed" in spoiled[1].by
