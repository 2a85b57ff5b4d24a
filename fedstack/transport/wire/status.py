"""Converts errors to the statuses of calls, and statuses back to errors of the same class.

The status details contain a fedstack error as an `ErrorDetail`: its class, message, traceback and location. Errors
are never pickled. The status code is for peers without fedstack's status details. The clients of such peers recreate
their executors and values and retry after UNAVAILABLE and FAILED_PRECONDITION, but not after other codes:

| error | code |
| --- | --- |
| invalid values and computations, `CarrierError`, `ProtocolVersionError` | INVALID_ARGUMENT |
| `UnsupportedIntrinsicError` | UNIMPLEMENTED |
| `LeafError` | UNKNOWN: the error was raised by the user's function, not by the service |
| `ResourceLimitError` | RESOURCE_EXHAUSTED |
| `WorkerUnavailableError`, the language's `RetryableError` | UNAVAILABLE |
| `StaleSessionError` | FAILED_PRECONDITION |
| `ClosedError`, `RetryLimitError` | ABORTED: the session still exists, and a new session would not help |
| `AuthenticationError` | UNAUTHENTICATED |
| `DeadlineExceededError` | DEADLINE_EXCEEDED |
| `JournalError`, `ProgramStateError` | DATA_LOSS |
| `StatusError`, `RemoteError` | the code of the error |
| all other errors | INTERNAL |
"""

import enum
import traceback
from collections.abc import Sequence

import attrs
from google.protobuf.message import DecodeError

from fedstack import errors
from fedstack.computations.types.language import RetryableError
from fedstack.foundations.error_text import printable, shortened
from fedstack.foundations.traceback_filter import cut_own_frames, with_source_lines
from fedstack.proto.extensions_pb2 import ErrorDetail, Status
from fedstack.transport.wire.connection_errors import ARGUMENTS, NO_ANSWER, Words, reason_of

# By default, a gRPC peer accepts 8 KiB of metadata per call. The details and the message together stay below that.
MAX_DETAILS_BYTES = 6 * 1024
# The metadata key that gRPC implementations use for status details.
DETAILS_KEY = "grpc-status-details-bin"
_MAX_MESSAGE_BYTES = 1024
_MIN_TRACEBACK_BYTES = 1024
_MAX_NAME_BYTES = 200
_MAX_PATH_STEPS = 8
_MAX_FRAMES = 64
_MAX_PIECE_BYTES = 2048
_MAX_LINE_BYTES = 300
# gRPC's own message for an expired deadline. Peers use other messages for their own deadlines.
_GRPCS_DEADLINE = "Deadline Exceeded"
# Part of gRPC's messages for a message that is larger than the server or this process accepts.
_GRPCS_SIZE = "essage larger than max"
_LARGER_MESSAGES = "raise the server's limit (`fedstack serve --max-message-bytes`)"
_DETAIL_TYPE = "type.googleapis.com/fedstack.v1.ErrorDetail"


