"""The Python on the pages for users, and what it prints."""

import doctest
import re
from typing import NamedTuple

_BLOCK = re.compile(r"^```python\n(?P<source>.*?)^```\n(?:```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A piece of Python and what it prints, where `...` stands for anything."""

    source: str
    output: str

    def imports(self, name: str) -> bool:
        """Returns whether it begins with what it needs of another package."""
        return f"import {name}\n" in self.source

    def prints(self, output: str) -> bool:
        """Returns whether that is what it prints."""
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        return doctest.OutputChecker().check_output(self.output, output, options)


def blocks_of(text: str) -> list[Block]:
    """Lists the blocks of a page, in order."""
    return [Block(found["source"], found["output"] or "") for found in _BLOCK.finditer(text)]
