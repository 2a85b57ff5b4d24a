"""Says what to do about mistakes in federated computations, where the language says what it found.

The language raises while it builds a computation. fedstack sees the error only if it is among the callers: a leaf that
is called, a block with a context in force, a program that ends. There the advice becomes a note on the language's own
exception. `docs/troubleshooting.md` has them all.
"""

import re
import sys
import traceback
from pathlib import PurePath
from typing import NamedTuple

from fedstack.computations.types.language import AsyncContext, SyncContext, get_context_stack
from fedstack.errors import FedstackError


class Mistake(NamedTuple):
    """A mistake that the language finds.

    Attributes:
      message: What occurs in its message.
      advice: What to do, in words that stand after a semicolon.
    """

    message: re.Pattern[str]
    advice: str


_UNPLACED = r"must be a FederatedType or implicitly convertible to a FederatedType \(got a "
_MAPPED = r"expects a parameter of type {}, but member constituents of the mapped value are of incompatible type {}"
# In this order: the first that matches is meant.
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


# Results are what NumPy has, in containers.
_RESULT_AWAITED = re.compile(
    r"^object (numpy\.\w+|dict|OrderedDict|list|tuple|bytes) can't be used in 'await' expression"
)


def advice_on(error: BaseException) -> str | None:
    """Returns what to do about an error, or `None` unless the language raised it for a mistake that is known here."""
    if isinstance(error, FedstackError) or not _is_of_language(error):
        return None
    try:
        text = str(error)
    except Exception:  # it may come from a function of the user's that the language called
        return None
    return next((mistake.advice for mistake in MISTAKES if mistake.message.search(text)), None)


def _is_of_language(error: BaseException) -> bool:
    """Returns whether the language raised an error, or called the function that did."""
    frames = traceback.walk_tb(error.__traceback__)
    return any("federated_language" in PurePath(frame.f_code.co_filename).parts for frame, _ in frames)


def _advice_on_awaiting(error: BaseException) -> str | None:
    """Returns what to do where a result is awaited that is there, or a coroutine is used as if it were the result."""
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
    """Adds the advice on an error to it, as a note and only once. Before Python 3.11 there are no notes."""
    if sys.version_info >= (3, 11):
        fix = fix_of(error)
        if fix is not None and fix not in getattr(error, "__notes__", ()):
            error.add_note(fix)
