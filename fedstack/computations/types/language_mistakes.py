"""Adds advice to the language's errors about mistakes in federated computations. `docs/troubleshooting.md` lists it.

The language raises while it builds a computation. fedstack sees the error only where it is among the callers: a leaf
that is called, a block of a context, the end of the program. There the advice becomes a note on the language's own
exception. Most computations are built at the top of a script or in a cell, so an error that nothing catches gets its
note from a hook: Python passes it to `sys.excepthook`, IPython to a handler of exceptions.

The language keeps contexts per thread. One object is at the bottom of every thread's stack until another default is set
there. It is the language's own, and replaced by a `MissingContext` when the first leaf or context is made.
"""

import re
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import PurePath
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from fedstack.computations.types import language
from fedstack.computations.types.language import AsyncContext, SyncContext, get_context_stack
from fedstack.errors import ContextError, FedstackError
from fedstack.foundations.traceback_filter import users_traceback


class Mistake(NamedTuple):
    """A mistake that the language detects.

    Attributes:
      message: A pattern in its message.
      advice: What to do, phrased to follow a semicolon.
    """

    message: re.Pattern[str]
    advice: str


_UNPLACED = r"must be a FederatedType or implicitly convertible to a FederatedType \(got a "
_MAPPED = r"expects a parameter of type {}, but member constituents of the mapped value are of incompatible type {}"
# The first one that matches applies.
MISTAKES = tuple(
    Mistake(re.compile(message, re.DOTALL), advice)
    for message, advice in {
        f"{_UNPLACED}(?=.*@SERVER)(?=.*@CLIENTS)|^federated_zip requires .* the same placement": (
            "send what is at the server to the clients first, with fl.federated_broadcast"
        ),
        _UNPLACED + r"\(": "give the function first and the value second, fl.federated_map(function, value)",
        _UNPLACED + ".*@(CLIENTS|SERVER)": (
            "place the constants beside it where it is, fl.federated_value(constant, fl.CLIENTS)"
        ),
        _UNPLACED: (
            "declare parameters with a placement, fl.FederatedType(type, fl.CLIENTS), place constants with "
            "fl.federated_value, and call fl.federated_... only in the body of a federated computation"
        ),
        r"`federated_language\.Value`, found <class '(builtin_)?(function|method)": (
            "decorate the function with fedstack.python_computation"
        ),
        r"`federated_language\.Value`, found <class '(numpy\.(ufunc|_Array\w+)|functools\.\w+|type)'": (
            "call it in a function of your own, and decorate that with fedstack.python_computation"
        ),
        r"`federated_language\.Value`, found <class ": (
            "call it, if it is a function, in one of your own that is decorated with fedstack.python_computation, and "
            "give constants as numbers or NumPy arrays"
        ),
        "has no attribute 'default_all_equal'|^Unsupported placement |missing .* argument: 'placement'": (
            "give the placement itself, fl.CLIENTS or fl.SERVER"
        ),
        r"^Operator (iter|len|getitem)\(\) is only .*@CLIENTS": (
            "what is at the clients is no list here: map a function over the value of each client, "
            "fl.federated_map(function, value), or aggregate it, with fl.federated_sum for example"
        ),
        r"'Value'|of type Value which|do not support boolean|^Operator \w+\(\) is only|of non-structural type": (
            "a federated value has no data before the computation runs: do the work in a function that is decorated "
            "with fedstack.python_computation, and map it with fl.federated_map"
        ),
        _MAPPED.format("(?P<member>.+)", r"<(?P=member)>\.$"): (
            "[type] declares a struct with one member: write the type without the list, or map its member, value[0]"
        ),
        _MAPPED.format("<.+,.+>", r"[^<]+$") + r"|^federated_map\(\) takes 2 positional arguments but": (
            "the function has several parameters: map it over a tuple with a value for each, "
            "fl.federated_map(function, (a, b))"
        ),
        _MAPPED.format(".+", ""): "declare the same type for both, or map a function first that converts",
        "with the average operator": (
            "map a function first that returns floating-point numbers, such as np.float32(x)"
        ),
        "is not sum-compatible because .* is not fully defined": (
            "declare the sizes of what is summed, such as (np.float32, [10]) in place of (np.float32, [None])"
        ),
        "^Expected `zero` to be assignable": "write the zero in the type of the sum, such as np.float32(0)",
        "with the (min|max) operator|is not sum-compatible|is not a federated integer or floating-point": (
            "map a function first that returns numbers, such as np.int32(x)"
        ),
        "should be placed at CLIENTS, but it is placed at SERVER": (
            "what is at the server is one value: it has been aggregated, or it is to be broadcast first"
        ),
        "should be placed at SERVER, but it is placed at CLIENTS": (
            "aggregate what is at the clients first, with fl.federated_sum or fl.federated_mean for example"
        ),
        "^Expected [^@]+ to be assignable to .*@(CLIENTS|SERVER)": (
            "do not call the function on a federated value: map it, fl.federated_map(function, value)"
        ),
        "construct an intrinsic in context|should only be used in contexts which": (
            "call fl.federated_... only in the body of a function that is decorated with fl.federated_computation"
        ),
        r"^Function with \d+ parameters": (
            "write one type per parameter, without a list: @fl.federated_computation(type, type)"
        ),
        r"returned `None` \(or didn't explicitly `return` at all\)": (
            "let the function that is decorated return a value; the line in the message is the language's own"
        ),
        "^(Positional|Keyword) arguments at .* not used|^Missing argument `|^Argument .* specified twice|"
        "^Declared a parameter .* got no arguments|single positional argument, but|^Was not expecting any arguments": (
            "give one value for each parameter, by position, or by name if there are several"
        ),
        "^Unable to interpret an argument of type .* as a type spec": (
            "write types such as np.float32, or (np.float32, [3]) for arrays of three"
        ),
        "^Error parsing message with type 'federated_language": (
            "computations call each other too deeply: decorate only the outermost function, and leave those that it "
            "calls undecorated"
        ),
    }.items()
)


