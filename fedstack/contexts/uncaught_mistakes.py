"""Makes a context the default, and explains mistakes in federated computations that nothing catches.

Computations are mostly built at the top of a script or in a cell, where fedstack is not among the callers of what
raises. Python hands an error that nothing catches to `sys.excepthook`, IPython tells of it by an event.
"""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from fedstack.computations.types import language
from fedstack.computations.types.language_mistakes import fix_of, note_fix


class _ExplainingHook:
    """Adds the note to what the hook before it prints."""

    def __init__(self, before: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note_fix(error)
        self._before(kind, error, trace)


def _explain_cell(result: Any) -> None:
    """Prints below the traceback, which IPython has printed by then."""
    fix = None if result.error_in_exec is None else fix_of(result.error_in_exec)
    if fix is not None:
        print(fix, file=sys.stderr)


def _explain_uncaught() -> None:
    if not isinstance(sys.excepthook, _ExplainingHook):
        sys.excepthook = _ExplainingHook(sys.excepthook)
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", _explain_cell)  # which does nothing if it is there already


def set_default_context(context: language.SyncContext | language.AsyncContext) -> None:
    """Makes a context this thread's default; from then on mistakes that end a script or a cell are explained."""
    language.set_default_context(context)
    _explain_uncaught()
