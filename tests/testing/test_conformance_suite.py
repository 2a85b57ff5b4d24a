"""The suites themselves: they find what is broken, say so clearly, and cover the language."""

import asyncio
import contextlib
import itertools
import threading

import numpy as np
import pytest
from federated_language.compiler import intrinsic_defs

import fedstack
from fedstack.errors import InvalidValueError
from fedstack.executors import FederatingExecutor, LeafExecutor, ReferenceResolvingExecutor, SequenceExecutor
from fedstack.testing import (
    ConformanceError,
    RaisingExecutor,
    TracingExecutor,
    check_executor,
    check_stack,
    conformance,
    executor_rows,
    stack_rows,
)


def make(num_clients: int) -> ReferenceResolvingExecutor:
    return ReferenceResolvingExecutor(FederatingExecutor(SequenceExecutor(LeafExecutor()), num_clients))


def row_of(rows, name: str):
    return next(row for row in rows if row.name == name)


class EagerExecutor(TracingExecutor):
    """Runs everything when it is created."""

    async def create_call(self, comp, arg=None):
        made = await super().create_call(comp, arg)
        with contextlib.suppress(Exception):
            await made.compute()
        return made


class SingleExecutor(TracingExecutor):
    """Rounds every result to single precision."""

    async def computed(self, value):
        result = await super().computed(value)
        return np.float32(result) if isinstance(result, np.float64) else result


class LeakyExecutor(TracingExecutor):
    """Does not close what it owns."""

    def close(self):
        pass


class StuckExecutor(TracingExecutor):
    """Does not come back with a result before it is told to."""

    async def computed(self, value):
        self.loop = asyncio.get_running_loop()
        self.going_on = asyncio.Event()
        await self.going_on.wait()


class PlainlyTypedExecutor(TracingExecutor):
    """Refuses values of others with Python's own error, and words of its own."""

    words = "{theirs} has made this, and not {ours}"

    def _own(self, value, role):
        if getattr(value, "executor", self) is not self:
            raise TypeError(self.words.format(theirs=value.executor, ours=self))
        return super()._own(value, role)

    def __repr__(self):
        return f"<{type(self).__name__} {id(self)}>"


class TaciturnExecutor(PlainlyTypedExecutor):
    """Does the same and names itself only."""

    words = "{ours} has not made this"


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (EagerExecutor, "what_nobody_pulls_never_runs"),
        (SingleExecutor, "every_dtype_comes_back_exactly"),
        (SingleExecutor, "scalars_are_folded_along_the_tree"),
        (LeakyExecutor, "closing_is_final_and_can_be_repeated"),
    ],
)
def test_a_broken_executor_fails_the_row_of_the_promise_it_breaks(broken, name) -> None:
    made = []

    def make_broken(num_clients: int):
        made.append(make(num_clients))
        return broken(made[-1])

    with pytest.raises(ConformanceError) as caught:
        row_of(executor_rows(), name).check(make_broken)
    for executor in made:
        executor.close()
    message = str(caught.value)
    row = row_of(executor_rows(), name)
    assert message.startswith(f"{name}: {row.promise.sentence}")
    assert "Expected " in message
    assert ", found " in message
    assert "TracingExecutor over" in message


@pytest.mark.parametrize(("kind", "keeps_it"), [(PlainlyTypedExecutor, True), (TaciturnExecutor, False)])
def test_a_value_of_another_executor_is_to_be_refused_with_any_type_error_that_names_both(kind, keeps_it) -> None:
    def make_kind(num_clients: int):
        return kind(make(num_clients))

    row = row_of(executor_rows(), "a_value_belongs_to_the_executor_that_made_it")
    with contextlib.nullcontext() if keeps_it else pytest.raises(ConformanceError, match="in the message of TypeError"):
        row.check(make_kind)


def test_a_row_that_hangs_is_reported_and_left_behind(monkeypatch) -> None:
    monkeypatch.setattr(conformance, "_LIMIT_SECONDS", 0.2)
    made = []

    def make_stuck(num_clients: int) -> StuckExecutor:
        made.append(StuckExecutor(make(num_clients)))
        return made[-1]

    with pytest.raises(ConformanceError, match="Expected the check to finish, found it still running"):
        row_of(executor_rows(), "map_runs_once_per_client").check(make_stuck)
    # What was left behind ends with its executor.
    made[0].loop.call_soon_threadsafe(made[0].going_on.set)


def test_an_unexpected_error_is_shown_with_its_class() -> None:
    with pytest.raises(ConformanceError, match=r"found ConnectionError\('gone'\)") as caught:
        row_of(executor_rows(), "map_runs_once_per_client").check(lambda n: RaisingExecutor(ConnectionError("gone")))
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_an_error_while_making_the_executor_is_reported_too() -> None:
    def refuse(num_clients: int):
        raise OSError("no room")

    with pytest.raises(ConformanceError, match="no room"):
        row_of(executor_rows(), "map_runs_once_per_client").check(refuse)


