"""What is wrong with a computation reads the same, wherever it runs."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import failing_leaves as failing
import pytest
from fault_stacks import WALL, context_over, executor_at, locally
from processes import Fleet

import fedstack
from fedstack.computations.types.language import CLIENTS, Executor
from fedstack.errors import CarrierError, FedstackError
from fedstack.transport.wire.status import RemoteTraceback

NUMBERS = [1, 1, 3, 1, 3]
SEQUENCES = [[1], [], [1, 3, 2], [1], [3]]
CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **{name: (failing.mapped(leaf), (NUMBERS,)) for name, leaf in failing.LEAVES.items()},
    "the fifth client raises": (failing.of_both, ([1] * 5, [1, 1, 1, 1, 3])),
    "the accumulation of the fifth client raises": (failing.accumulated, ([1, 1, 1, 1, 3, *[1] * 11],)),
    "a map over the sequence of the third client raises": (failing.over_sequences(False), (SEQUENCES,)),
    "a reduction of the sequence of the third client raises": (failing.over_sequences(True), (SEQUENCES,)),
    "unknown function": (failing.with_unknown_function(), (NUMBERS,)),
    "unknown data": (failing.with_unknown_data(), (NUMBERS,)),
    "two numbers of clients": (failing.of_both, ([1] * 5, [1] * 4)),
    "text for a number": (failing.of_both, ([1] * 5, [1, 1, "one", 1, 1])),
}


def error_of(call: Any) -> FedstackError:
    with pytest.raises(FedstackError) as caught:
        call()
    return caught.value


def what_it_says(error: FedstackError) -> dict[str, object]:
    return {
        "class": type(error),
        # Workers may differ in what they let in, so this one error names the worker too.
        "message": re.sub(r"; this is a restriction of the worker at \S+$", "", str(error))
        if isinstance(error, CarrierError)
        else str(error),
        "computation_name": getattr(error, "computation_name", None),
        "client_index": getattr(error, "client_index", None),
        "executor_path": error.executor_path,
    }


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_an_error_of_clients_is_the_same_here_and_at_workers(fleet: Fleet, name: str, workers: int) -> None:
    computation, arguments = CASES[name]
    here = error_of(lambda: locally(computation, *arguments))
    with context_over([fleet.start().target for _ in range(workers)]):
        there = error_of(lambda: computation(*arguments))
    # A worker that is idle may take over some of another's clients. The caller folds the block that they then share.
    found_by_caller = "accumulation" in name and not isinstance(there.__cause__, RemoteTraceback)
    ignored = {"executor_path": ()} if found_by_caller else {}
    assert what_it_says(there) | ignored == what_it_says(here) | ignored
    assert isinstance(there.__cause__, RemoteTraceback) or not there.executor_path or found_by_caller


def ends_early() -> Iterator[int]:
    yield 1
    raise OSError("no such file")


def has_text() -> Iterator[object]:
    yield from (1, "two")


# Whether a sequence is looked at while functions run or before they go to a worker.
@pytest.mark.parametrize("elements", [ends_early, has_text, lambda: 3])
@pytest.mark.parametrize("leaf", [failing.total, failing.count])
def test_an_error_of_a_stream_says_the_same_here_and_at_workers(fleet: Fleet, leaf: Any, elements: Any) -> None:
    computation = failing.of_sequences(leaf)
    data = [[1], fedstack.from_generator(lambda: iter([1])), fedstack.from_generator(elements)]
    here = error_of(lambda: locally(computation, data))
    with context_over([fleet.start().target]):
        there = error_of(lambda: computation(data))
    ignored = {"executor_path": ()}
    assert what_it_says(there) | ignored == what_it_says(here) | ignored
    assert "; at arg[client 2]" in str(here)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_length_of_a_stream_is_the_number_of_its_elements(fleet: Fleet, workers: int) -> None:
    computation, data = failing.of_sequences(failing.count_and_last), [fedstack.from_generator(lambda: range(4)), [7]]
    if workers:
        with context_over([fleet.start().target for _ in range(workers)]):
            found = computation(data)
    else:
        found = locally(computation, data)
    assert found == [403, 107]


@pytest.mark.parametrize("reduces", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_function_over_the_elements_of_a_sequence_names_the_client(
    fleet: Fleet, reduces: bool, workers: int
) -> None:
    computation = failing.over_sequences(reduces)
    if workers:
        with context_over([fleet.start().target for _ in range(workers)]):
            error = error_of(lambda: computation(SEQUENCES))
    else:
        error = error_of(lambda: locally(computation, SEQUENCES))
    assert "ValueError: three; at client 2" in str(error)
    assert getattr(error, "client_index", None) == 2


async def run_in(executor: Executor, computation: Any, arguments: tuple[Any, ...]) -> object:
    """Runs a computation by the four verbs."""
    function = await executor.create_value(computation)
    parameter = computation.type_signature.parameter
    given: Any = arguments
    if len(arguments) == 1:
        (given,) = arguments
    argument = await executor.create_value(given, parameter)
    return await (await executor.create_call(function, argument)).compute()


@pytest.mark.parametrize("extensions", [True, False], ids=["extended", "plain"])
@pytest.mark.parametrize("name", [*CASES, "another number of clients than the executor has"])
def test_an_error_of_an_executor_is_the_same_here_and_at_a_worker(fleet: Fleet, name: str, extensions: bool) -> None:
    computation, arguments = CASES.get(name, (failing.of_both, ([1] * 3, [1] * 3)))

    def run(executor: Executor) -> None:
        asyncio.run(asyncio.wait_for(run_in(executor, computation, arguments), WALL))

    factory = fedstack.local_executor_factory()
    here = error_of(lambda: run(factory.create_executor({CLIENTS: 5})))
    factory.close()
    with executor_at(fleet.start().target, 5, extensions=extensions) as executor:
        there = error_of(lambda: run(executor))
    found, expected = what_it_says(there), what_it_says(here)
    del found["executor_path"], expected["executor_path"]
    assert found == expected