class Code(enum.IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class StatusError(errors.FedstackError):
    """Raised by a service to fail a call with a given status code.

    The client receives the error class that corresponds to the code, or `RemoteError` if there is no such class.

    Attributes:
      code: The status code.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class RemoteTraceback(Exception):
    """The location and traceback of an error on a peer, as the cause of the error that this process raises.

    Attributes:
      address: The address of the peer.
      path: The executors through which the error was raised, outermost first.
      text: The traceback as printed on the peer: only the lines of the user's code, or all lines if the error is
        unexpected. It is empty if the message of the error is sufficient.
    """

    def __init__(self, address: str, path: tuple[str, ...], text: str) -> None:
        super().__init__(address, path, text)
        self.address = address
        self.path = path
        self.text = text

    def __str__(self) -> str:
        inside = f", in {' > '.join(self.path)}" if self.path else ""
        return f"at {self.address}{inside}\n{self.text}".rstrip()


_CODES: dict[type[Exception], Code] = {
    errors.InvalidComputationError: Code.INVALID_ARGUMENT,
    errors.UnsupportedIntrinsicError: Code.UNIMPLEMENTED,
    errors.LeafError: Code.UNKNOWN,
    errors.TypeMismatchError: Code.INVALID_ARGUMENT,
    errors.InvalidValueError: Code.INVALID_ARGUMENT,
    errors.CarrierError: Code.INVALID_ARGUMENT,
    errors.ResourceLimitError: Code.RESOURCE_EXHAUSTED,
    errors.ClosedError: Code.ABORTED,
    errors.RetryLimitError: Code.ABORTED,
    errors.JournalError: Code.DATA_LOSS,
    errors.ProgramStateError: Code.DATA_LOSS,
    errors.WorkerUnavailableError: Code.UNAVAILABLE,
    errors.StaleSessionError: Code.FAILED_PRECONDITION,
    errors.ProtocolVersionError: Code.INVALID_ARGUMENT,
    errors.AuthenticationError: Code.UNAUTHENTICATED,
    errors.DeadlineExceededError: Code.DEADLINE_EXCEEDED,
    RetryableError: Code.UNAVAILABLE,
}

# The error classes that the status details of a peer may name.
_CLASSES: dict[str, type[Exception]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, (errors.FedstackError, RetryableError))
}


@attrs.frozen
class _Meaning:
    """The error class and advice for a status code without details."""

    error: type[errors.FedstackError]
    advice: str


_REFUSED = _Meaning(errors.AuthenticationError, "pass a token or certificate that the server accepts")
_MEANINGS = {
    # A server sends this code when it shuts down or is overloaded. This process has not cancelled the call.
    Code.CANCELLED: _Meaning(errors.WorkerUnavailableError, "the server is shutting down or overloaded; try again"),
    Code.INVALID_ARGUMENT: _Meaning(errors.InvalidValueError, "correct the request, which the server rejects"),
    Code.DEADLINE_EXCEEDED: _Meaning(errors.DeadlineExceededError, "allow more time, or check why the server is busy"),
    Code.RESOURCE_EXHAUSTED: _Meaning(
        errors.ResourceLimitError, "send less data at a time, or raise the server's limits"
    ),
    Code.FAILED_PRECONDITION: _Meaning(errors.StaleSessionError, "recreate the executor and its values on the server"),
    Code.UNAVAILABLE: _Meaning(
        errors.WorkerUnavailableError,
        "start the server, correct the address, or pass the credentials that the server requires",
    ),
    Code.UNAUTHENTICATED: _REFUSED,
    Code.PERMISSION_DENIED: _REFUSED,
}


def code_of(error: Exception) -> Code:
    """Returns the status code of a call that fails with `error`."""
    if isinstance(error, StatusError):
        return error.code
    if isinstance(error, errors.RemoteError):
        return Code.__members__.get(error.code, Code.UNKNOWN)
    return next((_CODES[base] for base in type(error).__mro__ if base in _CODES), Code.INTERNAL)


def message_of(error: Exception) -> str:
    """Returns the message of the status, shortened to a length that all peers accept. The details keep more of it."""
    text = _text_of(error)
    if not isinstance(error, (errors.FedstackError, RetryableError)):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    # gRPC encodes each byte that is not printable ASCII, and the percent sign, as three bytes.
    weight = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in text.encode())
    return shortened(text, _MAX_MESSAGE_BYTES if weight <= _MAX_MESSAGE_BYTES else _MAX_MESSAGE_BYTES // 3)


def details_of(error: Exception, path: Sequence[str] = (), *, most_bytes: int = MAX_DETAILS_BYTES) -> bytes:
    """Returns the status details of a failed call, for `grpc-status-details-bin` in the trailing metadata.

    Args:
      error: The error of the call.
      path: The executors through which the error was raised, outermost first; by default the path of the error.
      most_bytes: The maximum size of the details.

    Returns:
      A serialized `Status`. If necessary, the beginning of the traceback and the middle of the message are removed.
    """
    path = path or getattr(error, "executor_path", ())
    detail = ErrorDetail(
        error=shortened(_name_of(error), _MAX_NAME_BYTES),
        path=[shortened(_clean(step), _MAX_NAME_BYTES) for step in path[:_MAX_PATH_STEPS]],
    )
    if isinstance(error, errors.FedstackError):
        detail.computation_name = shortened(_clean(error.computation_name), _MAX_NAME_BYTES)
        if error.client_index is not None and error.client_index >= 0:
            detail.client_index = error.client_index
    status = Status(code=code_of(error), message=shortened(message_of(error), most_bytes // 4))
    # 32 bytes are reserved for the tags and lengths of the following fields.
    room = most_bytes - status.ByteSize() - detail.ByteSize() - len(_DETAIL_TYPE) - 32
    printed = _traceback_of(error)
    detail.message = shortened(_text_of(error), room - min(len(printed.encode()), _MIN_TRACEBACK_BYTES))
    detail.traceback = _last(printed, room - len(detail.message.encode()))
    status.details.add(type_url=_DETAIL_TYPE, value=detail.SerializeToString())
    return status.SerializeToString()


def error_from_status(
    code: int, message: str, details: bytes | None, address: str, words: Words = ARGUMENTS
) -> Exception:
    """Returns the error that corresponds to a status.

    Args:
      code: The number of the status code.
      message: The message of the status.
      details: The content of `grpc-status-details-bin`, if any. It is not trusted: details other than a fedstack error
        are ignored, and control characters in their texts are escaped.
      address: The address of the peer, for error messages.
      words: The names that messages use for the caller's arguments.

    Returns:
      An error with the class and message of the error that the peer raised, if the details contain them; otherwise an
      error that corresponds to the code. The `__cause__` of the error is the peer's traceback, so the error should be
      raised with `raise error from error.__cause__`.
    """
    known = Code(code) if code in Code.__members__.values() else Code.UNKNOWN
    detail = _read(details)
    if detail is None:
        return _plain_error(known, printable(message), address, words)
    detail.message = printable(with_source_lines(detail.message))
    detail.traceback = printable(with_source_lines(detail.traceback))
    detail.path[:] = map(printable, detail.path)
    detail.error, detail.computation_name = printable(detail.error), printable(detail.computation_name)
    error = _named_error(detail, known)
    if error is None:
        error = _plain_error(known, f"{detail.error}: {detail.message}", address, words)
    if isinstance(error, errors.FedstackError):
        error.executor_path = tuple(detail.path)
        error.computation_name = detail.computation_name
        error.client_index = detail.client_index if detail.HasField("client_index") else None
    error.__cause__ = RemoteTraceback(address, tuple(detail.path), detail.traceback)
    return error


def _named_error(detail: ErrorDetail, code: Code) -> Exception | None:
    """Returns the error that the details describe; `None` if its class is not one of fedstack's."""
    found = _CLASSES.get(detail.error)
    if not detail.error:  # a `StatusError`
        found = _MEANINGS[code].error if code in _MEANINGS else errors.RemoteError
    if found is errors.RemoteError:
        return errors.RemoteError(detail.message, code=code.name)
    return None if found is None else found(detail.message)


def _plain_error(code: Code, message: str, address: str, words: Words) -> Exception:
    """Returns the error for a status without details."""
    meaning = _MEANINGS.get(code)
    reason = reason_of(message) if code == Code.UNAVAILABLE else None
    if reason is not None:
        return reason.error_at(address, words=words)
    text = f"The call to {address} failed with {code.name}: {message}".removesuffix(": ")
    if code == Code.RESOURCE_EXHAUSTED and _GRPCS_SIZE in message:
        return errors.ResourceLimitError(f"{text}; send less data at a time, or {_LARGER_MESSAGES}")
    if meaning is None:
        return errors.RemoteError(text, code=code.name)
    error = meaning.error(f"{text}; {meaning.advice}")
    if code == Code.DEADLINE_EXCEEDED and message == _GRPCS_DEADLINE:
        error.causes = {address: NO_ANSWER.found}
    return error


def _read(details: bytes | None) -> ErrorDetail | None:
    try:
        status = Status.FromString(details or b"")
        found = [detail.value for detail in status.details if detail.type_url == _DETAIL_TYPE]
        return ErrorDetail.FromString(found[0]) if found else None
    except (DecodeError, ValueError):
        return None


def _name_of(error: Exception) -> str:
    """Returns the name of the error's class, or of its first base class that all peers know."""
    if isinstance(error, StatusError):
        return ""
    names = (base.__name__ for base in type(error).__mro__ if _CLASSES.get(base.__name__) is base)
    return next(names, _clean(type(error).__name__))


def _traceback_of(error: Exception) -> str:
    """Returns the part of the traceback that is relevant to the client's user; empty if the message is sufficient."""
    origin = (error.__cause__ or error) if isinstance(error, errors.LeafError) else error
    try:
        printed = traceback.TracebackException(
            type(origin), origin, origin.__traceback__, limit=-_MAX_FRAMES, compact=True
        )
        # Frames of this package are relevant only for unexpected errors.
        is_foreseen = code_of(error) != Code.INTERNAL
        if is_foreseen and not cut_own_frames(printed) and origin is error and not _came_from_a_peer(error):
            return ""
        return "".join(shortened(_with_short_lines(piece), _MAX_PIECE_BYTES) for piece in printed.format())
    except Exception as failure:  # raised by the user's own exception class
        return f"(no traceback: formatting it raised {type(failure).__name__})"


def _came_from_a_peer(error: BaseException | None) -> bool:
    for _ in range(_MAX_FRAMES):  # limited, since causes may form a cycle
        if error is None or isinstance(error, RemoteTraceback):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, RemoteTraceback)


def _text_of(error: Exception) -> str:
    try:
        return _clean(str(error))
    except Exception as failure:  # raised by the user's own exception class
        return f"(no message: str(error) raised {type(failure).__name__})"


def _clean(text: str) -> str:
    """Returns the text with escapes for characters that UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def _with_short_lines(text: str) -> str:
    return "\n".join(shortened(line, _MAX_LINE_BYTES) for line in _clean(text).split("\n"))


def _last(text: str, limit: int) -> str:
    encoded = text.encode()
    return (
        text if len(encoded) <= limit else "[…] " + encoded[len(encoded) - max(0, limit - 6) :].decode(errors="ignore")
    )
