"""Holds values in another process, one session per executor: with fedstack's own peers, and with any other."""

import abc
import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.leaves.portability import portable
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.values.codec import value_from_proto, value_to_proto
from fedstack.computations.values.columns import with_columns
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import CarrierError, InvalidValueError, ResourceLimitError
from fedstack.executors.remote.remote_transfers import Packing
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.wire.status import RemoteTraceback

Computation: TypeAlias = computation_pb2.Computation
Named: TypeAlias = "Sequence[tuple[str | None, str]]"

_MAX_MESSAGE = (1 << 31) - 1
_PLAIN_ADVICE = "use a fedstack worker: what answers is a plain executor service, which takes no Python code"


@contextlib.contextmanager
def naming_the_worker(stub: ExecutorStub) -> Generator[None, None, None]:
    """Says at the end of what is about one worker for which it is: another one may let in what this one refuses.

    That is a `CarrierError`, and a `ResourceLimitError` that the worker has raised.
    """
    try:
        yield
    except (CarrierError, ResourceLimitError) as error:
        if isinstance(error, ResourceLimitError) and not isinstance(error.__cause__, RemoteTraceback):
            raise  # a limit of this process
        kind = CarrierError if isinstance(error, CarrierError) else ResourceLimitError
        named = kind(f"{error}; for the worker at {stub.address}")
        named.executor_path = error.executor_path
        raise named from error.__cause__


def checked_stub(stub: object) -> ExecutorStub:
    """Returns a stub.

    Raises:
      InvalidValueError: If it is something else, such as an address.
    """
    if isinstance(stub, ExecutorStub):
        return stub
    raise InvalidValueError(
        f"Expected a stub that calls the peer, found {describe(stub)}; make one of an address, as in docs/workers.md: "
        "[stub] = fedstack.executors.stacks.remote_factory.make_stubs(address, credentials=None)"
    )


class RemoteSession(abc.ABC):
    """A session with one peer. Coroutines run on the transport's loop.

    Attributes:
      stub: Calls the peer.
      executor: What the peer calls the session.
      lost: Why it is of no use any more; empty as long as it is.
      lease_seconds: How long it may be silent; `None` if it need not be renewed.
      forget: Called with the ids of values that the peer may have and nobody here will refer to.
    """

    def __init__(self, stub: ExecutorStub, executor: plain.ExecutorId, lease_seconds: float | None = None) -> None:
        self.stub = stub
        self.executor = executor
        self.lost = ""
        self.lease_seconds = lease_seconds
        self.forget: Callable[[str], None] = lambda value: None

    @abc.abstractmethod
    def travelling(self, computation: Computation) -> Computation:
        """Returns a computation with carriers that the peer can load."""

    @property
    @abc.abstractmethod
    def sends_code(self) -> bool:
        """Whether functions go to the peer by value, where they have no name there."""

    @property
    @abc.abstractmethod
    def travel_key(self) -> object:
        """Tells apart sessions for which `travelling` gives different computations."""

    @abc.abstractmethod
    def pack(self, payload: object, type_spec: Type) -> Packing:
        """Packs a payload, before it is put; where the caller is, since it may take a while."""

    @abc.abstractmethod
    async def put(self, packing: Packing) -> str:
        """Creates a value and returns its id."""

    @abc.abstractmethod
    async def put_computation(self, computation: Computation) -> str:
        """Creates a function, or what a computation yields."""

    @abc.abstractmethod
    async def call(self, function: str, argument: str | None) -> str:
        """Calls a function."""

    @abc.abstractmethod
    async def struct(self, members: Named) -> str:
        """Packs values into a struct."""

    @abc.abstractmethod
    async def selection(self, source: str, index: int) -> str:
        """Selects a member."""

    @abc.abstractmethod
    async def compute(self, value: str, type_spec: Type) -> object:
        """Computes a value and returns its payload."""

    @property
    def peer(self) -> extended.HandshakeResponse | None:
        """What the peer says of itself; `None` from one without extensions."""
        return None

    async def dispose(self, values: Sequence[str]) -> Sequence[str]:
        """Lets go of values; returns those of which that cannot be said yet, to be asked for again."""
        refs = [plain.ValueRef(id=value) for value in values]
        await self.stub.dispose(plain.DisposeRequest(executor=self.executor, value_ref=refs))
        return ()

    async def renew(self) -> bool:
        """Renews the lease; tells whether the peer still knows the session."""
        return True

    async def end(self) -> None:
        """Ends the session."""
        await self.stub.dispose_executor(plain.DisposeExecutorRequest(executor=self.executor))


class PlainSession(RemoteSession):
    """A session with a peer that has the executor service only: value by value, each in one message."""

    def travelling(self, computation: Computation) -> Computation:
        if self.stub.keeps_handles:
            return computation
        return portable(computation, Destination(self.stub.sends_code, _PLAIN_ADVICE))

    @property
    def sends_code(self) -> bool:
        return not self.stub.keeps_handles and self.stub.sends_code

    @property
    def travel_key(self) -> object:
        return self.stub.keeps_handles, self.stub.sends_code

    def pack(self, payload: object, type_spec: Type) -> Packing:
        value = value_to_proto(payload, type_spec)
        if value.ByteSize() > _MAX_MESSAGE:
            raise ResourceLimitError(
                f"Expected a value of at most {_MAX_MESSAGE} bytes for {self.stub.address}, which takes it in one "
                f"message, found {value.ByteSize()} bytes of type {type_spec}; create its members one by one, or use a "
                "fedstack worker"
            )
        return Packing(type_spec, value=value)

    async def put(self, packing: Packing) -> str:
        request = plain.CreateValueRequest(executor=self.executor, value=packing.value)
        return (await self.stub.create_value(request)).value_ref.id

    async def put_computation(self, computation: Computation) -> str:
        return await self.put(Packing(None, value=plain.Value(computation=computation)))

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
        return with_columns(value_from_proto(response.value, type_spec, path="result"), type_spec)


def elements_of(members: Named) -> list[plain.CreateStructRequest.Element]:
    """Returns the elements of a struct."""
    return [
        plain.CreateStructRequest.Element(name=name or "", value_ref=plain.ValueRef(id=value))
        for name, value in members
    ]
