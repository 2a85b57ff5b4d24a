"""Turns errors into the statuses of calls, and statuses back into errors of the same class.

An error of fedstack travels as an `ErrorDetail` in the status details: class, message, traceback, location; never
pickled. The code is for peers that know only codes. Their clients create everything again and retry on UNAVAILABLE and
FAILED_PRECONDITION, and on no other code:

| error | code |
| --- | --- |
| invalid values and computations,  `CarrierError`, `ProtocolVersionError` | INVALID_ARGUMENT |
| `UnsupportedIntrinsicError` | UNIMPLEMENTED |
| `LeafError` | UNKNOWN: the user's error says nothing about the service |
| `ResourceLimitError` | RESOURCE_EXHAUSTED |
| `WorkerUnavailableError`, the language's `RetryableError` | UNAVAILABLE |
| `StaleSessionError` | FAILED_PRECONDITION |
| `ClosedError`, `RetryLimitError` | ABORTED: the session still exists, and a new one would not help |
| `AuthenticationError` | UNAUTHENTICATED |
| `DeadlineExceededError` | DEADLINE_EXCEEDED |
| `JournalError` | DATA_LOSS |
| `StatusError`, `RemoteError` | their own |
| all others | INTERNAL |
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

# By default, a gRPC peer accepts 8 KiB of metadata per call. This and the message stay below that.
MAX_DETAILS_BYTES = 6 * 1024
# The metadata key of status details, the same in all of gRPC.
DETAILS_KEY = "grpc-status-details-bin"
_MAX_MESSAGE_BYTES = 1024
_MIN_TRACEBACK_BYTES = 1024
_MAX_NAME_BYTES = 200
_MAX_PATH_STEPS = 8
_MAX_FRAMES = 64
_MAX_PIECE_BYTES = 2048
_MAX_LINE_BYTES = 300
# gRPC's text for a missed deadline; peers have other texts for deadlines of their own.
_GRPCS_DEADLINE = "Deadline Exceeded"
# gRPC's texts for a message that is larger than the server or this process accepts.
_GRPCS_SIZE = "essage larger than max"
_LARGER_MESSAGES = "let it take larger messages (`fedstack serve --max-message-bytes`)"
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
    """Raised by a service that wants its call to fail with a certain code.

    It is not kept as a class: the client gets the error that stands for the code, `RemoteError` if no other does.

    Attributes:
      code: The status code.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class RemoteTraceback(Exception):
    """The cause of an error of a peer: its location and traceback there.

    Attributes:
      address: The peer's address.
      path: The executors around the error, outermost first; by default those that the error itself has.
      text: The user's lines of the traceback as Python printed it there, or all lines of an unforeseen error; empty if
        the message is enough.
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
    errors.WorkerUnavailableError: Code.UNAVAILABLE,
    errors.StaleSessionError: Code.FAILED_PRECONDITION,
    errors.ProtocolVersionError: Code.INVALID_ARGUMENT,
    errors.AuthenticationError: Code.UNAUTHENTICATED,
    errors.DeadlineExceededError: Code.DEADLINE_EXCEEDED,
    RetryableError: Code.UNAVAILABLE,
}

# The classes that a peer may name.
_CLASSES: dict[str, type[Exception]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, (errors.FedstackError, RetryableError))
}


@attrs.frozen
class _Meaning:
    """The meaning of a code without details."""

    error: type[errors.FedstackError]
    advice: str


_REFUSED = _Meaning(errors.AuthenticationError, "give a token or certificate that it accepts")
_MEANINGS = {
    # A server sends this when it shuts down or sheds load; nothing here has cancelled the call.
    Code.CANCELLED: _Meaning(errors.WorkerUnavailableError, "it is shutting down, or has too much to do: try again"),
    Code.INVALID_ARGUMENT: _Meaning(errors.InvalidValueError, "it does not take what was sent"),
    Code.DEADLINE_EXCEEDED: _Meaning(errors.DeadlineExceededError, "allow more time, or see what keeps it busy"),
    Code.RESOURCE_EXHAUSTED: _Meaning(errors.ResourceLimitError, "send less at a time, or raise its limits"),
    Code.FAILED_PRECONDITION: _Meaning(errors.StaleSessionError, "create everything there again"),
    Code.UNAVAILABLE: _Meaning(
        errors.WorkerUnavailableError, "start it, correct the address, or give the credentials that it asks for"
    ),
    Code.UNAUTHENTICATED: _REFUSED,
    Code.PERMISSION_DENIED: _REFUSED,
}


def code_of(error: Exception) -> Code:
    """Returns the code with which a call fails that raised this error."""
    if isinstance(error, StatusError):
        return error.code
    if isinstance(error, errors.RemoteError):
        return Code.__members__.get(error.code, Code.UNKNOWN)
    return next((_CODES[base] for base in type(error).__mro__ if base in _CODES), Code.INTERNAL)


def message_of(error: Exception) -> str:
    """Returns the message of the status, shortened to what peers of every kind take; the details have it all."""
    text = _text_of(error)
    if not isinstance(error, (errors.FedstackError, RetryableError)):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    # All but printable ASCII takes three bytes for one on the wire.
    weight = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in text.encode())
    return shortened(text, _MAX_MESSAGE_BYTES if weight <= _MAX_MESSAGE_BYTES else _MAX_MESSAGE_BYTES // 3)


def details_of(error: Exception, path: Sequence[str] = ()) -> bytes:
    """Writes the status details of a failed call, `grpc-status-details-bin` in its trailing metadata.

    Args:
      error: The error of the call.
      path: The executors around the error, outermost first; by default those that the error itself has.

    Returns:
      A serialized `Status` of at most `MAX_DETAILS_BYTES`: a long traceback lacks its beginning, and a long message its
      middle.
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
    status = Status(code=code_of(error), message=message_of(error))
    # The spare bytes are for the tags and lengths of the fields that follow.
    room = MAX_DETAILS_BYTES - status.ByteSize() - detail.ByteSize() - len(_DETAIL_TYPE) - 32
    printed = _traceback_of(error)
    detail.message = shortened(_text_of(error), room - min(len(printed.encode()), _MIN_TRACEBACK_BYTES))
    detail.traceback = _last(printed, room - len(detail.message.encode()))
    status.details.add(type_url=_DETAIL_TYPE, value=detail.SerializeToString())
    return status.SerializeToString()


