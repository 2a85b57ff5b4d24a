"""The stacks that the conformance suites run over, by name; docs/semantics.md lists the same names."""

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import attrs
import remote_stacks

import fedstack
from fedstack.computations.types.language import CLIENTS, Executor, ExecutorFactory
from fedstack.contexts import ResourceManagingExecutorFactory
from fedstack.executors import (
    ComposingExecutor,
    DataExecutor,
    FederatingExecutor,
    LeafExecutor,
    ReferenceResolvingExecutor,
    SequenceExecutor,
    SizingExecutor,
)
from fedstack.testing import FaultInjectingExecutor, FaultPlan, TracingExecutor, executor_rows, stack_rows
from fedstack.testing.conformance import ALL_TAGS

# For stacks that pass values on as other stacks of these lists do: a wrapper with nothing to do, another number of
# threads for the same blocks, a socket in place of memory, workers whose executor alone runs all rows in that form, as
# many workers as executors are composed of elsewhere. They cannot change what comes out, only when, or an error.
PASSES_ON = ("errors", "timing")


@attrs.frozen
class ExecutorStack:
    """How to make an executor for a number of clients, what it lacks, and what its rows are about.

    Rows about values that both suites have run over one of two `twins`, the executor and the factory of one stack: a
    context asks the executor for what the other row asks it for.
    """

    kind: str
    make: Callable[[int], Executor]
    without: Collection[Any] = ()
    tags: Collection[Any] = ALL_TAGS
    is_second_twin: bool = False


@attrs.frozen
class FactoryStack:
    """How to make a factory, what its stacks lack, how contexts over it are made, and what its rows are about."""

    kind: str
    make: Callable[[], ExecutorFactory]
    without: Collection[Any] = ()
    options: dict[str, Any] = attrs.field(factory=dict)
    tags: Collection[Any] = ALL_TAGS
    is_second_twin: bool = False


def rows_for(stack: ExecutorStack | FactoryStack) -> Iterator[Any]:
    """Yields the rows of the suite that a stack is for."""
    suite = executor_rows if isinstance(stack, ExecutorStack) else stack_rows
    for row in suite(without=stack.without, tags=stack.tags):
        promise = row.promise
        is_of_both = promise.of_executors and promise.of_stacks
        if not (stack.is_second_twin and is_of_both and promise.tag == "values"):
            yield row


class NoData:
    """A data backend that is never asked."""

    async def materialize(self, data: object, type_spec: object) -> object:
        raise AssertionError(f"nobody asks for data here, but somebody asked for {data}")


def federating(num_clients: int, wrap: Callable[[Any], Any] = lambda target: target, **options: Any) -> Executor:
    return ReferenceResolvingExecutor(FederatingExecutor(SequenceExecutor(wrap(LeafExecutor(**options))), num_clients))


def wrapped_clients(num_clients: int, wrap: Callable[[Any], Any]) -> Executor:
    unplaced = SequenceExecutor(LeafExecutor())
    return ReferenceResolvingExecutor(FederatingExecutor(unplaced, num_clients, client_target=wrap(unplaced)))


