"""Adds to errors that end a script, a thread or a cell of a notebook what to do, and shows the users' frames only.

A hook does this: `sys.excepthook` and `threading.excepthook` in Python, an exception handler in IPython. Errors of the
language get the advice on known mistakes (`language_mistakes.py`), and errors of fedstack the command that explains
them. `python -X dev` shows all frames.
"""

import builtins
import inspect
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

from fedstack.computations.types.language import SyncContext
from fedstack.computations.types.language_mistakes import fix_of, note_fix
from fedstack.errors import FedstackError
from fedstack.foundations.traceback_filter import error_chain, users_traceback, without_frames_in, without_own_frames

_LANGUAGE = os.path.join(os.path.dirname(os.path.dirname(inspect.getfile(SyncContext))), "")  # federated_language/
_LANGUAGE_NAME = "federated_language"
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.10 has none


def explain_uncaught_errors() -> None:
    """Installs the hooks. It does so again if another hook has come since, which is then called, too."""
    if not isinstance(sys.excepthook, _ExplainingHook):
        sys.excepthook = _ExplainingHook(sys.excepthook)
    if not isinstance(threading.excepthook, _ExplainingThreadHook):
        threading.excepthook = _ExplainingThreadHook(threading.excepthook)
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and not shell.custom_exceptions:  # IPython has only one handler, and the user's has priority
        shell.set_custom_exc((Exception,), _explain_in_cell)


def _shown(error: FedstackError) -> tuple[TracebackType | None, str]:
    """Adds to an error of fedstack which command explains it, and leaves the users' frames only.

    Returns:
      The traceback, and the line with the command.
    """
    # A class of users is explained by the class that it extends.
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == FedstackError.__module__)
    line = f"More about this error: fedstack explain-error {name}"
    if sys.version_info >= (3, 11) and line not in getattr(error, "__notes__", ()):
        error.add_note(line)
    if not sys.flags.dev_mode:
        error.__traceback__ = without_frames_in(_LANGUAGE, without_own_frames(error).__traceback__)
    return error.__traceback__, line


class _ExplainingHook:
    """An exception hook that adds a note and then calls the previous hook."""

    def __init__(self, before: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        trace, note = _explained(error, trace)
        self._before(kind, error, trace)
        _say(note)


class _ExplainingThreadHook:
    """An exception hook of threads that adds a note and then calls the previous hook."""

    def __init__(self, before: Callable[[threading.ExceptHookArgs], object]) -> None:
        self._before = before

    def __call__(self, args: threading.ExceptHookArgs) -> None:
        error, note = args.exc_value, None
        if error is not None:  # Python drops errors of threads that outlive the interpreter
            trace, note = _explained(error, args.exc_traceback)
            args = threading.ExceptHookArgs((args.exc_type, error, trace, args.thread))
        self._before(args)
        _say(note)


def _explained(error: BaseException, trace: TracebackType | None) -> tuple[TracebackType | None, str | None]:
    """Adds a note to an error that is not caught; returns the traceback to show, and the note."""
    try:
        if isinstance(error, _GROUP):  # as of a task group
            for one in cast("tuple[BaseException, ...]", cast(Any, error).exceptions):
                one.__traceback__, _ = _explained(one, one.__traceback__)
            return trace, None
        return _shown(error) if isinstance(error, FedstackError) else _advised(error, trace)
    except Exception:  # whatever the methods of a user's exception class do, the error is shown
        return trace, None


def _advised(error: BaseException, trace: TracebackType | None) -> tuple[TracebackType | None, str | None]:
    """Adds the advice to a known mistake, and leaves out the language's frames, and its own errors."""
    note = fix_of(error)
    note_fix(error)
    if note is None or sys.flags.dev_mode:
        return trace, note
    cause = error.__cause__ or error.__context__
    was_raised = cause is not None and cause.__traceback__ is not None
    for one in error_chain(error):
        if one is not error:
            one.__traceback__ = without_frames_in(_LANGUAGE, one.__traceback__)
    if cause is not None and was_raised and not (cause.__traceback__ or cause.__cause__ or cause.__context__):
        error.__cause__ = None  # it was raised and caught by the language, and by nobody else
    error.__traceback__ = trace = users_traceback(trace, _LANGUAGE_NAME)
    return trace, note


def _explain_in_cell(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """Handles exceptions of cells for IPython, which shows those that have no advice as it would without this."""
    trace, note = _explained(error, trace)
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    _say(note)


def _say(note: str | None) -> None:
    """Prints a note where exceptions have none."""
    if note is not None and sys.version_info < (3, 11):
        print(note, file=sys.stderr)