def error_from_status(
    code: int, message: str, details: bytes | None, address: str, words: Words = ARGUMENTS
) -> Exception:
    """Returns the error that a status means.

    Args:
      code: The number of the status code.
      message: The message of the status.
      details: The content of `grpc-status-details-bin`, if any. It is not trusted: anything but an error of fedstack is
        ignored, and its texts contain no terminal escapes afterwards.
      address: The sender, for error messages.
      words: The names of the caller's arguments in messages.

    Returns:
      An error of the class, and with the message, that the peer raised, if the details say so; else one that fits the
      code. The peer's traceback is its `__cause__`, so `raise error from error.__cause__`.
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
    """Returns the error that the details name, unless its class is one that fedstack does not have."""
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
        return errors.ResourceLimitError(f"{text}; send less at a time, or {_LARGER_MESSAGES}")
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
    """Returns the name of the error's class, or of the next base that every peer knows."""
    if isinstance(error, StatusError):
        return ""
    names = (base.__name__ for base in type(error).__mro__ if _CLASSES.get(base.__name__) is base)
    return next(names, _clean(type(error).__name__))


def _traceback_of(error: Exception) -> str:
    """Prints the frames that matter to the client's user; nothing if the message is enough."""
    origin = (error.__cause__ or error) if isinstance(error, errors.LeafError) else error
    try:
        printed = traceback.TracebackException(
            type(origin), origin, origin.__traceback__, limit=-_MAX_FRAMES, compact=True
        )
        # Only unforeseen errors concern the developers of this package.
        is_foreseen = code_of(error) != Code.INTERNAL
        if is_foreseen and not cut_own_frames(printed) and origin is error and not _came_from_a_peer(error):
            return ""
        return "".join(shortened(_with_short_lines(piece), _MAX_PIECE_BYTES) for piece in printed.format())
    except Exception as failure:  # of the user's own exception class
        return f"(no traceback: printing it raised {type(failure).__name__})"


def _came_from_a_peer(error: BaseException | None) -> bool:
    for _ in range(_MAX_FRAMES):  # users may have made a circle of causes
        if error is None or isinstance(error, RemoteTraceback):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, RemoteTraceback)


def _text_of(error: Exception) -> str:
    try:
        return _clean(str(error))
    except Exception as failure:  # of the user's own exception class
        return f"(no text: it raises {type(failure).__name__})"


def _clean(text: str) -> str:
    """Replaces what UTF-8 cannot carry."""
    return text.encode("utf-8", "backslashreplace").decode()


def _with_short_lines(text: str) -> str:
    return "\n".join(shortened(line, _MAX_LINE_BYTES) for line in _clean(text).split("\n"))


def _last(text: str, limit: int) -> str:
    encoded = text.encode()
    return (
        text if len(encoded) <= limit else "[…] " + encoded[len(encoded) - max(0, limit - 6) :].decode(errors="ignore")
    )
