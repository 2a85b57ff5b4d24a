"""Makes a context the default, and explains mistakes in federated computations that nothing catches.

Computations are mostly built at the top of a script or in a cell, where fedstack is not among the callers of what
raises. Python hands an error that nothing catches to `sys.excepthook`, IPython to a handler of exceptions.
"""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from fedstack.computations.types import language
from fedstack.computations.types.language_mistakes import fix_of, note_fix
from fedstack.foundations.traceback_filter import users_traceback


class _ExplainingHook:
    """Adds the note to what the hook before it prints."""

    def __init__(self, before: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note_fix(error)
        self._before(kind, error, trace)


def _explain_in_cell(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """Shows what ends a cell in the place of IPython: a mistake with the advice, and without the language's frames."""
    fix = fix_of(error)
    if fix is not None:
        note_fix(error)
        trace = users_traceback(trace, "federated_language")
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    if fix is not None and sys.version_info < (3, 11):  # exceptions have no notes
        print(fix, file=sys.stderr)


def _explain_uncaught() -> None:
    if not isinstance(sys.excepthook, _ExplainingHook):
        sys.excepthook = _ExplainingHook(sys.excepthook)
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and not shell.custom_exceptions:  # there is one handler, and the user's own comes first
        shell.set_custom_exc((Exception,), _explain_in_cell)


def set_default_context(context: language.SyncContext | language.AsyncContext) -> None:
    """Makes a context this thread's default; from then on mistakes that end a script or a cell are explained."""
    language.set_default_context(context)
    _explain_uncaught()
