"""Defines the executor that counts the bits and elements that clients receive and send."""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from fedstack.computations.plan.program import Program
from fedstack.computations.types.language import Executor, Type
from fedstack.computations.values.column_sequence import ColumnSequence
from fedstack.computations.values.columns import Column, ConstantColumn, RowsColumn, StructColumn
from fedstack.executors.base.engines import PassingEngine, ProgramEngine
from fedstack.executors.base.phase_sink import PassingSink, ResultStream, Sink
from fedstack.executors.base.verb_values import VerbValue
from fedstack.executors.base.wrapper_executor import WrapperExecutor
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.foundations.after_fork import renew_after_fork


class SizeInfo:
    """Counts of the data that each client receives in broadcasts and sends for aggregation.

    Attributes:
      broadcast_bits: For each client, the number of bits received from the server.
      aggregate_bits: For each client, the number of bits sent to the server.
      broadcast_elements: For each client and dtype, the number of elements received. Each byte of a string counts as
        one element.
      aggregate_elements: For each client and dtype, the number of elements sent, counted in the same way.
    """

    def __init__(self) -> None:
        self.broadcast_bits: Counter[int] = Counter()
        self.aggregate_bits: Counter[int] = Counter()
        self.broadcast_elements: dict[int, Counter[str]] = {}
        self.aggregate_elements: dict[int, Counter[str]] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replaces the lock in a forked child; see `after_fork`."""
        self._lock = threading.Lock()

    @property
    def total_broadcast_bits(self) -> int:
        """The total number of bits that all clients received."""
        return sum(self.broadcast_bits.values())

    @property
    def total_aggregate_bits(self) -> int:
        """The total number of bits that all clients sent."""
        return sum(self.aggregate_bits.values())

    def add(self, client: int, sizes: "Counter[str]", *, aggregate: bool) -> None:
        """Adds numbers of elements by dtype to the counts of a client.

        Args:
          client: The index of the client.
          sizes: The number of elements of each dtype.
          aggregate: Whether the client sent the elements; otherwise the client received them.
        """
        bits = sum(count * bits_per_element(dtype) for dtype, count in sizes.items())
        with self._lock:
            (self.aggregate_bits if aggregate else self.broadcast_bits)[client] += bits
            elements = self.aggregate_elements if aggregate else self.broadcast_elements
            elements.setdefault(client, Counter()).update(sizes)

    def clear(self) -> None:
        """Resets all counts to zero."""
        with self._lock:
            for counts in (self.broadcast_bits, self.aggregate_bits, self.broadcast_elements, self.aggregate_elements):
                counts.clear()

    def __repr__(self) -> str:
        return f"<SizeInfo {self.total_broadcast_bits} bits broadcast, {self.total_aggregate_bits} bits aggregated>"


def bits_per_element(dtype: str) -> int:
    """Returns the size of an element in bits. A boolean counts as one bit, and an element of a string is one byte."""
    if dtype == "str":
        return 8
    return 1 if dtype == "bool" else 8 * np.dtype(dtype if dtype != "bfloat16" else "uint16").itemsize


def elements_of(payload: object) -> "Counter[str]":
    """Counts the elements of a payload by dtype. Streams are not iterated, so their elements are not counted."""
    if isinstance(payload, np.ndarray):
        array = cast(np.ndarray, payload)
        if array.dtype.kind == "O":
            return Counter({"str": sum(len(item) for item in array.ravel().tolist())})
        return Counter({array.dtype.name: array.size})
    if isinstance(payload, np.generic):
        return Counter({cast(np.generic, payload).dtype.name: 1})
    if isinstance(payload, bytes):
        return Counter({"str": len(payload)})
    if isinstance(payload, ColumnSequence) and payload.batching is None:
        payload = payload.column
    if isinstance(payload, RowsColumn):
        return elements_of(payload.values)
    if isinstance(payload, Column):
        payload = payload.items()
    if isinstance(payload, (tuple, list)):
        return sum((elements_of(item) for item in cast("Iterable[object]", payload)), Counter[str]())
    return Counter()


class SizingEngine(PassingEngine):
    """Counts the inputs and results of clients; see `SizingExecutor`."""

    def __init__(self, target: ProgramEngine, sizes: SizeInfo) -> None:
        super().__init__(target)
        self._sizes = sizes

    @property
    def leaf_threads(self) -> LeafThreads | None:
        return None  # with threads, folds could read results directly, so that the results would not be counted

    async def run_clients(self, program: Program, inputs: Sequence[Column], clients: range, sink: Sink) -> None:
        sizes = sum(map(_shared_elements, inputs), Counter[str]())
        if sizes:
            for client in clients:
                self._sizes.add(client, sizes, aggregate=False)
        await self.target.run_clients(program, inputs, clients, _CountingSink(sink, self._sizes))


class SizingExecutor(WrapperExecutor):
    """Counts payloads that all clients share as broadcast, and the results of clients as aggregated.

    Data that belongs to a single client is not counted. If the target does not run client phases, each created value
    counts as broadcast and each computed value as aggregated, both for client 0.

    Args:
      target: The executor below. It is closed with this executor.
      sizes: The counts to update; by default a new `SizeInfo`.
    """

    def __init__(self, target: Executor, sizes: SizeInfo | None = None) -> None:
        counts = SizeInfo() if sizes is None else sizes
        super().__init__(target, lambda engine: SizingEngine(engine, counts))
        self._sizes = counts

    def get_size_info(self) -> SizeInfo:
        """Returns the current counts."""
        return self._sizes

    async def create_known(self, payload: object, type_spec: Type) -> VerbValue:
        created = await super().create_known(payload, type_spec)
        self._count(payload, aggregate=False)
        return created

    async def computed(self, value: VerbValue) -> object:
        payload = await super().computed(value)
        self._count(payload, aggregate=True)
        return payload

    def _count(self, payload: object, *, aggregate: bool) -> None:
        if self.phases is None:
            self._sizes.add(0, elements_of(payload), aggregate=aggregate)


def _shared_elements(column: Column) -> "Counter[str]":
    """Counts the elements of the parts of a column that are the same for all clients."""
    if isinstance(column, ConstantColumn):
        return elements_of(column.value)
    if isinstance(column, StructColumn):
        return sum(map(_shared_elements, column.fields), Counter[str]())
    return Counter()


class _CountingSink(PassingSink):
    """Counts results and passes them on to another sink."""

    def __init__(self, sink: Sink, sizes: SizeInfo) -> None:
        super().__init__(sink)
        self._sizes = sizes

    def feed(self, start: int, results: Sequence[Column]) -> None:
        for column in results:
            for client, payload in enumerate(column.items(), start):
                self._sizes.add(client, elements_of(payload), aggregate=True)
        super().feed(start, results)

    def stream(self, start: int) -> ResultStream:
        return _CountingStream(super().stream(start), self._sizes, start)


class _CountingStream:
    """Counts the results of clients one by one, and passes them on to another stream."""

    def __init__(self, stream: ResultStream, sizes: SizeInfo, start: int) -> None:
        self.close = stream.close
        self._stream = stream
        self._sizes = sizes
        self._next = start

    def add(self, results: list[object]) -> None:
        for elements in map(elements_of, results):
            self._sizes.add(self._next, elements, aggregate=True)
        self._next += 1
        self._stream.add(results)
