"""Adds the advice in `docs/troubleshooting.md` to the language's errors about mistakes in federated computations.

The language raises these errors while it builds a computation. fedstack sees an error only if fedstack is among the
callers: when a leaf is called, in a `with` block of a context, or at the end of the program. There it adds the advice
to the language's exception as a note. Most computations are built at the top level of a script or in a notebook cell;
`uncaught_errors.py` adds the note to errors that are not caught there.

The language keeps one stack of contexts per thread. All threads share the same default context at the bottom of their
stacks, until a thread sets another default. When the first leaf or context is created, fedstack turns this shared
default, which is an object of the language, into a `MissingContext`.
"""

import re
import sys
import threading
import traceback
from pathlib import PurePath
from typing import NamedTuple, NoReturn

from fedstack.computations.types.language import AsyncContext, SyncContext, get_context_stack
from fedstack.errors import ContextError, FedstackError


class Mistake(NamedTuple):
    """A mistake that the language detects.

    Attributes:
      message: A pattern to search for in the language's error message.
      advice: The remedy, phrased so that it can follow a semicolon or colon.
    """

    message: re.Pattern[str]
    advice: str


_UNPLACED = r"must be a FederatedType or implicitly convertible to a FederatedType \(got a "
_MAPPED = r"expects a parameter of type {}, but member constituents of the mapped value are of incompatible type {}"
# The order matters, because the first mistake whose pattern matches applies.
MISTAKES = tuple(
    Mistake(re.compile(message, re.DOTALL), advice)
    for message, advice in {
        f"{_UNPLACED}(?=.*@SERVER)(?=.*@CLIENTS)|^federated_zip requires .* the same placement": (
            "send the server's value to the clients first, with fl.federated_broadcast"
        ),
        _UNPLACED + r"\(": "pass the function first and the value second, fl.federated_map(function, value)",
        _UNPLACED + ".*@(CLIENTS|SERVER)": (
            "give the constants the same placement as the federated value, fl.federated_value(constant, fl.CLIENTS)"
        ),
        _UNPLACED: (
            "declare parameters with a placement, fl.FederatedType(type, fl.CLIENTS), place constants with "
            "fl.federated_value, and call fl.federated_... only in the body of a federated computation"
        ),
        r"`federated_language\.Value`, found <class '(builtin_)?(function|method)": (
            "decorate the function with fedstack.python_computation"
        ),
        r"`federated_language\.Value`, found <class '(numpy\.(ufunc|_Array\w+)|functools\.\w+|type)'": (
            "call it in a function of your own, and decorate your function with fedstack.python_computation"
        ),
        r"`federated_language\.Value`, found <class ": (
            "if it is a function, call it in a function of your own that is decorated with "
            "fedstack.python_computation; pass constants as numbers or NumPy arrays"
        ),
        "has no attribute 'default_all_equal'|^Unsupported placement |missing .* argument: 'placement'": (
            "pass the placement itself, fl.CLIENTS or fl.SERVER"
        ),
        r"^Operator (iter|len|getitem)\(\) is only .*@CLIENTS": (
            "a value placed at the clients is not a list: map a function over the value of each client, "
            "fl.federated_map(function, value), or aggregate the values, for example with fl.federated_sum"
        ),
        r"'Value'|of type Value which|do not support boolean|^Operator \w+\(\) is only|of non-structural type": (
            "a federated value has no data before the computation runs: do the work in a function that is decorated "
            "with fedstack.python_computation, and map the function with fl.federated_map"
        ),
        _MAPPED.format("(?P<member>.+)", r"<(?P=member)>\.$"): (
            "[type] declares a struct with one member: write the type without the list, or map the member, value[0]"
        ),
        _MAPPED.format("<.+,.+>", r"[^<]+$") + r"|^federated_map\(\) takes 2 positional arguments but": (
            "the function has several parameters: map it over a tuple with one value per parameter, "
            "fl.federated_map(function, (a, b))"
        ),
        _MAPPED.format(".+", ""): "declare the same type for both, or first map a function that converts the value",
        "with the average operator": (
            "first map a function that returns floating-point numbers, such as np.float32(x), and no counters, such as "
            "num_batches_tracked of BatchNorm"
        ),
        "is not sum-compatible because .* is not fully defined": (
            "declare the sizes of the arrays to sum, such as (np.float32, [10]) instead of (np.float32, [None])"
        ),
        "^Expected `zero` to be assignable": "write the zero with the type of the sum, such as np.float32(0)",
        "with the (min|max) operator|is not sum-compatible|is not a federated integer or floating-point": (
            "first map a function that returns numbers, such as np.int32(x)"
        ),
        "should be placed at CLIENTS, but it is placed at SERVER": (
            "a value placed at the server needs no aggregation; to send it to the clients, use fl.federated_broadcast, "
            "and if it is the clients', declare its parameter as fl.FederatedType(type, fl.CLIENTS)"
        ),
        "should be placed at SERVER, but it is placed at CLIENTS": (
            "first aggregate the clients' values, for example with fl.federated_sum or fl.federated_mean; if the value "
            "is the server's, declare its parameter as fl.FederatedType(type, fl.SERVER)"
        ),
        "^Expected [^@]+ to be assignable to .*@(CLIENTS|SERVER)": (
            "map the function instead of calling it on a federated value, fl.federated_map(function, value)"
        ),
        "construct an intrinsic in context|should only be used in contexts which": (
            "call fl.federated_... only in the body of a function that is decorated with fl.federated_computation"
        ),
        r"^Function with \d+ parameters": (
            "write one type per parameter, without a list: @fl.federated_computation(type, type)"
        ),
        r"returned `None` \(or didn't explicitly `return` at all\)": (
            "return a value from the decorated function; the line in the message refers to the language's own code"
        ),
        "^(Positional|Keyword) arguments at .* not used|^Missing argument `|^Argument .* specified twice|"
        "^Declared a parameter .* got no arguments|single positional argument, but|^Was not expecting any arguments": (
            "pass one value for each parameter, by position, or by name if there are several parameters"
        ),
        "^Unable to interpret an argument of type .* as a type spec": (
            "write types such as np.float32, or (np.float32, [3]) for arrays of three elements"
        ),
        "^Error parsing message with type 'federated_language": (
            "computations call each other too deeply: decorate only the outermost function, and do not decorate the "
            "functions that it calls"
        ),
    }.items()
)


