"""Removes the frames of this package from tracebacks, so that users see the lines of their own code.

Frames of the standard library that this package calls, such as the frames that load a module or enter a context, are
removed as well. Frames of the standard library that a user's function calls are kept. Removing frames from an error
also frees the local variables of the frames.
"""

import inspect
import linecache
import os
import re
import signal
import sys
import threading
from asyncio import CancelledError, Future
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from traceback import FrameSummary, StackSummary, TracebackException, extract_tb, format_list, walk_tb
from types import FrameType, TracebackType
from typing import Any, TypeVar

from fedstack import errors

_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)
_PACKAGE = os.path.dirname(os.path.abspath(errors.__file__)) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = tuple(_STANDARD_LIBRARY + name + os.sep for name in ("site-packages", "dist-packages"))
_FRAME = re.compile(r'  File "(.+)", line (\d{1,9}), in .*')


def users_frames(frames: Iterable[FrameSummary]) -> Iterator[FrameSummary]:
    """Yields the frames except those of this package and of the standard library functions that this package calls."""
    return _users(frames, lambda frame: frame.filename)


def _users(frames: Iterable[_T], filename: Callable[[_T], str]) -> Iterator[_T]:
    is_ours = False
    for frame in frames:
        if _is_standard(filename(frame)):
            if is_ours:
                continue
        else:
            is_ours = filename(frame).startswith(_PACKAGE)
        if not is_ours:
            yield frame


def called_by_us(frames: Sequence[FrameSummary]) -> Sequence[FrameSummary]:
    """Returns the frames starting with the first frame of this package. Earlier frames start threads and programs."""
    ours = [index for index, frame in enumerate(frames) if frame.filename.startswith(_PACKAGE)]
    return frames[ours[0] :] if ours else frames


def without_frames(error: _E) -> _E:
    """Drops the tracebacks of an error that will not be printed, and of its causes and contexts. Returns the error.

    The local variables of frames include arguments and messages of any size, and often an object that references the
    error. Such a reference cycle would keep the data of each failed call in memory until the garbage collector runs.
    """
    for one in error_chain(error):
        one.__traceback__ = None
    return error


def consume_exception(outcome: "Future[Any]") -> None:
    """A done callback that retrieves the exception of a future, so that asyncio does not log it as never retrieved."""
    if not outcome.cancelled():
        outcome.exception()


def drop_outcome(outcome: Any) -> None:
    """Drops the traceback of a completed future, if the future failed. For futures whose results are not used."""
    try:
        outcome.result()  # exception() would not release the future's own traceback or cancellation error
    except BaseException as error:
        without_frames(error)


def without_own_frames(error: _E) -> _E:
    """Drops this package's frames from an error, its causes and its contexts. Returns the error.

    Errors that are stored or raised to the user need no frames of this package: the message and the user's own frames
    explain the mistake. `without_frames` describes why dropping the local variables matters.
    """
    for one in error_chain(error):
        one.__traceback__ = _users_traceback(one.__traceback__)
    return error


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, its causes and its contexts. Each is yielded once, even if users created a cycle of causes."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            waiting += [one.__cause__, one.__context__]
            yield one


def _users_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback that has only the user's frames."""
    kept = list(_users(_entries(traceback), lambda entry: entry.tb_frame.f_code.co_filename))
    for entry in kept:
        _clear_callers(entry.tb_frame)
    return _linked(kept)


def users_traceback(traceback: TracebackType | None, package: str) -> TracebackType | None:
    """Returns a traceback without the frames of an installed package and of other packages in the same directory.

    The first frame, which belongs to the code that caught the error, is always kept.

    Args:
      traceback: The traceback. Its entries are modified.
      package: The name of the package. A traceback without frames of this package is returned unchanged.
    """
    entries = _entries(traceback)
    paths = [PurePath(entry.tb_frame.f_code.co_filename).parts for entry in entries]
    folders = {parts[: parts.index(package)] for parts in paths if package in parts}
    rest = zip(entries[1:], paths[1:])
    kept = [entry for entry, parts in rest if not any(parts[: len(folder)] == folder for folder in folders)]
    return _linked(entries[:1] + kept)


