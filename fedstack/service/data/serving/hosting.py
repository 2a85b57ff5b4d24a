"""Makes the server of a dispatcher or a data worker, as its configuration has it."""

import os
from collections.abc import Sequence
from typing import Protocol

from fedstack.errors import InvalidValueError
from fedstack.service.cluster.server_config import with_tokens
from fedstack.service.data.serving.local_servers import GRPC, LOCAL, LocalServer
from fedstack.service.limits.limits import ServerLimits
from fedstack.service.server.grpc_server import GrpcServer
from fedstack.service.server.server_thread import Hosted
from fedstack.transport.grpc.credentials import ServerCredentials
from fedstack.transport.grpc.file_watch import Renewed
from fedstack.transport.peers.methods import Service


class HostingConfig(Protocol):
    """How services are served; see `WorkerConfig`."""

    @property
    def port(self) -> int: ...
    @property
    def protocol(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def credentials(self) -> ServerCredentials | None: ...
    @property
    def token_file(self) -> str | os.PathLike[str] | None: ...
    @property
    def insecure(self) -> bool: ...
    @property
    def server_limits(self) -> ServerLimits: ...


def target_of(address: str, config: HostingConfig) -> str:
    """Returns how to dial a server that listens at an address: `grpc://host:port`, `grpcs://host:port` with TLS."""
    if config.protocol != GRPC:
        return address
    credentials = config.credentials
    return f"grpc{'s' * (credentials is not None and credentials.uses_tls)}://{address}"


def worker_tokens(file: str | os.PathLike[str] | None) -> Renewed[tuple[str, ...]] | None:
    """Returns the tokens of data workers, which change when their file does; `None` without a file.

    Raises:
      InvalidValueError: If the file cannot be read, or has none.
    """
    return None if file is None else ServerCredentials.from_files(token_file=file).renewed_tokens()


def hosted(services: Sequence[Service], config: HostingConfig) -> Hosted:
    """Returns the server, not started yet.

    Raises:
      InvalidValueError: If the protocol is none, or others could reach the server without TLS.
    """
    if config.protocol == LOCAL:
        return LocalServer(services, config.port)
    if config.protocol != GRPC:
        raise InvalidValueError(
            f'Expected the protocol "{GRPC}", or "{LOCAL}" within one process, found {config.protocol!r}'
        )
    return GrpcServer(
        services,
        host=config.host,
        port=config.port,
        credentials=with_tokens(config.credentials, config.token_file),
        insecure=config.insecure,
        limits=config.server_limits,
    )