def split(num_clients: int, parts: int) -> list[int]:
    """Cuts clients unevenly, so that hardly any cut is a power of two."""
    bounds = [num_clients * (k * k + k) // (parts * parts + parts) for k in range(parts + 1)]
    return [stop - start for start, stop in itertools.pairwise(bounds)]


def composing(num_clients: int, parts: int) -> ComposingExecutor:
    counts = split(num_clients, parts)
    children = [FederatingExecutor(SequenceExecutor(LeafExecutor()), count) for count in counts]
    return ComposingExecutor(SequenceExecutor(LeafExecutor()), children, counts)


def composed(num_clients: int, parts: int) -> Executor:
    return ReferenceResolvingExecutor(composing(num_clients, parts))


def composed_twice(num_clients: int) -> Executor:
    counts = split(num_clients, 3)
    children = [composing(count, 2) for count in counts]
    return ReferenceResolvingExecutor(ComposingExecutor(SequenceExecutor(LeafExecutor()), children, counts))


def remote_executor(make: Callable[[int], Executor], tags: Collection[Any] = ALL_TAGS) -> ExecutorStack:
    return ExecutorStack("remote", make, ["lazy arguments"], tags)


EXECUTORS = {
    "local": ExecutorStack("local", federating),
    "one function at a time": ExecutorStack(
        "local", lambda n: federating(n, max_concurrent_clients=1), ["concurrency"], PASSES_ON
    ),
    "thread per client": ExecutorStack("local", lambda n: federating(n, clients_per_thread=1), is_second_twin=True),
    "composed of 1": ExecutorStack("composed", lambda n: composed(n, 1), tags=PASSES_ON),
    "composed of 2": ExecutorStack("composed", lambda n: composed(n, 2)),
    "composed of 5": ExecutorStack("composed", lambda n: composed(n, 5)),
    "composed twice": ExecutorStack("composed", composed_twice),
    "sized": ExecutorStack("wrapped", lambda n: wrapped_clients(n, SizingExecutor), is_second_twin=True),
    "with data": ExecutorStack(
        "wrapped", lambda n: federating(n, lambda target: DataExecutor(target, NoData())), tags=PASSES_ON
    ),
    "without faults": ExecutorStack(
        "wrapped",
        lambda n: wrapped_clients(n, lambda target: FaultInjectingExecutor(target, FaultPlan.none())),
        tags=PASSES_ON,
    ),
    "traced": ExecutorStack("wrapped", lambda n: TracingExecutor(federating(n)), tags=PASSES_ON),
    "remote in memory": remote_executor(lambda n: remote_stacks.remote(n, remote_stacks.in_memory_stub())),
    "remote over loopback": remote_executor(
        lambda n: remote_stacks.remote(n, remote_stacks.stub(remote_stacks.loopback_target())), PASSES_ON
    ),
    "remote over mTLS": remote_executor(
        lambda n: remote_stacks.remote(n, remote_stacks.stub(remote_stacks.mtls_target()))
    ),
    "remote, structs streamed": remote_executor(
        lambda n: remote_stacks.remote(n, remote_stacks.in_memory_stub(), stream_structs=True)
    ),
    "remote in chunks": remote_executor(
        lambda n: remote_stacks.remote(n, remote_stacks.in_memory_stub(remote_stacks.CHUNKED))
    ),
    "remote at a process": ExecutorStack(
        "remote",
        lambda n: remote_stacks.remote(n, remote_stacks.pool_stub()),
        without=["lazy arguments", "same process"],
        is_second_twin=True,
    ),
    "remote, plain verbs": remote_executor(
        lambda n: remote_stacks.remote(n, remote_stacks.in_memory_stub(**remote_stacks.PLAIN))
    ),
}


def composing_factory(parts: int) -> ExecutorFactory:
    return ResourceManagingExecutorFactory(lambda cardinalities: composed(cardinalities[CLIENTS], parts))


def faulty_factory() -> ExecutorFactory:
    plan = FaultPlan(seed=11, latency=0.002, error_rate=0.03, drop_rate=0.03, failures_in_a_row=2)
    return fedstack.local_executor_factory(wrap_clients=lambda target: FaultInjectingExecutor(target, plan))


def remote_factory(make: Callable[[], ExecutorFactory], tags: Collection[Any] = ALL_TAGS) -> FactoryStack:
    return FactoryStack("remote", make, ["lazy arguments"], tags=tags)


FACTORIES = {
    "local": FactoryStack("local", fedstack.local_executor_factory, is_second_twin=True),
    "three clients by default": FactoryStack(
        "local",
        lambda: fedstack.local_executor_factory(default_num_clients=3),
        (),
        {"default_num_clients": 3},
        PASSES_ON,
    ),
    "one function at a time": FactoryStack(
        "local", lambda: fedstack.local_executor_factory(max_concurrent_clients=1), ["concurrency"], tags=PASSES_ON
    ),
    "thread per client": FactoryStack("local", lambda: fedstack.local_executor_factory(clients_per_thread=1)),
    "sized": FactoryStack("wrapped", fedstack.sizing_executor_factory),
    "with data": FactoryStack(
        "wrapped", lambda: fedstack.local_executor_factory(data_backend=NoData()), tags=PASSES_ON
    ),
    "composed of 2": FactoryStack("composed", lambda: composing_factory(2), is_second_twin=True),
    "composed of 5": FactoryStack("composed", lambda: composing_factory(5), is_second_twin=True),
    "faults and retries": FactoryStack(
        "wrapped",
        faulty_factory,
        without=["one attempt"],
        options={"retry_policy": fedstack.RetryPolicy(attempts=20, first_pause=0.0)},
        tags=PASSES_ON,
    ),
    "1 worker": remote_factory(lambda: remote_stacks.workers([remote_stacks.loopback_target()]), PASSES_ON),
    "2 workers": remote_factory(lambda: fedstack.remote_executor_factory(remote_stacks.cluster())),
    "5 workers": remote_factory(lambda: remote_stacks.in_memory_workers(5), PASSES_ON),
    "2 workers over mTLS": remote_factory(lambda: remote_stacks.workers([remote_stacks.mtls_target()] * 2), PASSES_ON),
    "2 workers in chunks": remote_factory(
        lambda: remote_stacks.in_memory_workers(2, {"chunking": remote_stacks.CHUNKED}), PASSES_ON
    ),
    "1 worker process": FactoryStack(
        "remote",
        lambda: fedstack.remote_executor_factory([remote_stacks.new_pool_stub()]),
        without=["lazy arguments", "same process"],
    ),
    "2 worker processes": FactoryStack(
        "remote",
        lambda: fedstack.remote_executor_factory(remote_stacks.pool()),
        without=["lazy arguments", "same process"],
    ),
    "2 workers, plain verbs": FactoryStack(
        "remote",
        lambda: remote_stacks.in_memory_workers(2, remote_stacks.PLAIN),
        without=["client failures", "lazy arguments"],
        tags=PASSES_ON,
    ),
    "3 workers that are lost": FactoryStack(
        "remote",
        remote_stacks.lossy_workers,
        without=["lazy arguments", "one attempt"],
        options={"retry_policy": fedstack.RetryPolicy(attempts=100, first_pause=0.001, longest_pause=0.01)},
    ),
    "3 workers that hand in and are lost": FactoryStack(
        "remote",
        remote_stacks.workers_that_hand_in,
        without=["lazy arguments", "one attempt"],
        options={"retry_policy": fedstack.RetryPolicy(attempts=100, first_pause=0.001, longest_pause=0.01)},
    ),
    "2 workers with faults and retries": FactoryStack(
        "remote",
        remote_stacks.faulty_workers,
        without=["lazy arguments", "one attempt"],
        options={"retry_policy": fedstack.RetryPolicy(attempts=20, first_pause=0.0)},
    ),
}

# Variations of stacks that are tested on one Python only: what they vary does not depend on it. On every Python there
# are one process, clients that are composed, and workers, in memory and over sockets.
SLOW = frozenset(
    {
        "1 worker process",
        "2 worker processes",
        "remote at a process",
        "2 workers in chunks",
        "2 workers over mTLS",
        "2 workers with faults and retries",
        "3 workers that are lost",
        "3 workers that hand in and are lost",
        "5 workers",
        "2 workers, plain verbs",
        "composed of 1",
        "composed of 5",
        "composed twice",
        "faults and retries",
        "one function at a time",
        "remote in chunks",
        "remote over loopback",
        "remote over mTLS",
        "remote, plain verbs",
        "remote, structs streamed",
        "sized",
        "three clients by default",
        "thread per client",
        "traced",
        "with data",
        "without faults",
    }
)

# Of these what is about values runs on one Python only. On every Python it runs over a worker in memory, which packs as
# others do, and over executors that are composed; what is between are gRPC's sockets.
SLOW_VALUES = frozenset({"2 workers"})
