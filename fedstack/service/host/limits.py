"""The limits that servers and services impose on their clients.

Each limit is a field, and the field's metadata says what is counted. `exceeded` builds the error message from
the metadata, `serve_options.py` generates an option of `fedstack serve` for each field, and `docs/wire.md` lists all
limits.
"""

from typing import Any

import attrs

from fedstack.errors import ResourceLimitError
from fedstack.foundations.number_checks import (
    MOST_BYTES,
    MOST_CLIENTS,
    MOST_MESSAGE_BYTES,
    number_validator,
    whole_number_validator,
)
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.transport.wire.frames import Chunking

try:
    import resource
except ModuleNotFoundError:  # the system is not POSIX
    resource = None


# With fewer than 16, gRPC ends the process or cannot listen.
_FEWEST_DESCRIPTORS = 32


def _count(default: int, what: str, most: int = MOST_BYTES) -> Any:
    """Returns a field for a whole number of at least 1.

    Args:
      default: The default, which honest clients do not reach.
      what: What is counted, such as "sessions at a time".
      most: The maximum value of the limit.
    """
    return attrs.field(
        default=default, validator=whole_number_validator(1, most), metadata={"what": what, "most": most}
    )


def _seconds(default: float, what: str) -> Any:
    """Returns a field for a duration in seconds."""
    return attrs.field(default=default, validator=number_validator(positive=True), metadata={"what": what})


@attrs.frozen(kw_only=True)
class ServiceLimits:
    """The limits of an executor service.

    Attributes:
      max_sessions: Concurrent sessions.
      max_values: Values in one session.
      max_session_bytes: Bytes of values that a client has stored in one session.
      max_value_bytes: Bytes of arrays in one value or phase.
      max_clients: Clients in one session or phase.
      max_steps: Steps of a computation after its calls are unfolded.
      max_leaves: Tensors in the type of one value; each occurrence counts.
      max_depth: Nested structs in one value.
      max_name_bytes: Bytes of names and type URLs in one type or computation, each counted once.
      max_abandoned: Cancelled tasks still running on extra threads, because a running function cannot be stopped.
      max_isolated: Concurrent child processes that run clients which may crash their process.
      lease_seconds: How long a client with a lease may be silent.
      plain_lease_seconds: How long a client without leases (that is, without fedstack's extensions) may be silent.
      isolation_seconds: The time limit of the search for a client that crashes its process.
      heartbeat_seconds: The interval between heartbeats of a long call.
      chunking: The sizes from which answers are sent in chunks.

    Raises:
      InvalidValueError: If a number is out of its range.
    """

    max_sessions: int = _count(1000, "sessions at a time")
    max_values: int = _count(100_000, "values in a session")
    max_session_bytes: int = _count(64 << 30, "bytes of values in a session")
    max_value_bytes: int = _count(16 << 30, "bytes in a value or phase")
    max_clients: int = _count(1_000_000, "clients in a session or phase", MOST_CLIENTS)
    max_steps: int = _count(100_000, "steps in a computation")
    max_leaves: int = _count(100_000, "tensors in the type of a value")
    max_depth: int = _count(100, "nested structs")
    max_name_bytes: int = _count(1 << 20, "bytes of names in a type or computation")
    max_abandoned: int = _count(256, "tasks still running after their cancellation")
    max_isolated: int = _count(4, "child processes that run clients which may crash their process")
    lease_seconds: float = _seconds(60.0, "a client may be silent")
    plain_lease_seconds: float = _seconds(3600.0, "a client that renews no lease may be silent")
    isolation_seconds: float = _seconds(600.0, "the search for a client that crashes its process may take")
    heartbeat_seconds: float = _seconds(5.0, "between heartbeats of a long call")
    chunking: Chunking = attrs.field(factory=Chunking)


@attrs.frozen(kw_only=True)
class ServerLimits:
    """The limits of a server, whatever services it has.

    Attributes:
      max_connections: Concurrent connections, and streams; at most three eighths of the file descriptors each.
      max_calls: Concurrent calls.
      max_watches: Concurrent calls that watch the server's health or use reflection.
      max_message_bytes: Bytes of one message; the default is protobuf's maximum.
      max_unary_bytes: Bytes of non-streamed messages processed at a time; a larger message is processed alone.
      handshake_seconds: How long the handshake of a new connection may take.
      idle_seconds: How long a connection may be without a call. gRPC clients close idle ones after half an hour.
      header_seconds: How long a stream may take to send its first message, and each message of announced arrays.

    Raises:
      InvalidValueError: If a number is out of its range.
    """

    max_connections: int = _count(4096, "connections at a time")
    max_calls: int = _count(16_384, "calls at a time")
    max_watches: int = _count(1000, "calls at a time that watch the server")
    max_message_bytes: int = _count(MOST_MESSAGE_BYTES, "bytes in a message", MOST_MESSAGE_BYTES)
    max_unary_bytes: int = _count(2 << 30, "bytes of non-streamed messages processed at a time")
    handshake_seconds: float = _seconds(20.0, "the handshake of a new connection may take")
    idle_seconds: float = _seconds(3600.0, "a connection may be without a call")
    header_seconds: float = _seconds(30.0, "a stream may take to send its next message")


