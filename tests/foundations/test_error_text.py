"""Texts of others in messages: short enough, harmless, and with a note of what is missing."""

import builtins
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.foundations.error_text import printable, shortened, text_of

Group = getattr(builtins, "ExceptionGroup", None)  # from Python 3.11 on


@given(text=st.text(alphabet="aé😀\n", max_size=300), limit=st.integers(40, 500))
def test_a_shortened_text_keeps_its_ends_and_says_what_is_missing(text, limit):
    found = shortened(text, limit)
    assert len(found.encode()) <= limit
    if len(text.encode()) <= limit:
        assert found == text
        return
    head, size, tail = re.fullmatch(r"(.*) \[… (\d+) bytes …\] (.*)", found, re.DOTALL).groups()
    assert text.startswith(head)
    assert text.endswith(tail)
    # A character that would be cut in two goes as a whole.
    assert 0 <= len(text.encode()) - len((head + tail).encode()) - int(size) <= 6


@pytest.mark.slow
@given(st.text() | st.text(alphabet="\x00\x1b\r\n\t\u202e\ud800a"))
def test_a_printable_text_has_no_control_characters_but_line_feeds_and_tabs(text):
    found = printable(text)
    found.encode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", found)
    assert printable(found) == found


def test_an_exception_whose_text_raises_has_a_text():
    class Bad(Exception):
        def __str__(self):
            raise AttributeError("nothing")

    assert text_of(Bad()) == "whose text raises AttributeError"
    assert text_of(ValueError("why")) == "why"


@pytest.mark.skipif(Group is None, reason="has neither notes nor groups")
def test_notes_and_the_exceptions_of_a_group_are_in_the_text_of_an_exception():
    error = ValueError("why")
    error.add_note("and where")
    error.add_note("and when")
    assert text_of(error) == "why (and where; and when)"
    inner = Group("inner", [error])
    assert text_of(Group("outer", [KeyError("a"), OSError(), inner])) == (
        "outer (3 sub-exceptions): KeyError: 'a'; OSError; "
        "ExceptionGroup: inner (1 sub-exception): ValueError: why (and where; and when)"
    )


@pytest.mark.skipif(Group is None, reason="has neither notes nor groups")
def test_the_text_of_a_group_has_an_end_however_deep_and_many_its_exceptions_are():
    error = ValueError("at the bottom")
    for _ in range(500):
        error = Group("", [error] * 20)
    assert len(text_of(error).encode()) <= 4096
    error.__notes__ = "no list"
    assert len(text_of(error).encode()) <= 4096