# The classes of results.
_RESULT_AWAITED = re.compile(
    r"^object (numpy\.\w+|dict|OrderedDict|list|tuple|bytes) can't be used in 'await' expression"
)
_is_explained = False


def advice_on(error: BaseException) -> str | None:
    """Returns the advice on an error that the language raised for a known mistake; `None` for other errors."""
    if isinstance(error, FedstackError) or not _is_of_language(error):
        return None
    try:
        text = str(error)
    except Exception:  # its class may be the user's
        return None
    return next((mistake.advice for mistake in MISTAKES if mistake.message.search(text)), None)


def _is_of_language(error: BaseException) -> bool:
    """Returns whether the language raised an error, or called the function that did."""
    frames = traceback.walk_tb(error.__traceback__)
    return any("federated_language" in PurePath(frame.f_code.co_filename).parts for frame, _ in frames)


def _advice_on_awaiting(error: BaseException) -> str | None:
    """Returns the advice where a result is awaited, or a coroutine is used as if it were the result."""
    if not isinstance(error, (TypeError, AttributeError)):
        return None
    text, context = str(error), get_context_stack().current
    if isinstance(context, SyncContext) and _RESULT_AWAITED.search(text):
        return (
            "a synchronous context returns the results of computations: leave out `await`, or use an asynchronous one, "
            "fedstack.set_async_local_execution_context()"
        )
    if isinstance(context, AsyncContext) and "'coroutine'" in text:
        return "an asynchronous context returns coroutines: write `await` before the call of the computation"
    return None


def fix_of(error: BaseException) -> str | None:
    """Returns the advice on an error as a sentence, or `None`."""
    advice = advice_on(error) or _advice_on_awaiting(error)
    return None if advice is None else f"To fix it: {advice}."


def note_fix(error: BaseException) -> None:
    """Adds the advice on an error to it as a note, once. Before Python 3.11 there are no notes."""
    if sys.version_info >= (3, 11):
        fix = fix_of(error)
        if fix is not None and fix not in getattr(error, "__notes__", ()):
            error.add_note(fix)


class MissingContext(SyncContext):
    """The context of threads without one: it refuses calls."""

    def invoke(self, comp: object, arg: object) -> NoReturn:
        """Raises an error that says how to get a context."""
        name = getattr(comp, "__name__", None)
        called = "A computation" if name is None else repr(name)
        raise ContextError(
            f"{called} was called in the thread {threading.current_thread().name!r}, which has no execution context; "
            "call fedstack.set_sync_local_execution_context(), or that of your workers, there first or, to share one "
            "context among threads, make it with a fedstack.create_... function, and write `with "
            "fedstack.use_context(context):` in each"
        )


def explain_missing_contexts() -> None:
    """Makes calls in threads without a context raise a helpful error, if their default context is the language's."""
    global _is_explained
    if _is_explained:
        return
    found: list[object] = []
    # A new thread has the shared default only; this one may have others.
    look = threading.Thread(target=lambda: found.append(get_context_stack().current), daemon=True)
    try:
        look.start()
    except (RuntimeError, MemoryError):
        return  # no thread could start: the next leaf or context tries again
    look.join()
    _is_explained = True
    for default in found:
        kind = type(default)
        if kind.__name__ == "RuntimeErrorContext" and kind.__module__.startswith("federated_language."):
            default.__class__ = MissingContext


class _ExplainingHook:
    """An exception hook that adds the note, and then calls the previous hook."""

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
    """Shows the error of a cell, instead of IPython: a mistake with the advice and without the language's frames."""
    fix = fix_of(error)
    if fix is not None:
        note_fix(error)
        trace = users_traceback(trace, "federated_language")
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    if fix is not None and sys.version_info < (3, 11):  # exceptions have no notes
        print(fix, file=sys.stderr)


def set_default_context(context: SyncContext | AsyncContext) -> None:
    """Makes a context this thread's default; from then on mistakes that end a script or a cell are explained."""
    language.set_default_context(context)
    if not isinstance(sys.excepthook, _ExplainingHook):
        sys.excepthook = _ExplainingHook(sys.excepthook)
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and not shell.custom_exceptions:  # there is only one handler, and the user's own has priority
        shell.set_custom_exc((Exception,), _explain_in_cell)