# The pattern names the classes that results of computations have.
_RESULT_AWAITED = re.compile(
    r"^object (numpy\.\w+|dict|OrderedDict|list|tuple|bytes) can't be used in 'await' expression"
)
_is_explained = False


def advice_on(error: BaseException) -> str | None:
    """Returns the advice on a known mistake for which the language raised an error; `None` for other errors."""
    if isinstance(error, FedstackError) or not _is_of_language(error):
        return None
    text = _text_of(error)
    return next((mistake.advice for mistake in MISTAKES if mistake.message.search(text)), None)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # raised by a user's exception class
        return ""


def _is_of_language(error: BaseException) -> bool:
    """Returns whether the language raised an error, or called the function that raised it."""
    frames = traceback.walk_tb(error.__traceback__)
    return any("federated_language" in PurePath(frame.f_code.co_filename).parts for frame, _ in frames)


def _advice_on_awaiting(error: BaseException) -> str | None:
    """Returns the advice on an awaited result, or on a coroutine that is used like a result; otherwise `None`."""
    if not isinstance(error, (TypeError, AttributeError)):
        return None
    text, context = _text_of(error), get_context_stack().current
    if isinstance(context, SyncContext) and _RESULT_AWAITED.search(text):
        return (
            "a synchronous context returns the results of computations: leave out `await`, or use an asynchronous "
            "context, fedstack.set_async_local_execution_context()"
        )
    if isinstance(context, AsyncContext) and "'coroutine'" in text:
        return "an asynchronous context returns coroutines: write `await` before the call to the computation"
    return None


def fix_of(error: BaseException) -> str | None:
    """Returns the advice on an error as a sentence, or `None` if there is no advice."""
    advice = advice_on(error) or _advice_on_awaiting(error)
    return None if advice is None else f"To fix it: {advice}."


def note_fix(error: BaseException) -> None:
    """Adds advice to an error as a note, at most once. Does nothing before Python 3.11."""
    if sys.version_info >= (3, 11):
        fix = fix_of(error)
        if fix is not None and fix not in getattr(error, "__notes__", ()):
            error.add_note(fix)


class MissingContext(SyncContext):
    """The default context of threads for which the user has set no context. It rejects all calls."""

    def invoke(self, comp: object, arg: object) -> NoReturn:
        """Raises an error that explains how to set a context."""
        name = getattr(comp, "__name__", None)
        called = "a computation" if name is None else repr(name)
        raise ContextError(
            f"Expected an execution context for calling {called}, found none in the thread "
            f"{threading.current_thread().name!r}; first call fedstack.set_sync_local_execution_context(), or the "
            "set_... function for your workers, in this thread. To share a context among threads, create it with a "
            "fedstack.create_... function and write `with fedstack.use_context(context):` in each thread"
        )


def explain_missing_contexts() -> None:
    """Makes calls in threads that have only the language's default context raise a helpful error."""
    global _is_explained
    if _is_explained:
        return
    found: list[object] = []
    # A new thread has only the shared default context. The current thread may have other contexts.
    look = threading.Thread(target=lambda: found.append(get_context_stack().current), daemon=True)
    try:
        look.start()
    except (RuntimeError, MemoryError):
        return  # the thread could not start; the next leaf or context tries again
    look.join()
    _is_explained = True
    for default in found:
        kind = type(default)
        if kind.__name__ == "RuntimeErrorContext" and kind.__module__.startswith("federated_language."):
            default.__class__ = MissingContext
