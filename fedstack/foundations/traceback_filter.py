"""Cuts the frames of this package out of tracebacks: users look for their own lines there.

Frames of the standard library between ours, such as those that load a module or enter a context, are cut too; those
that a user's function calls stay. Cutting frames out of the errors themselves also frees their locals.
"""

import inspect
import linecache
import os
import re
import signal
import sys
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
    """Yields the frames that are neither this package's nor of the standard library on its behalf."""
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
    """Returns the frames from the first of this package on: those before it start threads and programs."""
    ours = [index for index, frame in enumerate(frames) if frame.filename.startswith(_PACKAGE)]
    return frames[ours[0] :] if ours else frames


def without_frames(error: _E) -> _E:
    """Drops all frames from an error that is not printed any more, and from its causes and contexts.

    The locals of frames are arguments and messages of any size, and often an object that references the error. In such
    a cycle the data of each failed call would stay in memory until the garbage collector runs.
    """
    for one in _chain(error):
        one.__traceback__ = None
    return error


def consume_exception(outcome: "Future[Any]") -> None:
    """Retrieves the exception of a future, as its callback, so that asyncio does not log that it never was."""
    if not outcome.cancelled():
        outcome.exception()


def drop_outcome(outcome: Any) -> None:
    """Drops the frames of the error of a future whose result is not used, as its callback or once it is done."""
    try:
        outcome.result()  # not exception(): futures keep a traceback of their own, and cancelled ones an error
    except BaseException as error:
        without_frames(error)


def without_own_frames(error: _E) -> _E:
    """Drops the frames of this package from an error that is stored or raised to the user, and from what caused it.

    The message and the user's call say what is wrong; and see `without_frames`.
    """
    for one in _chain(error):
        one.__traceback__ = _users_traceback(one.__traceback__)
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes and contexts, each once: users may have made a cycle of causes."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            waiting += [one.__cause__, one.__context__]
            yield one


def _users_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback with the user's frames only."""
    kept = list(_users(_entries(traceback), lambda entry: entry.tb_frame.f_code.co_filename))
    for entry in kept:
        _clear_callers(entry.tb_frame)
    return _linked(kept)


def users_traceback(traceback: TracebackType | None, package: str) -> TracebackType | None:
    """Returns a traceback without the frames of an installed package, and of other packages installed beside it.

    The first frame, that of the code which caught the error, always stays.

    Args:
      traceback: The traceback. Its entries are linked anew.
      package: The package. A traceback without it stays as it is.
    """
    entries = _entries(traceback)
    paths = [PurePath(entry.tb_frame.f_code.co_filename).parts for entry in entries]
    folders = {parts[: parts.index(package)] for parts in paths if package in parts}
    rest = zip(entries[1:], paths[1:])
    kept = [entry for entry, parts in rest if not any(parts[: len(folder)] == folder for folder in folders)]
    return _linked(entries[:1] + kept)


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
    """Clears the locals of this package's frames that called a user's frame, if they have ended."""
    caller = frame.f_back
    while caller is not None and caller.f_back is not None:  # without f_back it may be a suspended coroutine's
        if caller.f_code.co_filename.startswith(_PACKAGE):
            try:
                caller.clear()
            except RuntimeError:  # it is running
                return
        caller = caller.f_back


def interrupts(error: BaseException) -> bool:
    """Returns whether an exception interrupted a user's function, rather than being raised by it.

    Ctrl-C does, the end of a debugger's session, and an exception of a signal handler. A cancellation does not: one
    that a function raises comes from a loop inside it, as a caller's cancellation never enters the function.
    """
    if isinstance(error, CancelledError):
        return False
    if isinstance(error, (KeyboardInterrupt, BdbQuit)):
        return True
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(inspect.unwrap(handler), "__code__", None) for handler in handlers if callable(handler)}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def users_lines(error: BaseException) -> str:
    """Returns the user's frames of a traceback for the end of a message: a line feed and the frames, or nothing."""
    lines = "".join(format_list(list(users_frames(extract_tb(error.__traceback__))))).rstrip()
    return f"\n{lines}" if lines else ""


def without_calling_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without its outermost frames as far as they are this package's or between such."""
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
    """Leaves only the user's frames in a traceback that is to be printed, and in those of causes and contexts.

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


def with_source_lines(text: str) -> str:
    """Adds missing source lines to the text of a traceback, those of notebook cells and of the program itself.

    Other processes have the functions of a notebook, but not its cells. Other files are not read: the author of the
    text may be untrusted, and the result may be passed on.

    Args:
      text: A traceback as Python prints it, or a message that ends in one.
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
    """Returns a line of a cell or of the program; empty if there is none."""
    entry = linecache.cache.get(filename)
    is_cell = entry is not None and len(entry) == 4 and entry[1] is None  # it has no file, so no modification time
    if is_cell or filename == getattr(sys.modules.get("__main__"), "__file__", None):
        return linecache.getline(filename, number).strip()
    return ""
