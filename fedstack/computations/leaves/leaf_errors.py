"""Words what a leaf function raised, with the computation, the client and the user's own lines."""

import re
from traceback import walk_tb
from typing import NoReturn

from fedstack.computations.leaves.work_scope import WorkKind, WorkScope, current_scope
from fedstack.computations.types.error_places import with_place
from fedstack.computations.types.language import RetryableError
from fedstack.computations.types.language_mistakes import advice_on
from fedstack.computations.values.values import SequenceView
from fedstack.errors import ClosureCancelledError, FedstackError, LeafError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.traceback_filter import interrupts, users_lines, without_calling_frames

# What Python says where text is mixed with bytes, or bytes are taken for text.
_TEXT_AND_BYTES = re.compile(r"\bstr(ing)?\b.*\bbytes\b|\bbytes\b.*\bstr(ing)?\b|^'bytes' object has no attribute")


def _is_of_argument(error: FedstackError | RetryableError) -> bool:
    """Returns whether an error came up while a function iterated over its argument.

    Errors of computations that the function called come without the frames in which they came up.
    """
    return any(frame.f_code is SequenceView.in_pass.__code__ for frame, _ in walk_tb(error.__traceback__))


def _is_of_elsewhere(error: FedstackError | RetryableError, scope: WorkScope) -> bool:
    """Returns whether an error says something of what a function has called, and nothing of the call that runs it.

    What a scheduled function finds cancelled or out of reach is not its own call, nor the worker that runs it. And
    whoever calls a method knows nothing of what that calls: a deadline or a mismatch in there is neither the caller's
    nor this server's.
    """
    if scope.kind is WorkKind.CLOSURE:
        return isinstance(error, (ClosureCancelledError, RetryableError))
    return scope.kind is WorkKind.METHOD and not isinstance(error, LeafError) and not _is_of_argument(error)


def raise_leaf_error(error: BaseException, name: str, client_index: int | None) -> NoReturn:
    """Wraps what a user's function raised, with the lines of its traceback that are the user's own."""
    scope = current_scope()
    is_of_elsewhere = isinstance(error, (FedstackError, RetryableError)) and _is_of_elsewhere(error, scope)
    if isinstance(error, RetryableError) and not is_of_elsewhere:
        raise error  # who asks for another attempt gets one
    if isinstance(error, FedstackError) and not is_of_elsewhere:
        # A computation called inside the function already says what went wrong, and where in its own run; an element
        # of the argument says where it is, as where it is looked at before it goes to a worker.
        if client_index is None or _is_of_argument(error):
            raise error
        placed = with_place(error, f"in the computation {name!r} at client {client_index}")
        placed.computation_name = error.computation_name or name
        placed.client_index = client_index  # the caller knows the clients of the outer computation
        raise placed from error.__cause__
    if not scope.is_contained and interrupts(error):
        raise error  # the caller's process is the one that is meant
    error.__traceback__ = without_calling_frames(error.__traceback__)
    where = "" if client_index is None else f"; at client {client_index}"
    advice = ""
    text = text_of(error)
    if isinstance(error, ValueError) and "read-only" in text:
        advice = "; arguments are read-only because they are shared: change a copy, x = x.copy()"
    elif isinstance(error, (TypeError, AttributeError)) and _TEXT_AND_BYTES.search(text):
        advice = "; strings come as bytes: name.decode() is the text"
    elif isinstance(error, RuntimeError) and "running event loop" in text:
        advice = "; in a notebook leaves run where a loop runs already: use an async context, or a thread of your own"
    elif (language_advice := advice_on(error)) is not None:
        advice = f"; {language_advice}"
    shown = type(error).__name__ + (f": {text}" if text else "")
    raise LeafError(
        f"{name!r} raised {shown}{where}{advice}{users_lines(error)}",
        computation_name=name,
        client_index=client_index,
    ) from error
