"""Cuts the frames of this package out of tracebacks: users look for their own lines there.

What the standard library does between our frames, such as loading a module or entering a context, belongs to them;
what it does for the user's function stays. Cutting them out of the errors themselves also frees what they have.
"""

import inspect
import os
import signal
from asyncio import CancelledError, Future
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from traceback import FrameSummary, StackSummary, TracebackException, extract_tb, format_list, walk_tb
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

from fedstack import errors

_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)
_PACKAGE = os.path.dirname(os.path.abspath(errors.__file__)) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = tuple(_STANDARD_LIBRARY + name + os.sep for name in ("site-packages", "dist-packages"))


def users_frames(frames: Iterable[FrameSummary]) -> Iterator[FrameSummary]:
    """Yields the frames that are neither this package's nor the standard library's on behalf of it."""
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
    """Returns the frames from the first of this package's on: what comes before that starts threads and programs."""
    ours = [index for index, frame in enumerate(frames) if frame.filename.startswith(_PACKAGE)]
    return frames[ours[0] :] if ours else frames


def without_frames(error: _E) -> _E:
    """Drops all frames from an error that nobody will print any more, and from all that it came from.

    Frames have locals: arguments and messages of any size, and often a task or an object that has the error. That is a
    circle, so without this each failed call would keep what it was about until the garbage collector comes.
    """
    for one in _chain(error):
        one.__traceback__ = None
    return error


def consume_exception(outcome: "Future[Any]") -> None:
    """Looks at an outcome that may not be asked for any more, as a callback of its future: asyncio would complain."""
    if not outcome.cancelled():
        outcome.exception()


class HasResult(Protocol):
    """A future, or anything else that has an outcome."""

    def result(self) -> object:
        """Returns the result, or raises the error."""
        ...


def drop_outcome(outcome: HasResult) -> None:
    """Drops the frames of an error that nobody gets, as a callback of its future or once that is done."""
    try:
        outcome.result()  # not exception(): futures keep a traceback of their own, and cancelled ones an error
    except BaseException as error:
        without_frames(error)


def without_own_frames(error: _E) -> _E:
    """Drops the frames of this package from an error that is kept or goes to the user, and from all that it came from.

    What is wrong is at the call, and in the message; and see `without_frames`.
    """
    for one in _chain(error):
        one.__traceback__ = _users_traceback(one.__traceback__)
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and all that it came from, each once: users may have made a circle of causes."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            waiting += [one.__cause__, one.__context__]
            yield one


def _users_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Returns what is left of a traceback without the frames that are not the user's."""
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    kept = list(_users(entries, lambda entry: entry.tb_frame.f_code.co_filename))
    for entry, following in zip(kept, [*kept[1:], None]):
        entry.tb_next = following
        _clear_callers(entry.tb_frame)
    return kept[0] if kept else None


def users_traceback(traceback: TracebackType | None, package: str) -> TracebackType | None:
    """Returns a traceback without the frames of an installed package, and of what is installed beside it.

    The first frame stays, whose it may be: it is that of whoever caught the error, and knows that.

    Args:
      traceback: The traceback. Its entries are linked anew.
      package: The package. A traceback in which it does not occur stays as it is.
    """
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    paths = [PurePath(entry.tb_frame.f_code.co_filename).parts for entry in entries]
    folders = {parts[: parts.index(package)] for parts in paths if package in parts}
    kept = entries[:1]
    kept += [entry for entry, parts in zip(entries[1:], paths[1:]) if not any(parts[: len(f)] == f for f in folders)]
    for entry, following in zip(kept, [*kept[1:], None]):
        entry.tb_next = following
    return kept[0] if kept else None


def _clear_callers(frame: FrameType) -> None:
    """Clears the locals of our frames that called a user's, which refers to them, as far as they have ended."""
    caller = frame.f_back
    while caller is not None and caller.f_back is not None:  # without it may be a coroutine's that is to go on
        if caller.f_code.co_filename.startswith(_PACKAGE):
            try:
                caller.clear()
            except RuntimeError:  # it runs
                return
        caller = caller.f_back


def interrupts(error: BaseException) -> bool:
    """Returns whether an exception came over a function of the user's, and not out of it.

    That is Ctrl-C, the end of a debugger's session, or what the handler of a signal raised.

    A cancellation that comes out of a function is its own (of a loop inside it): that of a caller never goes in.
    """
    if isinstance(error, CancelledError):
        return False
    if isinstance(error, (KeyboardInterrupt, BdbQuit)):
        return True
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(inspect.unwrap(handler), "__code__", None) for handler in handlers if callable(handler)}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def users_lines(error: BaseException) -> str:
    """Returns the user's own lines of a traceback for the end of a message: nothing, or a new line and they."""
    lines = "".join(format_list(list(users_frames(extract_tb(error.__traceback__))))).rstrip()
    return f"\n{lines}" if lines else ""


def without_calling_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames that it begins with: this package's, and what lies between those."""
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
