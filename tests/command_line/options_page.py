"""Writes docs/options.md out of the commands. Run it after changing an option:

python tests/command_line/options_page.py
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from fedstack.__main__ import COMMANDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
# The text above is written by hand, the text below by this module.
MARK = "<!-- From here on written by tests/command_line/options_page.py -->\n"
# Options with a variable end their help with it and the default, as in [FEDSTACK_PORT=8000].
_VARIABLE = re.compile(r" \[FEDSTACK_\w+(?:=(?P<default>[^\]]*))?\]$")


def generated() -> str:
    """Returns the part of the page that lists the options of each command."""
    return "".join(f"{line}\n" for command in COMMANDS for line in _section(command))


def _section(command: click.Command) -> Iterator[str]:
    arguments = [f" {option.metavar}" for option in command.params if isinstance(option, click.Argument)]
    yield f"\n## `fedstack {command.name}{''.join(arguments)}`\n"
    yield f"{(command.help or '').partition(' In brackets ')[0]}\n"  # the table has columns for these
    yield "| option | default | what it says |"
    yield "| --- | --- | --- |"
    for option in command.params:
        if isinstance(option, click.Option):
            yield _row(option)


def _row(option: click.Option) -> str:
    names = [f"`{name} {option.metavar}`" if option.metavar else f"`{name}`" for name in option.opts]
    names += [f"`{name}`" for name in option.secondary_opts]
    text = option.help or ""
    found = _VARIABLE.search(text)
    default = found["default"] if found else option.default if isinstance(option.default, (int, float, str)) else None
    shown = "" if default is None or isinstance(default, bool) else f"`{_short(option.opts[0], str(default))}`"
    return f"| {', '.join(names)} | {shown} | {_VARIABLE.sub('', text)} |"


def _short(name: str, default: str) -> str:
    """Writes a number of bytes in the largest unit that divides it, or one more than it."""
    if not name.endswith("-bytes"):
        return default
    size = int(default) + int(default) % 2
    return f"{size >> 30} GiB" if size % (1 << 30) == 0 else f"{size >> 20} MiB"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(MARK)] + MARK + generated(), encoding="utf-8")
