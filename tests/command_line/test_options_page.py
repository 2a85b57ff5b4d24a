"""docs/options.md lists the options of every command."""

import pytest
from options_page import MARK, PAGE, generated

pytestmark = pytest.mark.slow  # about the page, whatever Python reads it


def test_the_page_is_up_to_date() -> None:
    above, mark, below = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert above.startswith("# Options\n")
    assert mark
    assert below == generated(), "run: python tests/command_line/options_page.py"
