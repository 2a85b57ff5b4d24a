"""The subcommand `fedstack explain-error`, which prints what docs/errors.md says about an error.

In a wheel, the page is next to this file.
"""

import difflib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fedstack.command_line.command import SUCCESS, say, subcommand

_PAGE = "errors.md"
_IN_WHEEL = Path(__file__).with_name(_PAGE)
_IN_CHECKOUT = Path(__file__).parents[2] / "docs" / _PAGE

_PARAGRAPH = re.compile(r"^### (?P<name>\w+)\n(?P<text>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<page>[\w-]+)\.md[^)]*\)")
# What commands print instead of a traceback, without a class.
_PRINTED = re.compile(r"^fedstack(?: [\w-]+)?: error: ", re.MULTILINE)
# The last line of a traceback, which begins with the class.
_RAISED = re.compile(r"^(?:[a-z_]\w*\.)*(?P<name>[A-Z]\w*)(?::|$)", re.MULTILINE)


def paragraphs() -> dict[str, str]:
    """Returns the paragraph about each class of errors, by the name of the class."""
    page = _IN_WHEEL if _IN_WHEEL.is_file() else _IN_CHECKOUT
    return {each["name"]: each["text"].strip() for each in _PARAGRAPH.finditer(page.read_text(encoding="utf-8"))}


def run(error: Sequence[str]) -> int:
    """Prints the paragraph about an error, without the markup of its links."""
    text = sys.stdin.read() if tuple(error) == ("-",) else " ".join(error)
    known = paragraphs()
    name = _named(text, known)
    if name is None:
        close = difflib.get_close_matches(text.strip(), known, 1, cutoff=0.5)
        advice = f"did you mean {close[0]}?" if close else "write the class, such as LeafError"
        raise click.UsageError(f"expected an error of fedstack, found none in {text.strip()[:200]!r}: {advice}")
    # Who has installed a wheel has no files of the documentation, so the titles of pages must do.
    shown = _LINK.sub(lambda link: f"{link['text']} (page {link['page']!r} of the documentation)", known[name])
    say(f"{name}: {shown}\nAll errors: page 'errors' of the documentation")
    return SUCCESS


def _named(text: str, known: dict[str, str]) -> str | None:
    """Returns the class that a traceback ends with, or else the first class in the text, or else that of a command."""
    raised = [each["name"] for each in _RAISED.finditer(text) if each["name"] in known]
    words = [*raised[-1:], *re.findall(r"\w+", text), *("UsageError" for _ in _PRINTED.finditer(text))]
    typed = text.strip().lower()
    return next(
        (word for word in words if word in known), next((each for each in known if each.lower() == typed), None)
    )


COMMAND = subcommand(
    "explain-error",
    run,
    "Explain an error: what happened, why, and what to do.",
    [click.Argument(["error"], nargs=-1, required=True, metavar="ERROR")],
    more="ERROR is the name of its class, with or without its message, or - for a traceback on standard input.",
)