def without_frames_in(folder: str, traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of the files in a folder. Its entries are modified."""
    return _linked([one for one in _entries(traceback) if not one.tb_frame.f_code.co_filename.startswith(folder)])


def _entries(traceback: TracebackType | None) -> list[TracebackType]:
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    return entries


def _linked(entries: Sequence[TracebackType]) -> TracebackType | None:
    for entry, following in zip(entries, [*entries[1:], None]):
        entry.tb_next = following
    return entries[0] if entries else None


def _clear_callers(frame: FrameType) -> None:
    """Clears the local variables of finished frames of this package that called a user's frame."""
    caller = frame.f_back
    while caller is not None and caller.f_back is not None:  # without f_back, it may be a suspended coroutine
        if caller.f_code.co_filename.startswith(_PACKAGE):
            try:
                caller.clear()
            except RuntimeError:  # the frame is still running
                return
        caller = caller.f_back


_SIGNALS = tuple(map(int, signal.valid_signals()))
# Without the conversion of each result to an enumeration, which would take 60 µs for all signals.
_handler_of = inspect.unwrap(signal.getsignal)


def interrupts(error: BaseException) -> bool:
    """Returns whether an exception interrupted a user's function, as opposed to being raised by the function.

    Ctrl-C, the end of a debugging session and an exception of a signal handler are interruptions. A cancellation is
    not: the cancellation of a call never enters the function, so a `CancelledError` comes from the function's own loop.
    """
    if isinstance(error, CancelledError):
        return False
    if isinstance(error, (KeyboardInterrupt, BdbQuit)):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False  # Python calls signal handlers on the main thread only
    handlers = map(_handler_of, _SIGNALS)
    codes = {getattr(inspect.unwrap(handler), "__code__", None) for handler in handlers if callable(handler)}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def users_lines(error: BaseException) -> str:
    """Returns a line feed and the user's frames of an error, to append to a message; empty if there are none."""
    lines = "".join(format_list(list(users_frames(extract_tb(error.__traceback__))))).rstrip()
    return f"\n{lines}" if lines else ""


def without_callers(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback from the first frame of this package on; the whole traceback if it has none."""
    entries = _entries(traceback)
    ours = [entry for entry in entries if entry.tb_frame.f_code.co_filename.startswith(_PACKAGE)]
    return ours[0] if ours else traceback


def without_calling_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Removes the outermost frames of this package from a traceback and returns the remaining traceback.

    Outermost frames of the standard library are removed only if a frame of this package follows them.
    """
    following = traceback
    while following is not None:
        filename = following.tb_frame.f_code.co_filename
        following = following.tb_next
        if filename.startswith(_PACKAGE):
            traceback = following
        elif not _is_standard(filename):
            break
    return traceback


def cut_own_frames(printed: TracebackException) -> bool:
    """Removes all frames but the user's from a formatted exception and from its causes and contexts.

    Returns:
      Whether any frames remain.
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


def is_of_user(frame: FrameType) -> bool:
    """Returns whether a frame is neither of this package nor of the standard library."""
    filename = frame.f_code.co_filename
    return not (filename.startswith(_PACKAGE) or _is_standard(filename))


def _is_standard(filename: str) -> bool:
    if filename.startswith("<frozen "):
        return True
    return filename.startswith(_STANDARD_LIBRARY) and not filename.startswith(_INSTALLED)


def with_source_lines(text: str) -> str:
    """Returns the text of a traceback, with missing source lines of notebook cells and of the main program filled in.

    A traceback from another process lacks these lines, because the process has the functions of a notebook but not its
    cells. No other files are read: the author of the text may be untrusted, and the result may be forwarded.

    Args:
      text: A traceback in the format that Python prints, or a message that ends with a traceback.
    """
    lines = text.split("\n")
    made: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""]):
        made.append(line)
        frame = _FRAME.fullmatch(line)
        if frame is not None and not following.startswith("    "):
            source = _line(frame[1], int(frame[2]))
            made += [f"    {source}"] if source else []
    return "\n".join(made)


def _line(filename: str, number: int) -> str:
    """Returns a source line of a notebook cell or of the main program; empty if the line is not found."""
    entry = linecache.cache.get(filename)
    is_cell = entry is not None and len(entry) == 4 and entry[1] is None  # cells have no mtime
    if is_cell or filename == getattr(sys.modules.get("__main__"), "__file__", None):
        return linecache.getline(filename, number).strip()
    return ""
