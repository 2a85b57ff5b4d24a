"""The ids of spans."""

import os
import random
import subprocess
import sys

import pytest

from fedstack.observe.events import NO_SPAN, is_id, new_id


def test_ids_differ_and_have_a_form_that_is_known() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(map(is_id, ids))
    assert not is_id("")
    assert not is_id("g" * 16)


def test_ids_neither_depend_on_what_users_seed_nor_change_it() -> None:
    random.seed(1)
    first, drawn = new_id(), random.random()
    random.seed(1)
    assert random.random() == drawn
    random.seed(1)
    assert new_id() != first


def test_a_call_inside_a_phase_of_another_one_has_the_same_trace() -> None:
    outer = NO_SPAN.new_call()
    inner = outer.new_phase().new_call()
    assert (outer.trace, outer.call) == (outer.id, outer.id)
    assert (inner.trace, inner.call) == (outer.id, inner.id)
    assert inner.ids == {"trace": outer.id, "call": inner.id, "parent": inner.id}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_does_not_draw_the_ids_of_its_parent() -> None:
    program = """
import os
from fedstack.observe.events import new_id
child = os.fork()
if child:
    os.waitpid(child, 0)
print(new_id(), flush=True)
os._exit(0)
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    first, second = found.stdout.split()
    assert first != second
