"""Defines all exceptions that fedstack raises, as one hierarchy.

The classes are grouped by the action that a user can take:

* fix the computation: `InvalidComputationError`, `UnsupportedIntrinsicError`, `LeafError`,
  `ClientTimeoutError`, `ClientLeftOutError`, `TooManyClientFailuresError`;
* fix the value: `TypeMismatchError`, `InvalidValueError`, `CardinalityError`, `ForeignValueError`;
* fix the calling program: `ClosedError`, `ClosureCancelledError`, `ContextError`;
* fix the deployment: `CarrierError`, `ResourceLimitError`, `AddressError`, `JournalError`, `ProgramStateError`,
  `MembershipError`, `ProtocolVersionError`, `AuthenticationError`, `RemoteError`;
* try again: all classes that also derive from the language's `RetryableError`.

Each class also derives from the built-in exception that a Python user would catch. Messages state the expectation, the
actual value, the location (executor, client index, value path) and the remedy.
"""

import concurrent.futures
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from federated_language.framework import RetryableError

# The length of messages is limited because they contain names that clients choose, which may have any length.
_MOST_CHARACTERS, _LAST_CHARACTERS = 16_000, 4_000


class FedstackError(Exception):
    """The base class of all errors that fedstack raises deliberately. The middle of very long messages is omitted.

    Attributes:
      computation_name: The name of the function that raised the error or returned an invalid result; empty if the error
        does not concern a function.
      client_index: The zero-based index of the client for which the function ran, or `None` for work on the server. If
        the error occurred in a computation that a client's function called, this is the index of that client.
      executor_path: The class names of the executors through which the error passed, outermost first. If a worker sent
        the error, these are the worker's executors. The path is empty for errors that were detected before execution.
      causes: A brief reason for each worker that could not be reached or used, by the worker's address.
      errors: The errors of all failed calls, if a coordinator raised this error as the first of several.
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
    """Raised if a computation is malformed or contains an operation that cannot be executed."""


class UnsupportedIntrinsicError(InvalidComputationError, NotImplementedError):
    """Raised if an executor does not support an intrinsic. The message names an executor that supports it."""


class LeafError(FedstackError, RuntimeError):
    """Raised if a leaf computation (a user's function) raised an exception, which is the `__cause__`.

    The message contains the class and the text of the original exception, the user's lines of the traceback, the name
    of the computation and, for work on clients, the index of the client. The same class is raised whether the function
    ran in this process or on a worker.
    """

    def __init__(self, message: str, *, computation_name: str = "", client_index: int | None = None) -> None:
        super().__init__(message)
        self.computation_name = computation_name
        self.client_index = client_index


class TooManyClientFailuresError(FedstackError, RuntimeError):
    """Raised if more clients have failed than the policy of the context tolerates.

    The message lists the failures by kind, with the functions and the clients.

    Attributes:
      failures: The `ClientFailure` of each failed client, by the index of the client.
      survivors: The number of clients that were left.
    """

    failures: Mapping[int, object] = MappingProxyType({})
    survivors: int = 0


class ClientTimeoutError(FedstackError, TimeoutError):
    """Describes a client whose functions took longer than the `client_seconds` of the context's `ClientFailures`."""


class ClientLeftOutError(ClientTimeoutError):
    """Describes a client that was not done when a phase ended, because `enough` other clients were."""


class TypeMismatchError(FedstackError, TypeError):
    """Raised if a value does not match the expected type. The message contains the value, the type and the path."""


class ForeignValueError(TypeMismatchError):
    """Raised if a value is passed to an executor that did not create it."""


class InvalidValueError(FedstackError, ValueError):
    """Raised if a value has the right type but its content is not allowed."""


class CardinalityError(InvalidValueError):
    """Raised if federated arguments have different numbers of clients, or a number that differs from the executor's."""


class CarrierError(FedstackError, RuntimeError):
    """Raised if a leaf computation cannot be loaded in this process, or cannot be sent to the process that runs it."""


class ResourceLimitError(FedstackError, RuntimeError):
    """Raised if a limit on depth, size or count is exceeded."""


class ClosedError(FedstackError, RuntimeError):
    """Raised if an executor, a context or one of their values is used after `close()`."""


class ClosureCancelledError(FedstackError, concurrent.futures.CancelledError):
    """Raised if a scheduled call or a method call was cancelled.

    The call may have been cancelled by its caller, because of an error in another call, or when its coordinator or
    client was closed.
    """


class ContextError(FedstackError, RuntimeError):
    """Raised if a thread without a context calls a computation, or `with` blocks of contexts end in the wrong order."""


class AddressError(FedstackError, OSError):
    """Raised if a server cannot listen on its address. The message explains the reason."""


class JournalError(FedstackError, OSError):
    """Raised if a file in which a server stores its state is damaged, in use or not a state file.

    The message names the file.
    """


class ProgramStateError(FedstackError, OSError):
    """Raised if a program's state or what it releases cannot be written, or a file of it is damaged or in use.

    The message names the file or folder.
    """

    @property
    def errno(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride] - nobody sets it
        """The number of the system's error, such as `errno.ENOSPC`; `None` if there was none."""
        return self.__cause__.errno if isinstance(self.__cause__, OSError) else None


class MembershipError(InvalidValueError):
    """Raised if a job or task is not in the cluster or is ambiguous. The message lists the existing jobs or tasks."""


class RetryLimitError(FedstackError, RetryableError, RuntimeError):
    """Raised if all attempts that the context allows failed with retryable errors. The last error is the cause.

    Like `LostWorkersError`, this error is itself retryable, because a later call may succeed regardless of which
    temporary error came last.
    """


class WorkerUnavailableError(FedstackError, RetryableError, ConnectionError):
    """Raised if no worker can be reached. The message contains the addresses and the most recent causes.

    Attributes:
      comes_back: Whether the worker is known to be away only temporarily, for example because it is being restarted.
      advice: The advice to give if workers are lost repeatedly.
      had_begun: Whether the lost worker had started to process its clients; `None` if this is unknown.
      exit_status: The return code of the worker's process, as `subprocess` reports it; `None` if unknown.
    """

    comes_back: bool = False
    had_begun: bool | None = True
    exit_status: int | None = None
    advice: str = "test a worker with `fedstack check`"


class NoWorkersError(WorkerUnavailableError):
    """Raised if none of the workers is available. A context raises this error unchanged after its last attempt.

    Attributes:
      is_final: Whether no worker can become available again. If so, the context makes no further attempts.
    """

    is_final: bool = False


class LostWorkersError(WorkerUnavailableError, RetryLimitError):
    """Raised if workers were lost in all attempts that the context allows. The last loss is the cause."""


class StaleSessionError(FedstackError, RetryableError, ConnectionError):
    """Raised if a worker is reachable but has lost this client's session, so that all values must be created again."""


class ProtocolVersionError(FedstackError, RuntimeError):
    """Raised if client and worker do not support a common version of the protocol."""


class AuthenticationError(FedstackError, PermissionError):
    """Raised if a peer rejects this process's token or certificate, or this process rejects the peer's certificate."""


class DeadlineExceededError(FedstackError, RetryableError, TimeoutError):
    """Raised if a peer does not respond in time, or sends no sign of life."""


class RemoteError(FedstackError, RuntimeError):
    """Raised if a peer fails a call with a status for which there is no other exception class.

    Attributes:
      code: The name of the status code, such as `INTERNAL`.
    """

    def __init__(self, message: str, *, code: str = "UNKNOWN") -> None:
        super().__init__(message)
        self.code = code