@attrs.frozen(kw_only=True)
class DataWorkerLimits:
    """The limits of a data worker, in addition to those of an executor service.

    Attributes:
      max_streams: Concurrent streams of elements.
      max_block_bytes: Bytes of elements in a block, or of clients' states in a request, unless a single one is larger.
      max_ahead_bytes: Bytes of elements that are produced ahead and not sent yet.
      max_definition_bytes: Bytes of the definition of a dataset, and of all stored definitions together.
      max_client_bytes: Bytes of elements kept in memory for datasets that are read by client.
      max_gathered_bytes: Bytes of elements that the steps of all streams gather or split.

    Raises:
      InvalidValueError: If a number is out of its range.
    """

    max_streams: int = _count(1000, "streams of elements at a time")
    max_block_bytes: int = _count(16 << 20, "bytes of elements in a block, or of clients' states in a request")
    max_ahead_bytes: int = _count(1 << 30, "bytes of elements that are produced ahead")
    max_definition_bytes: int = _count(1 << 30, "bytes in the definition of a dataset")
    max_client_bytes: int = _count(4 << 30, "bytes of elements of datasets that are read by client")
    max_gathered_bytes: int = _count(1 << 30, "bytes of elements that steps of datasets gather")


@attrs.frozen(kw_only=True)
class DispatcherLimits:
    """The limits of a dispatcher of the data service.

    Attributes:
      max_datasets: Registered datasets.
      max_definition_bytes: Bytes of the definition of a dataset, including its arrays.
      max_passes: Open or resumable passes over datasets.
      max_consumers: Consumers in passes.
      max_data_workers: Concurrent data workers.

    Raises:
      InvalidValueError: If a number is out of its range.
    """

    max_datasets: int = _count(10_000, "datasets")
    max_definition_bytes: int = _count(1 << 30, "bytes in the definition of a dataset")
    max_passes: int = _count(10_000, "passes over datasets at a time")
    max_consumers: int = _count(10_000, "consumers in passes at a time")
    max_data_workers: int = _count(10_000, "data workers at a time")


def most_connections(limits: ServerLimits) -> int:
    """Returns the maximum number of connections over gRPC, and of streams.

    Together they leave a quarter of the process's file descriptors for other uses.
    """
    descriptors = _descriptors()
    return limits.max_connections if descriptors is None else max(1, min(limits.max_connections, descriptors * 3 // 8))


def check_descriptors() -> None:
    """Checks that this process may open as many files as a server needs: without some of them, gRPC crashes.

    Raises:
      ResourceLimitError: If it may not.
    """
    descriptors = _descriptors()
    if descriptors is not None and descriptors < _FEWEST_DESCRIPTORS:
        raise ResourceLimitError(
            f"Expected at least {_FEWEST_DESCRIPTORS} open files for a server, found a limit of {descriptors}; raise "
            "it with ulimit -n"
        )


def _descriptors() -> int | None:
    """Returns how many files this process may open; `None` if that is not limited."""
    if resource is None:
        return None
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if descriptors == resource.RLIM_INFINITY else descriptors


def option_of(name: str) -> str:
    """Returns the option of `fedstack serve` that sets a limit."""
    return f"--{name.replace('_', '-')}"


def exceeded(
    limits: attrs.AttrsInstance, name: str, found: object = "one more", advice: str = ""
) -> ResourceLimitError:
    """Returns the error for an exceeded limit.

    Args:
      limits: The table of limits.
      name: The name of the limit.
      found: The number or request that exceeds the limit.
      advice: An alternative to raising the limit.
    """
    most: int = getattr(limits, name)
    what: str = attrs.fields_dict(type(limits))[name].metadata["what"]
    if most == 1:
        things, _, rest = what.partition(" ")
        what = f"{things.removesuffix('s')} {rest}"
    other = f"{advice}, or " if advice else ""
    return ResourceLimitError(
        f"Expected at most {most} {what}, found {found}; {other}start the worker with a larger {option_of(name)} "
        f"(in a program, pass {type(limits).__name__}({name}=…))"
    )


def check_sizes(limits: ServiceLimits, leaves: int, depth: int) -> None:
    """Checks the number of tensors and the depth of nested structs in a type.

    Raises:
      ResourceLimitError: If either exceeds its limit.
    """
    if leaves > limits.max_leaves:
        raise exceeded(limits, "max_leaves", leaves, "put numbers into arrays")
    if depth > limits.max_depth:
        raise exceeded(limits, "max_depth", depth, "flatten the structure")


def add_limits(status: GetStatusResponse, limits: attrs.AttrsInstance) -> None:
    """Adds the numeric limits of a table to a status, each limit once."""
    known = {limit.name for limit in status.limit}
    for field in attrs.fields(type(limits)):
        value: object = getattr(limits, field.name)
        if isinstance(value, (int, float)) and field.name not in known:
            status.limit.add(name=field.name, value=value)
