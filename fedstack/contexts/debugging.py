"""Makes calls easy to debug: hides the frames of fedstack and the language from Python's debugger.

IPython and pytest skip frames that define `__tracebackhide__`. Python's own debugger shows these frames, so
`breakpoint()` starts a subclass of the debugger that skips them.
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

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.executors.folds.aggregate_state import ChecksZeros

_HIDDEN = ("fedstack", "federated_language", "asyncio", "contextlib")
# The demo is treated as user code.
_SHOWN = "fedstack.demo"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# Libraries that fedstack calls. Their frames are hidden only if fedstack called them: users may step into a library
# from their own code.
_LIBRARIES = ("numpy", "attr", "attrs", "google", "threadpoolctl", *sys.stdlib_module_names)


class LeafDebugger(pdb.Pdb):
    """A debugger that shows only the frames of user code, and stops only in these frames."""

    def stop_here(self, frame: FrameType) -> bool:
        """Returns whether to stop in `frame`. Called at each line, call and return."""
        return not _is_ours(frame) and super().stop_here(frame)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Returns the frames to show, each with its line number, and the index of the current frame."""
        stack, index = super().get_stack(f, t)
        current = stack[index] if stack else None
        shown = [entry for entry in stack if entry is current or not _is_hidden(entry[0])]
        return shown, 0 if current is None else shown.index(current)


def _is_hidden(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in _HIDDEN and not f"{name}.".startswith(f"{_SHOWN}.")


def _is_ours(frame: FrameType | None) -> bool:
    """Returns whether `frame` is hidden, or belongs to a library that a hidden frame called."""
    is_import = False  # whether a frame called by this frame may belong to an import hook
    while frame is not None and not _is_hidden(frame):
        name = str(frame.f_globals.get("__name__", ""))
        is_made = name.startswith("namedtuple_") or frame.f_code.co_filename.startswith("<attrs generated")
        if name == "importlib._bootstrap":
            is_import = False
        elif not is_made and name.partition(".")[0] not in _LIBRARIES:
            if not _is_installed(frame):
                return False
            is_import = True  # an import hook is in an installed package, but so may be a user's function
        frame = frame.f_back
    return frame is not None and not is_import


def _is_installed(frame: FrameType) -> bool:
    return not _INSTALLED.isdisjoint(PurePath(frame.f_code.co_filename).parts)


@contextlib.contextmanager
def debugging() -> Generator[None, None, None]:
    """Makes calls in the block easy to debug: see `hiding_frames` and `ChecksZeros`."""
    with hiding_frames(), current_scope().adding(ChecksZeros()).entered():
        yield


@contextlib.contextmanager
def hiding_frames() -> Generator[None, None, None]:
    """Makes `breakpoint()` start a `LeafDebugger` within the block, unless the user has chosen another debugger."""
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
