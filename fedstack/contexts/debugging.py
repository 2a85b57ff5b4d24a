"""Hides the frames of fedstack and the language from Python's debugger.

IPython and pytest hide frames with `__tracebackhide__`. Python's own debugger does not, but `breakpoint()` can start
another debugger.
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
# The example counts as user code.
_SHOWN = "fedstack.demo"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# Libraries that fedstack calls. Users may step into them from their own lines.
_LIBRARIES = ("numpy", "attr", "attrs", "google", "threadpoolctl", *sys.stdlib_module_names)


class LeafDebugger(pdb.Pdb):
    """A debugger that shows only the frames of users, and stops only in those."""

    def stop_here(self, frame: FrameType) -> bool:
        """Returns whether to stop in a frame. Called at each line, call and return."""
        return not _is_ours(frame) and super().stop_here(frame)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Returns the frames to show, each with its line, and the index of the current one."""
        stack, index = super().get_stack(f, t)
        current = stack[index] if stack else None
        shown = [entry for entry in stack if entry is current or not _is_hidden(entry[0])]
        return shown, 0 if current is None else shown.index(current)


def _is_hidden(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in _HIDDEN and not f"{name}.".startswith(f"{_SHOWN}.")


def _is_ours(frame: FrameType | None) -> bool:
    """Returns whether a frame is hidden, or of a library that a hidden frame calls."""
    is_import = False  # whether a frame further in may be that of an import hook
    while frame is not None and not _is_hidden(frame):
        name = str(frame.f_globals.get("__name__", ""))
        is_made = name.startswith("namedtuple_") or frame.f_code.co_filename.startswith("<attrs generated")
        if name == "importlib._bootstrap":
            is_import = False
        elif not is_made and name.partition(".")[0] not in _LIBRARIES:
            if not _is_installed(frame):
                return False
            is_import = True  # import hooks are installed packages; but a user's function may be, too
        frame = frame.f_back
    return frame is not None and not is_import


def _is_installed(frame: FrameType) -> bool:
    return not _INSTALLED.isdisjoint(PurePath(frame.f_code.co_filename).parts)


@contextlib.contextmanager
def hiding_frames() -> Generator[None, None, None]:
    """Makes `breakpoint()` start a `LeafDebugger` in the block, unless the user has chosen a debugger."""
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