def test_check_executor_names_all_promises_that_are_not_kept() -> None:
    with pytest.raises(ConformanceError) as caught:
        check_executor(lambda n: RaisingExecutor(ConnectionError("gone")))
    message = str(caught.value)
    assert message.startswith(f"Expected all {len(executor_rows())} promises to be kept, found ")
    assert "map_runs_once_per_client: " in message
    assert "sums_over_nobody_are_zero: " in message


def test_check_stack_names_all_promises_that_are_not_kept() -> None:
    def make_factory():
        return fedstack.contexts.ResourceManagingExecutorFactory(lambda _: RaisingExecutor(ConnectionError("gone")))

    with pytest.raises(ConformanceError, match="numbers_of_clients_must_agree: "):
        check_stack(make_factory)


@pytest.mark.long
def test_check_executor_passes_the_local_executors() -> None:
    check_executor(make)


@pytest.mark.long
def test_check_stack_passes_the_local_stack() -> None:
    check_stack(fedstack.local_executor_factory)


async def test_a_row_can_be_checked_under_a_running_event_loop() -> None:
    row_of(executor_rows(), "map_runs_once_per_client").check(make)
    row_of(stack_rows(), "sync_and_async_contexts_give_the_same").check(fedstack.local_executor_factory)


def test_rows_close_what_they_make() -> None:
    made = []

    def make_noted(num_clients: int):
        made.append(make(num_clients))
        return made[-1]

    for row in executor_rows()[:3]:
        row.check(make_noted)
    assert made
    assert all("closed" in repr(executor) for executor in made)


def test_rows_have_names_and_sentences_of_their_own() -> None:
    promises = conformance.promises()
    assert len({promise.name for promise in promises}) == len(promises)
    assert len({promise.sentence for promise in promises}) == len(promises)
    for promise in promises:
        assert promise.sentence.endswith("."), promise.name
        assert promise.name.islower(), promise.name
        assert promise.of_executors or promise.of_stacks


def test_pytest_shows_the_names_of_rows() -> None:
    names = [row.__name__ for row in (*executor_rows(), *stack_rows())]
    assert "map_runs_once_per_client" in names
    assert type(executor_rows()[0]).__name__ == "ExecutorRow"


@pytest.mark.parametrize("rows", [executor_rows, stack_rows])
def test_every_intrinsic_of_the_language_has_a_row(rows) -> None:
    language = {value.uri for value in vars(intrinsic_defs).values() if isinstance(value, intrinsic_defs.IntrinsicDef)}
    covered = {uri for row in rows() for uri in row.promise.intrinsics}
    assert covered == language


@pytest.mark.parametrize("rows", [executor_rows, stack_rows])
@pytest.mark.parametrize("need", ["concurrency", "lazy arguments", "one attempt", "same process"])
def test_rows_that_need_something_can_be_left_out(rows, need) -> None:
    left, every = rows(without=[need]), rows()
    assert [row.name for row in rows(without=need)] == [row.name for row in left]
    assert 0 < len(left) < len(every)
    assert all(need not in row.promise.needs for row in left)
    assert {row.name for row in every} - {row.name for row in left} == {
        row.name for row in every if need in row.promise.needs
    }


@pytest.mark.parametrize("rows", [executor_rows, stack_rows])
@pytest.mark.parametrize("without", ["concurency", ["concurency"], 5])
def test_what_no_row_needs_cannot_be_left_out(rows, without) -> None:
    with pytest.raises(
        InvalidValueError,
        match=r"Expected `without` to be a list of names from \['client failures', 'concurrency', .*\], found",
    ):
        rows(without=without)


@pytest.mark.parametrize("rows", [executor_rows, stack_rows])
def test_rows_can_be_chosen_by_what_they_are_about(rows) -> None:
    parts = {tag: [row.name for row in rows(tags=[tag])] for tag in ("values", "errors", "timing")}
    assert sorted(itertools.chain(*parts.values())) == sorted(row.name for row in rows())
    assert all(parts.values())
    assert "an_error_in_a_leaf_says_which_and_where" in parts["errors"]
    assert "a_shared_local_runs_once" in parts["timing"]
    assert "integers_wrap_around" in parts["values"]


@pytest.mark.parametrize("rows", [executor_rows, stack_rows])
@pytest.mark.parametrize("tags", ["error", ["error"], 5])
def test_what_no_row_is_about_cannot_be_chosen(rows, tags) -> None:
    with pytest.raises(InvalidValueError, match=r"Expected `tags` to be a list of names from \['errors', .*\], found"):
        rows(tags=tags)


def test_rows_leave_no_threads_of_their_own_behind() -> None:
    before = set(threading.enumerate())
    row_of(executor_rows(), "map_runs_once_per_client").check(make)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("conformance")]
