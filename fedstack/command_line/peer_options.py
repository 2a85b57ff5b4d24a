"""Defines what subcommands that dial a server share: its address, the credentials, and the diagnosis of failures."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedstack.command_line.command import FAILURE, option, seconds
from fedstack.errors import DeadlineExceededError, FedstackError, InvalidValueError, RemoteError
from fedstack.foundations.deadline import Deadline

if TYPE_CHECKING:
    from fedstack.transport.grpc.credentials import ClientCredentials
    from fedstack.transport.peers.executor_stub import ExecutorStub
    from fedstack.transport.wire.addresses import Target

_T = TypeVar("_T")
# gRPC overflows with much longer times.
_MOST_SECONDS = 86_400
# How much longer than its limit the search for a fault may take if it is about to end.
_FINISH_SECONDS = 0.5


PEER_OPTIONS = (
    click.Argument(["target"], metavar="ADDRESS"),
    option("--tls-ca", "FILE", "certificate of the authority that signed the server's (PEM)"),
    option("--tls-cert", "FILE", "our own certificate (PEM), for servers that ask for one"),
    option("--tls-key", "FILE", "the key of our own certificate (PEM)"),
    option("--server-name", "NAME", "name in the server's certificate, if it is another one"),
    option("--token-file", "FILE", "file with the token that the server asks for"),
    option("--timeout", "SECONDS", "how long it may take in all", type=seconds(0.001, _MOST_SECONDS), default=10.0),
    click.Option(["--json"], is_flag=True, help="print JSON"),
)
ABOUT_ADDRESS = "ADDRESS is the server's: host:port, grpcs://host:port or unix:/path."


def credentials_in(
    options: SimpleNamespace, prefix: str, token_file: str | None, server_name: str | None = None
) -> "ClientCredentials":
    """Returns the credentials to dial a server with.

    Args:
      options: The options.
      prefix: The prefix of those with certificates, which end in `ca`, `cert` and `key`.
      token_file: The file with the token.
      server_name: The name in the server's certificate, if it differs from the host.

    Raises:
      InvalidValueError: If they do not fit each other, or name files that cannot be read.
    """
    from fedstack.transport.grpc.channels import check_certificates
    from fedstack.transport.grpc.credentials import ClientCredentials

    ca, cert, key = (getattr(options, f"{prefix}_{name}") for name in ("ca", "cert", "key"))
    credentials = ClientCredentials.from_files(
        root_certificates=ca, certificate=cert, private_key=key, token_file=token_file, server_name=server_name
    )
    check_certificates(credentials, f"give the right --{prefix}-cert, --{prefix}-key and --{prefix}-ca")
    return credentials


def peer_of(options: SimpleNamespace) -> "tuple[Target, ClientCredentials]":
    """Returns the server and the credentials to dial it with.

    Raises:
      click.UsageError: If the options do not fit each other, or name files that cannot be read.
    """
    from fedstack.transport.wire.addresses import parse_target

    try:
        credentials = credentials_in(options, "tls", options.token_file, options.server_name)
        return parse_target(options.target), credentials
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from error


def ask(
    target: "Target",
    credentials: "ClientCredentials",
    timeout: float,
    work: "Callable[[ExecutorStub], Coroutine[Any, Any, _T]]",
    *,
    explains: bool = True,
) -> _T:
    """Dials a server, and returns the result of `work`.

    Args:
      target: The server.
      credentials: The credentials to dial it with.
      timeout: How long everything may take, in seconds.
      work: Calls the server.
      explains: Whether to look for the fault of a failure; otherwise the error is gRPC's.

    Raises:
      FedstackError: If the server cannot be reached, does not let us in, or is none of ours.
    """
    from fedstack.transport.grpc.diagnosis import Patience
    from fedstack.transport.grpc.grpc_connection import GrpcConnection
    from fedstack.transport.peers.executor_stub import ExecutorStub
    from fedstack.transport.peers.io_loop import io_loop
    from fedstack.transport.wire.connection_errors import OPTIONS

    patience = Patience(min(Patience().step_seconds, timeout / 2), timeout)

    async def dial() -> _T:
        deadline = Deadline(timeout)
        connection = GrpcConnection(target, credentials, words=OPTIONS, patience=patience)
        # Calls have more time than that, so that this function reports a missing answer.
        working = asyncio.ensure_future(work(ExecutorStub(connection, control_seconds=2 * timeout)))
        diagnosis: asyncio.Task[FedstackError | None] | None = None
        try:
            await Deadline(timeout - patience.step_seconds).has_ended(working)
            if not working.done() and explains:
                diagnosis = asyncio.ensure_future(connection.diagnosis())  # while there may still be an answer
            await deadline.has_ended(working)
            if working.done():
                return working.result()
            if diagnosis is not None:
                await Deadline(_FINISH_SECONDS).has_ended(diagnosis)
            found = diagnosis.result() if diagnosis is not None and diagnosis.done() else None
            raise found or DeadlineExceededError(
                f"{target} did not answer within {timeout:g} s; see what keeps it busy, or allow "
                "more time with --timeout"
            )
        except FedstackError as error:
            if not (working.done() and explains):
                raise
            try:
                explained = await Deadline((deadline.left or 0.0) + _FINISH_SECONDS).wait(connection.explained(error))
            except asyncio.TimeoutError:
                explained = error
            if explained is error:
                raise
            raise explained from error
        finally:
            every: list[asyncio.Task[Any]] = [task for task in (working, diagnosis) if task is not None]
            for task in every:
                task.cancel()
            await asyncio.gather(*every, return_exceptions=True)
            await connection.close()

    return io_loop.run_sync(dial())


PLAIN = "a plain executor service"


async def kind_of(target: "Target", stub: "ExecutorStub") -> str:
    """Describes a server without the extensions of executors: `PLAIN`, or other services of fedstack.

    Raises:
      RemoteError: If it has none of these.
    """
    from fedstack.computations.types.language import CLIENTS, computation_pb2
    from fedstack.proto.executor_pb2 import Cardinality, DisposeExecutorRequest, GetExecutorRequest

    # TensorFlow Federated has no executor without a number of clients.
    no_clients = Cardinality(placement=computation_pb2.Placement(uri=CLIENTS.uri), cardinality=0)
    try:
        response = await stub.get_executor(GetExecutorRequest(cardinalities=[no_clients]))
    except RemoteError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        others = await _others_of(stub)
        if others:
            return " and ".join(others)
        raise RemoteError(
            f"Expected a fedstack server at {target}, found a gRPC server without its services; correct host and port"
        ) from error
    await stub.dispose_executor(DisposeExecutorRequest(executor=response.executor))
    return PLAIN


async def _others_of(stub: "ExecutorStub") -> list[str]:
    """Asks a server's health for its services by name, for servers without executors."""
    from fedstack.transport.grpc.grpc_calls import asks_health
    from fedstack.transport.peers.data_worker_stub import DATA_WORKER
    from fedstack.transport.peers.dispatcher_stub import DISPATCHER
    from fedstack.transport.peers.method_stub import METHODS

    names = {
        DISPATCHER: "the dispatcher of a data service",
        DATA_WORKER: "a worker of a data service",
        METHODS: "a server with methods to call",
    }
    return [words for service, words in names.items() if await asks_health(stub.connection, None, service)]


def failed(target: "Target", error: FedstackError, *, as_json: bool) -> int:
    """Ends a subcommand with an error; returns the exit code.

    Raises:
      FedstackError: The error, if it is not to be printed as JSON.
    """
    if not as_json:
        raise error
    print(json.dumps({"ok": False, "target": str(target), "error": str(error)}))
    return FAILURE
