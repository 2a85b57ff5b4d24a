"""Defines every exception that fedstack raises, in one tree.

The branches answer one question: what can the user do about it?

* fix the computation: `InvalidComputationError`, `UnsupportedIntrinsicError`, `LeafError`;
* fix the value: `TypeMismatchError`, `InvalidValueError`, `CardinalityError`, `ForeignValueError`;
* fix the program around it: `ClosedError`, `ClosureCancelledError`, `ContextError`;
* fix the deployment: `CarrierError`, `ResourceLimitError`, `AddressError`, `JournalError`, `MembershipError`,
  `ProtocolVersionError`, `AuthenticationError`, `RemoteError`;
* try again: everything that is also the language's `RetryableError`.

Each class is also the built-in that a Python user would catch. Messages say what was expected and what was
found, where (executor, client index, value path), and what to do.
"""

import concurrent.futures
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from federated_language.framework import RetryableError

# Messages name what clients call things, and those may call them anything.
_MOST_CHARACTERS, _LAST_CHARACTERS = 16_000, 4_000


class FedstackError(Exception):
    """The root of all errors that fedstack raises on purpose. A long message lacks its middle.

    Attributes:
      computation_name: The name of the function in which it came up, or that returned what does not fit; empty if it
        was in none.
      client_index: The zero-based index of the client at which the function ran, or `None` for work at the server.
        Where a function at a client called a computation in which it ran, that is the client of the outer one.
      executor_path: The executors that it went through, outermost first: at the worker, if one has sent it. It is empty
        for what was wrong before anything ran.
      causes: For an error of workers that cannot be reached or used, the address of each, and why, in a few words.
      errors: Where a coordinator raises the first error of its calls, all of them.
    """

    computation_name: str = ""
    client_index: int | None = None
    executor_path: tuple[str, ...] = ()
    causes: Mapping[str, str] = MappingProxyType({})
    errors: Sequence[Exception] = ()

    def __init__(self, *args: object) -> None:
        super().__init__(*(_cut(arg) if isinstance(arg, str) else arg for arg in args))


def _cut(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    left_out = len(text) - _MOST_CHARACTERS
    return f"{text[: _MOST_CHARACTERS - _LAST_CHARACTERS]} [… {left_out} characters …] {text[-_LAST_CHARACTERS:]}"


class InvalidComputationError(FedstackError, ValueError):
    """The computation itself is malformed or asks for something that cannot be executed."""


class UnsupportedIntrinsicError(InvalidComputationError, NotImplementedError):
    """An intrinsic reached an executor that does not run it; the message names one that does."""


class LeafError(FedstackError, RuntimeError):
    """A leaf computation (the user's own function) raised; the original exception is the `__cause__`.

    The message carries the exception's class and text, the user's own lines of its traceback, the name of the
    computation and, for work at clients, the index of the client. The same class is raised wherever the
    function ran.
    """

    def __init__(self, message: str, *, computation_name: str = "", client_index: int | None = None) -> None:
        super().__init__(message)
        self.computation_name = computation_name
        self.client_index = client_index


class TypeMismatchError(FedstackError, TypeError):
    """A value does not fit the type it is used with; the message has both, and the path to the misfit."""


class ForeignValueError(TypeMismatchError):
    """A value was handed to another executor than the one that made it."""


class InvalidValueError(FedstackError, ValueError):
    """A value has the right type and a content that the computation does not allow."""


class CardinalityError(InvalidValueError):
    """Federated arguments disagree about the number of clients, or with the executor's number."""


class CarrierError(FedstackError, RuntimeError):
    """A leaf computation cannot be loaded here, or cannot travel to where it should run."""


class ResourceLimitError(FedstackError, RuntimeError):
    """A stated limit (depth, size, count) was exceeded."""


class ClosedError(FedstackError, RuntimeError):
    """An executor, a context or a value of theirs was used after `close()`."""


class ClosureCancelledError(FedstackError, concurrent.futures.CancelledError):
    """A scheduled call, or that of a method, was cancelled: by its caller, for the error of another, or at the end."""


class ContextError(FedstackError, RuntimeError):
    """A computation was called in a thread without a context, or the blocks of contexts ended in the wrong order."""


class AddressError(FedstackError, OSError):
    """A server cannot listen where it was told to; the message says what is in the way."""


class JournalError(FedstackError, OSError):
    """What a server has written down cannot be used: it is damaged, in use, or of another program; which file."""


class MembershipError(InvalidValueError):
    """A job or task is not in the cluster, or it is not plain which is meant; the message has those that are."""


class RetryLimitError(FedstackError, RetryableError, RuntimeError):
    """Every attempt that the context was allowed failed with a retryable error; the last one is the cause.

    It is retryable itself, as `LostWorkersError` is: what a later attempt may bring does not depend on which of the
    errors that can pass was the last one.
    """


class WorkerUnavailableError(FedstackError, RetryableError, ConnectionError):
    """No worker can be reached; the message names addresses and last causes.

    Attributes:
      comes_back: Whether it is known that the worker is away for a while only, as one that is being started anew.
      advice: What to do where workers are lost again and again.
      had_begun: Whether the worker that was lost had begun with its clients; `None` if that is not known.
      exit_status: How its process has ended, as `subprocess` says it, where that is known.
    """

    comes_back: bool = False
    had_begun: bool | None = True
    exit_status: int | None = None
    advice: str = "ask one with `fedstack check`"


class NoWorkersError(WorkerUnavailableError):
    """None of the workers is there; a context that has tried for long enough raises this as it is.

    Attributes:
      is_final: Whether none can come back, so that it is not tried again.
    """

    is_final: bool = False


class LostWorkersError(WorkerUnavailableError, RetryLimitError):
    """A worker went away at every attempt that the context was allowed; the last loss is the cause."""


class StaleSessionError(FedstackError, RetryableError, ConnectionError):
    """A worker is there but has lost this client's session; everything must be created again."""


class ProtocolVersionError(FedstackError, RuntimeError):
    """Client and worker do not speak a common version of the protocol."""


class AuthenticationError(FedstackError, PermissionError):
    """A peer refused our token or certificate, or we refused the peer's."""


class DeadlineExceededError(FedstackError, RetryableError, TimeoutError):
    """A peer did not answer, or gave no sign of life, in time."""


class RemoteError(FedstackError, RuntimeError):
    """A peer failed a call with a status that no other class stands for.

    Attributes:
      code: The name of the status code, such as `INTERNAL`.
    """

    def __init__(self, message: str, *, code: str = "UNKNOWN") -> None:
        super().__init__(message)
        self.code = code
