"""Texts of others in messages: short enough, harmless, and with a note of what is missing."""

import re

from hypothesis import given
from hypothesis import strategies as st

from fedstack.computations.texts import printable, shortened, text_of


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
