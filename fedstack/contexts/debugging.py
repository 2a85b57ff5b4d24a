"""Hides the frames between a user's lines from Python's debugger: those of fedstack and of the language.

IPython and pytest hide frames that say so with `__tracebackhide__`. Python's own debugger knows no such word, but what
`breakpoint()` starts can be another one.
"""

import contextlib
import inspect
import os
import pdb
import sys
from collections.abc import Generator
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import Any

_HIDDEN = ("fedstack", "federated_language", "asyncio", "contextlib")
# What only looks like fedstack's: the example is read as users' code is.
_SHOWN = "fedstack.demo"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# What fedstack calls. Users may step into it from a line of theirs.
_LIBRARIES = ("numpy", "attr", "attrs", "google", "threadpoolctl", *sys.stdlib_module_names)


class LeafDebugger(pdb.Pdb):
    """A debugger in whose stack there are only the frames of users, and which stops in no others."""

    def stop_here(self, frame: FrameType) -> bool:
        """Returns whether to stop in a frame. Called at each line, call and return."""
        return not _is_ours(frame) and super().stop_here(frame)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Returns the frames that are shown, each with its line, and the index of the current one."""
        stack, index = super().get_stack(f, t)
        current = stack[index] if stack else None
        shown = [entry for entry in stack if entry is current or not _is_hidden(entry[0])]
        return shown, 0 if current is None else shown.index(current)


def _is_hidden(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in _HIDDEN and not f"{name}.".startswith(f"{_SHOWN}.")


def _is_ours(frame: FrameType | None) -> bool:
    """Returns whether a frame is hidden, or one of a library on behalf of such a frame."""
    is_import = False  # whether an import would account for a frame further in
    while frame is not None and not _is_hidden(frame):
        name = str(frame.f_globals.get("__name__", ""))
        is_made = name.startswith("namedtuple_") or frame.f_code.co_filename.startswith("<attrs generated")
        if name == "importlib._bootstrap":
            is_import = False
        elif not is_made and name.partition(".")[0] not in _LIBRARIES:
            if not _is_installed(frame):
                return False
            is_import = True  # as hooks of imports do; a function of a user may be installed as well
        frame = frame.f_back
    return frame is not None and not is_import


def _is_installed(frame: FrameType) -> bool:
    return not _INSTALLED.isdisjoint(PurePath(frame.f_code.co_filename).parts)


@contextlib.contextmanager
def hiding_frames() -> Generator[None, None, None]:
    """Lets `breakpoint()` start a `LeafDebugger` in the block, unless a debugger has been chosen."""
    before: Any = sys.breakpointhook
    if before is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
        yield
        return
    sys.breakpointhook = _break
    try:
        yield
    finally:
        sys.breakpointhook = before


def _break(*_: Any, **__: Any) -> None:
    frame = inspect.currentframe()
    LeafDebugger().set_trace(None if frame is None else frame.f_back)
