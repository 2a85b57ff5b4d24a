"""Defines sessions, each of which contains the values of an executor in another process.

The peer is one of fedstack's services or any other executor service.
"""

import abc
import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol, TypeAlias, TypeVar

import attrs

from fedstack.computations.codec.value_messages import value_from_proto, value_to_proto
from fedstack.computations.leaves.leaf_runtimes import ALLOW_CODE, Destination
from fedstack.computations.leaves.portability import portable
from fedstack.computations.types.language import RetryableError, Type, computation_pb2
from fedstack.errors import CarrierError, FedstackError, InvalidValueError, ResourceLimitError
from fedstack.foundations.number_checks import MOST_MESSAGE_BYTES
from fedstack.foundations.value_text import describe
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.wire.status import RemoteTraceback

Computation: TypeAlias = computation_pb2.Computation
Named: TypeAlias = "Sequence[tuple[str | None, str]]"
# The result of creating a value: its id or, if a message has to be sent first, a coroutine that returns the id. The
# coroutine runs on the transport's event loop.
Made: TypeAlias = "str | Coroutine[Any, Any, str]"
_E = TypeVar("_E", bound=BaseException)

_PLAIN_ADVICE = "use a fedstack worker; the peer is a plain executor service, which accepts no Python code"


def naming_the_worker(error: _E, stub: ExecutorStub) -> _E | FedstackError:
    """Adds the name of the worker to an error if a restriction of this particular worker caused it.

    This applies to a `CarrierError`, and to a `ResourceLimitError` that the worker has raised. Other errors are
    returned unchanged.
    """
    if not isinstance(error, (CarrierError, ResourceLimitError)):
        return error
    is_remote = isinstance(error.__cause__, RemoteTraceback)
    if not is_remote and (isinstance(error, ResourceLimitError) or error.__cause__ is not None):
        return error  # a limit of this process, or a function that no worker would get, as it cannot be pickled
    kind = CarrierError if isinstance(error, CarrierError) else ResourceLimitError
    named = kind(f"{error}; this is a restriction of the worker at {stub.address}")
    named.executor_path = error.executor_path
    return named


def checked_stub(stub: object) -> ExecutorStub:
    """Returns the argument if it is a stub.

    Raises:
      InvalidValueError: If the argument is not a stub but, for example, an address.
    """
    if isinstance(stub, ExecutorStub):
        return stub
    raise InvalidValueError(
        f"Expected a stub that calls the peer, found {describe(stub)}; to connect to an address, call "
        "RemoteExecutor.connect(address)"
    )


@attrs.frozen
class CarrierRules:
    """The form in which functions are sent to a peer. Peers with equal rules receive them in the same form.

    Attributes:
      in_process: Whether the peer is in this process, and can therefore use Python functions directly.
      takes_code: Whether the peer accepts functions by value if it cannot import them.
      advice: How to fix a function that the peer does not accept, for the error message.
      is_plain: Whether the peer has no extensions of fedstack.
    """

    in_process: bool
    takes_code: bool
    advice: str = ALLOW_CODE
    is_plain: bool = False

    @property
    def sends_code(self) -> bool:
        """Whether functions are sent to the peer by value."""
        return self.takes_code and not self.in_process

    def portable(self, computation: Computation) -> Computation:
        """Returns the computation with carriers that the peer can load.

        Raises:
          CarrierError: If a leaf function cannot be sent to the peer.
        """
        if self.in_process:
            return computation
        return portable(computation, Destination(self.takes_code, self.advice, self.is_plain))


class MovesValues(Protocol):
    """Creates values on a peer and fetches them."""

    def put(self, payload: object, type_spec: Type) -> Made:
        """Creates a value. The payload is packed immediately, on the calling thread, because packing may be slow."""
        ...

    def compute(self, value: str, type_spec: Type) -> Coroutine[Any, Any, object]:
        """Computes a value and returns its payload."""
        ...


