"""Code shared by subcommands that dial a server: options for the address and credentials, and diagnosis of failures."""

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
# Much longer timeouts overflow in gRPC.
_MOST_SECONDS = 86_400
# How many seconds a diagnosis may run beyond the timeout in order to finish.
_FINISH_SECONDS = 0.5
_STREAM_SECONDS = 1.0


PEER_OPTIONS = (
    click.Argument(["target"], metavar="ADDRESS"),
    option("--tls-ca", "FILE", "certificate of the authority that signed the server's certificate (PEM)"),
    option("--tls-cert", "FILE", "client certificate (PEM), for servers that require one"),
    option("--tls-key", "FILE", "private key of the client certificate (PEM)"),
    option("--server-name", "NAME", "name in the server's certificate, if it differs from the host in ADDRESS"),
    option("--token-file", "FILE", "file with the token that the server requires"),
    option(
        "--timeout", "SECONDS", "time limit for the whole command", type=seconds(0.001, _MOST_SECONDS), default=10.0
    ),
    click.Option(["--json"], is_flag=True, help="print JSON"),
)
ABOUT_ADDRESS = "ADDRESS is the address of the server: host:port, grpcs://host:port or unix:/path."


def credentials_in(
    options: SimpleNamespace, prefix: str, token_file: str | None, server_name: str | None = None
) -> "ClientCredentials":
    """Returns the credentials to dial a server with.

    Args:
      options: The values of the options.
      prefix: The prefix of the options for certificates. For example, `tls` selects `--tls-ca`, `--tls-cert` and
        `--tls-key`.
      token_file: The file with the token.
      server_name: The name in the server's certificate, if it differs from the host.

    Raises:
      InvalidValueError: If the options conflict, or name files that cannot be read.
    """
    from fedstack.transport.grpc.channels import check_certificates
    from fedstack.transport.grpc.credentials import ClientCredentials

    ca, cert, key = (getattr(options, f"{prefix}_{name}") for name in ("ca", "cert", "key"))
    credentials = ClientCredentials.from_files(
        root_certificates=ca, certificate=cert, private_key=key, token_file=token_file, server_name=server_name
    )
    check_certificates(credentials, f"correct --{prefix}-cert, --{prefix}-key and --{prefix}-ca")
    return credentials


def peer_of(options: SimpleNamespace) -> "tuple[Target, ClientCredentials]":
    """Returns the address of the server and the credentials to dial it with.

    Raises:
      click.UsageError: If the options conflict, or name files that cannot be read.
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
    """Dials a server, calls `work` with a stub for the server, and returns the result.

    Args:
      target: The address of the server.
      credentials: The credentials to dial the server with.
      timeout: The time limit for the whole operation, in seconds.
      work: A function that calls the server.
      explains: Whether to diagnose a failure. If false, the error that gRPC reports is raised.

    Raises:
      FedstackError: If the server cannot be reached, refuses access, or is not a fedstack server.
    """
    from fedstack.transport.grpc.diagnosis import Patience
    from fedstack.transport.grpc.grpc_connection import GrpcConnection
    from fedstack.transport.peers.executor_stub import ExecutorStub
    from fedstack.transport.peers.io_loop import io_loop
    from fedstack.transport.wire.connection_errors import OPTIONS

    # Two steps of the diagnosis fit into the time that is left when it starts, so a slow machine still explains.
    patience = Patience(min(Patience().step_seconds, timeout / 4), timeout)

    async def dial() -> _T:
        deadline = Deadline(timeout)
        connection = GrpcConnection(target, credentials, words=OPTIONS, patience=patience)
        # Calls have a longer time limit than this function, so that this function is the one to report a timeout.
        working = asyncio.ensure_future(work(ExecutorStub(connection, control_seconds=2 * timeout)))
        diagnosis: asyncio.Task[FedstackError | None] | None = None
        try:
            await Deadline(timeout - 2 * patience.step_seconds).has_ended(working)
            if not working.done() and explains:
                diagnosis = asyncio.ensure_future(connection.diagnosis())  # the server may still answer
            await deadline.has_ended(working)
            if working.done():
                return working.result()
            if diagnosis is not None:
                await Deadline(_FINISH_SECONDS).has_ended(diagnosis)
            found = diagnosis.result() if diagnosis is not None and diagnosis.done() else None
            raise found or DeadlineExceededError(
                f"{target} did not answer within {timeout:g} s; check why the server is busy, or allow "
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


async def why_grpc(target: "Target", credentials: "ClientCredentials") -> str:
    """Returns why clients on this machine cannot reach a server over a stream; empty if they can."""
    from fedstack.transport.stream.found_connection import FoundConnection

    connection = FoundConnection(target, credentials, transport="stream")
    try:
        await connection.wait_ready(_STREAM_SECONDS)
    except FedstackError as error:
        return connection.why_grpc or str(error)
    finally:
        await connection.close()
    return ""


PLAIN = "a plain executor service"


async def kind_of(target: "Target", stub: "ExecutorStub") -> str:
    """Returns a description of a server that does not have fedstack's extensions of the executor service.

    Returns:
      `PLAIN` for a server with the executor service; otherwise descriptions of its fedstack services.

    Raises:
      RemoteError: If the server has neither the executor service nor a fedstack service.
    """
    from fedstack.computations.types.language import CLIENTS, computation_pb2
    from fedstack.proto.executor_pb2 import Cardinality, DisposeExecutorRequest, GetExecutorRequest

    # TensorFlow Federated requires a number of clients to create an executor.
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
            f"Expected a fedstack server at {target}, found a gRPC server without fedstack services; correct the host "
            "and port"
        ) from error
    await stub.dispose_executor(DisposeExecutorRequest(executor=response.executor))
    return PLAIN


async def _others_of(stub: "ExecutorStub") -> list[str]:
    """Returns descriptions of the server's fedstack services other than the executor service."""
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
    """Reports an error that ends a subcommand, and returns the exit code.

    Raises:
      FedstackError: The given error, if `as_json` is false.
    """
    if not as_json:
        raise error
    print(json.dumps({"ok": False, "target": str(target), "error": str(error)}))
    return FAILURE
