"""What the subcommands that dial a server share: whom to dial, with what, and what went wrong."""

import argparse
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from fedstack.errors import FedstackError, InvalidValueError, RemoteError
from fedstack.service.command_line.command import FAILURE, UsageError, seconds

if TYPE_CHECKING:
    from fedstack.transport.credentials import ClientCredentials
    from fedstack.transport.executor_stub import ExecutorStub
    from fedstack.transport.targets import Target

_T = TypeVar("_T")


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    """Adds the address of a server, and what it may want to see."""
    parser.add_argument("target", metavar="ADDRESS", help="host:port, grpcs://host:port or unix:/path of the server")
    parser.add_argument("--tls-ca", metavar="FILE", help="certificate of the authority that signed the server's (PEM)")
    parser.add_argument("--tls-cert", metavar="FILE", help="our own certificate (PEM), for servers that ask for one")
    parser.add_argument("--tls-key", metavar="FILE", help="the key of our own certificate (PEM)")
    parser.add_argument("--server-name", metavar="NAME", help="name in the server's certificate, if it is another one")
    parser.add_argument("--token-file", metavar="FILE", help="file with the token that the server asks for")
    parser.add_argument(
        "--timeout", type=seconds(0.001), default=10.0, metavar="SECONDS", help="how long an answer may take"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def peer_of(options: argparse.Namespace) -> "tuple[Target, ClientCredentials]":
    """Returns the server and what to dial it with.

    Raises:
      UsageError: If the options do not fit each other, or name files that cannot be read.
    """
    from fedstack.transport.channels import check_certificates
    from fedstack.transport.credentials import ClientCredentials
    from fedstack.transport.targets import parse_target

    try:
        credentials = ClientCredentials.from_files(
            root_certificates=options.tls_ca,
            certificate=options.tls_cert,
            private_key=options.tls_key,
            token_file=options.token_file,
            server_name=options.server_name,
        )
        check_certificates(credentials, "give the right --tls-cert, --tls-key and --tls-ca")
        return parse_target(options.target), credentials
    except InvalidValueError as error:
        raise UsageError(str(error)) from error


def ask(
    target: "Target",
    credentials: "ClientCredentials",
    timeout: float,
    work: "Callable[[ExecutorStub], Awaitable[_T]]",
) -> _T:
    """Dials a server, and returns what `work` finds out from it.

    Raises:
      FedstackError: If the server cannot be reached, does not let us in, or is none of ours.
    """
    from fedstack.transport.diagnosis import OPTIONS
    from fedstack.transport.executor_stub import ExecutorStub
    from fedstack.transport.grpc_connection import GrpcConnection
    from fedstack.transport.io_loop import io_loop

    async def dial() -> _T:
        connection = GrpcConnection(target, credentials, words=OPTIONS)
        try:
            return await work(ExecutorStub(connection, control_seconds=timeout))
        except FedstackError as error:
            explained = await connection.explained(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            await connection.close()

    return io_loop.run_sync(dial())


def not_ours(target: "Target") -> RemoteError:
    """Returns the error for a server that does not know fedstack's services."""
    return RemoteError(
        f"Expected a fedstack server at {target}, found a gRPC server without its services; correct host and port"
    )


def failed(target: "Target", error: FedstackError, *, as_json: bool) -> int:
    """Ends a subcommand with an error; returns the exit code.

    Raises:
      FedstackError: The error, if it is not to be printed as JSON.
    """
    if not as_json:
        raise error
    print(json.dumps({"ok": False, "target": str(target), "error": str(error)}))
    return FAILURE