class RemoteSession(abc.ABC):
    """A session on a peer. Any thread may create values; coroutines run on the transport's event loop.

    Attributes:
      stub: Calls the peer.
      executor: The id of the session on the peer.
      carriers: The form in which functions are sent to the peer.
      lost: The reason why the session is no longer usable; empty while it is usable.
      lease_seconds: The number of seconds after which the lease expires without renewal; `None` for a session without a
        lease.
      forget: Queues the id of a value that is no longer referenced, so that the peer releases the value.
      take_forgotten: Returns some of the queued ids, which the caller must send to the peer.
    """

    def __init__(
        self,
        stub: ExecutorStub,
        executor: plain.ExecutorId,
        carriers: CarrierRules,
        lease_seconds: float | None = None,
    ) -> None:
        self.stub = stub
        self.executor = executor
        self.carriers = carriers
        self.lost = ""
        self.lease_seconds = lease_seconds
        self.forget: Callable[[str], None] = lambda value: None
        self.take_forgotten: Callable[[], Sequence[str]] = lambda: ()

    @abc.abstractmethod
    def put(self, payload: object, type_spec: Type) -> Made:
        """Creates a value. The payload is packed immediately, on the calling thread, because packing may be slow."""

    @abc.abstractmethod
    def put_computation(self, computation: Computation) -> Made:
        """Creates a value from a computation, which is either a function or computes a value."""

    @abc.abstractmethod
    def call(self, function: str, argument: str | None) -> Made:
        """Creates the result of a call."""

    @abc.abstractmethod
    def struct(self, members: Named) -> Made:
        """Creates a struct of values."""

    @abc.abstractmethod
    def selection(self, source: str, index: int) -> Made:
        """Creates the value of a member of a struct."""

    @abc.abstractmethod
    async def compute(self, value: str, type_spec: Type) -> object:
        """Computes a value and returns its payload."""

    @property
    def peer(self) -> extended.HandshakeResponse | None:
        """The peer's response to the handshake; `None` for a peer without fedstack's extensions."""
        return None

    async def stores_among(self, ids: Iterable[str]) -> Set[str]:
        """Returns the ids of those stores of clients' states that the peer has, too. It may get and lose some."""
        asked = set(ids)
        if not asked:
            return asked
        request = extended.FindStoresRequest(id=sorted(asked))
        return asked.intersection((await self.stub.io.run(self.stub.find_stores(request))).id)

    async def start(self, values: Mapping[str, Type], waiting: int = 0) -> Mapping[str, Exception | None]:
        """Computes values on the peer, where the results stay.

        A peer without fedstack's extensions also sends the results to this process.

        Args:
          values: The types of the values, by id.
          waiting: The number of further values that the caller has queued.

        Returns:
          The values that finished first, by id, each with its error or, if the value succeeded, `None`.

        Raises:
          RetryableError: If the peer is no longer reachable.
        """
        work = (self.compute(value, type_spec) for value, type_spec in values.items())
        ended = await asyncio.gather(*work, return_exceptions=True)
        outcomes = [one if isinstance(one, Exception) else None for one in ended]
        for outcome in outcomes:
            if isinstance(outcome, RetryableError):
                raise outcome
        return dict(zip(values, outcomes))

    async def stop(self, values: Sequence[str]) -> None:
        """Stops the computation of values if the peer supports it, and releases the values."""
        await self.dispose(values)

    async def dispose(self, values: Sequence[str]) -> Sequence[str]:
        """Releases values. Returns the ids of those that cannot be released yet, for the caller to release later."""
        refs = [plain.ValueRef(id=value) for value in values]
        await self.stub.dispose(plain.DisposeRequest(executor=self.executor, value_ref=refs))
        return ()

    async def renew(self) -> bool:
        """Renews the lease, and returns whether the session still exists on the peer."""
        return True

    async def end(self) -> None:
        """Ends the session on the peer."""
        await self.stub.dispose_executor(plain.DisposeExecutorRequest(executor=self.executor))


class PlainSession(RemoteSession):
    """A session on a peer without fedstack's extensions. Transfers each value in a single message."""

    def __init__(self, stub: ExecutorStub, executor: plain.ExecutorId) -> None:
        rules = CarrierRules(stub.keeps_handles, stub.sends_code, _PLAIN_ADVICE, is_plain=True)
        super().__init__(stub, executor, rules)

    def put(self, payload: object, type_spec: Type) -> Made:
        value = value_to_proto(payload, type_spec)
        if value.ByteSize() > MOST_MESSAGE_BYTES:
            raise ResourceLimitError(
                f"Expected a value of at most {MOST_MESSAGE_BYTES} bytes for {self.stub.address}, which accepts each "
                f"value in a single message, found {value.ByteSize()} bytes of type {type_spec}; create the members of "
                "the value one by one, or use a fedstack worker"
            )
        return self._create(value)

    def put_computation(self, computation: Computation) -> Made:
        return self._create(plain.Value(computation=computation))

    async def _create(self, value: plain.Value) -> str:
        request = plain.CreateValueRequest(executor=self.executor, value=value)
        return (await self.stub.create_value(request)).value_ref.id

    async def call(self, function: str, argument: str | None) -> str:
        request = plain.CreateCallRequest(executor=self.executor, function_ref=plain.ValueRef(id=function))
        if argument is not None:
            request.argument_ref.id = argument
        return (await self.stub.create_call(request)).value_ref.id

    async def struct(self, members: Named) -> str:
        request = plain.CreateStructRequest(executor=self.executor, element=elements_of(members))
        return (await self.stub.create_struct(request)).value_ref.id

    async def selection(self, source: str, index: int) -> str:
        request = plain.CreateSelectionRequest(
            executor=self.executor, source_ref=plain.ValueRef(id=source), index=index
        )
        return (await self.stub.create_selection(request)).value_ref.id

    async def compute(self, value: str, type_spec: Type) -> object:
        request = plain.ComputeRequest(executor=self.executor, value_ref=plain.ValueRef(id=value))
        response = await self.stub.compute(request)
        return value_from_proto(response.value, type_spec, path="result")


def elements_of(members: Named) -> list[plain.CreateStructRequest.Element]:
    """Returns the messages for the elements of a struct."""
    return [
        plain.CreateStructRequest.Element(name=name or "", value_ref=plain.ValueRef(id=value))
        for name, value in members
    ]
