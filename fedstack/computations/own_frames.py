"""Cuts the frames of this package out of tracebacks: users look for their own lines there.

What the standard library does between our frames, such as loading a module or entering a context, belongs to them;
what it does for the user's function stays.
"""

import os
from collections.abc import Iterable, Iterator
from traceback import FrameSummary, StackSummary, TracebackException, extract_tb, format_list
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = tuple(_STANDARD_LIBRARY + name + os.sep for name in ("site-packages", "dist-packages"))


def users_frames(frames: Iterable[FrameSummary]) -> Iterator[FrameSummary]:
    """Yields the frames that are neither this package's nor the standard library's on behalf of it."""
    is_ours = False
    for frame in frames:
        if _is_standard(frame.filename):
            if is_ours:
                continue
        else:
            is_ours = frame.filename.startswith(_PACKAGE)
        if not is_ours:
            yield frame


def users_lines(error: BaseException) -> str:
    """Returns the user's own lines of a traceback for the end of a message: nothing, or a new line and they."""
    lines = "".join(format_list(list(users_frames(extract_tb(error.__traceback__))))).rstrip()
    return f"\n{lines}" if lines else ""


def without_calling_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of this package that it begins with: what called the user's function."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        traceback = traceback.tb_next
    return traceback


def cut_own_frames(printed: TracebackException) -> bool:
    """Leaves only the user's frames in what is to be printed of an exception, and of those that it came from.

    Returns:
      Whether any frames are left.
    """
    has_frames = False
    waiting: list[TracebackException | None] = [printed]
    while waiting:
        exception = waiting.pop()
        if exception is not None:
            exception.stack = StackSummary.from_list(list(users_frames(exception.stack)))
            has_frames = has_frames or bool(exception.stack)
            waiting += [exception.__cause__, exception.__context__]
    return has_frames


def _is_standard(filename: str) -> bool:
    if filename.startswith("<frozen "):
        return True
    return filename.startswith(_STANDARD_LIBRARY) and not filename.startswith(_INSTALLED)
