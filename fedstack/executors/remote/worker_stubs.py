"""Creates stubs for all kinds of worker targets: addresses, clusters, channels and pools."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast, runtime_checkable

from fedstack.errors import ClosedError, FedstackError, InvalidValueError
from fedstack.foundations.value_text import describe
from fedstack.transport.grpc.channels import Channel, is_channel
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Transport, check_transport
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.wire.addresses import Target, TargetResolver, resolve_targets


class WorkerSource(Protocol):
    """A group of workers with the credentials for connecting to them, such as a `local_worker_pool`."""

    @property
    def targets(self) -> Sequence[str]:
        """The addresses of the workers."""
        ...

    @property
    def credentials(self) -> ClientCredentials | None:
        """The certificates and the token for the workers; `None` for no credentials."""
        ...


@runtime_checkable
class KnowsLosses(Protocol):
    """A source of workers that knows which of its workers have ended."""

    def loss_of(self, target: str) -> FedstackError | None:
        """Returns the error to raise for a worker that has ended; `None` for a running worker."""
        ...


@runtime_checkable
class RestartsWorkers(Protocol):
    """A source of workers that can restart its workers, and does so at once if they had worked since their start."""

    @property
    def restarts(self) -> bool:
        """Whether workers that end are restarted."""
        ...

    def worked(self, target: str) -> None:
        """Records that a worker has contributed to a phase. May be called from any thread, and returns quickly."""
        ...


WorkerTarget: TypeAlias = "str | Target | TargetResolver | Channel | ExecutorStub"
WorkerTargets: TypeAlias = "WorkerTarget | Sequence[WorkerTarget] | WorkerSource"


def make_stubs(
    targets: WorkerTargets, credentials: ClientCredentials | None, transport: Transport = "auto"
) -> list[ExecutorStub]:
    """Returns a stub for each target.

    Args:
      targets: The targets.
      credentials: The certificates and the token for addresses.
      transport: How to reach addresses: `"stream"`, `"grpc"`, or `"auto"` for streams where they can be reached.

    Raises:
      InvalidValueError: If the transport or a target is invalid, or credentials are passed for a target that has its
        own.
      ClosedError: If the targets belong to a closed pool.
    """
    if not (credentials is None or isinstance(cast(object, credentials), ClientCredentials)):
        raise InvalidValueError(
            f"Expected credentials of type fedstack.ClientCredentials, found {type(credentials).__name__}; to use a "
            "token, pass fedstack.ClientCredentials(token=...)"
        )
    check_transport(transport)
    source = cast(WorkerSource, targets) if hasattr(targets, "targets") else None
    given = credentials
    if source is not None:
        targets, credentials = source.targets, credentials or source.credentials
    listed = targets if isinstance(targets, (list, tuple)) else [targets]
    stubs: list[ExecutorStub] = []
    channels = 0
    for target in cast("Sequence[object]", listed):
        if isinstance(target, ExecutorStub):
            _check_none(given, "stub")
            stubs.append(target)
        elif isinstance(target, (str, Target)) or hasattr(target, "resolve"):
            # Imported here because it imports gRPC, which not all users need.
            from fedstack.transport.stream.found_connection import FoundConnection

            resolved = resolve_targets(cast("str | Target | TargetResolver", target))
            _check_open(source, resolved)
            stubs.extend(
                ExecutorStub(FoundConnection(t, credentials, transport=transport, loss=_loss(source, t)))
                for t in resolved
            )
        elif is_channel(target):
            from fedstack.transport.grpc.channel_connection import ChannelConnection

            _check_none(given, "channel")
            channels += 1
            name = "the peer of a channel" if channels == 1 else f"the peer of channel {channels}"
            stubs.append(ExecutorStub(ChannelConnection(target, name)))
        else:
            advice = "; pass its target attribute" if hasattr(target, "target") else ""
            raise InvalidValueError(
                f"Expected the address of a worker, as in 'localhost:8000', a ClusterSpec, a channel or a stub, found "
                f"{describe(target)}{advice}"
            )
    return stubs


def _check_none(credentials: ClientCredentials | None, what: str) -> None:
    """Checks that no credentials are passed for a target that would ignore them."""
    if credentials is not None:
        raise InvalidValueError(
            f"Expected no credentials for a {what}, which has its own, found {credentials!r}; pass the address of the "
            f"worker instead of the {what}, or omit credentials"
        )


def _check_open(source: object, targets: Sequence[Target]) -> None:
    """Checks that no worker of a source has ended permanently.

    Raises:
      ClosedError: If a worker has ended permanently.
    """
    if isinstance(source, KnowsLosses):
        for target in targets:
            loss = source.loss_of(target.address)
            if isinstance(loss, ClosedError):
                raise loss


def _loss(source: object, target: Target) -> Callable[[], FedstackError | None]:
    if isinstance(source, KnowsLosses):
        return lambda: source.loss_of(target.address)
    return lambda: None
