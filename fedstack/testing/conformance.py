"""Runs the conformance suites: every promise, one row each, against executors or stacks that the caller makes.

def test_my_executor_conforms():
fedstack.testing.check_executor(lambda num_clients: MyExecutor(num_clients))

@pytest.mark.parametrize("row", fedstack.testing.stack_rows())
def test_my_stack_keeps_its_promise(row):
row.check(my_executor_factory)
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import ModuleType
from typing import Any, cast, get_args

import attrs

from fedstack.errors import InvalidValueError
from fedstack.testing.promises import Need, Promise, Tag
from fedstack.testing.rows import (
    contexts,
    contract,
    factories,
    failures,
    functions,
    laziness,
    open_types,
    sequence_intrinsics,
    sequences,
    values,
)
from fedstack.testing.rows.federated import aggregations, empty, folds, placements, secure, select
from fedstack.testing.subjects import ExecutorSubject, MakeExecutor, MakeFactory, StackSubject
from fedstack.transport.peers.retry import RetryPolicy

_MODULES: Sequence[ModuleType] = (
    contract,
    laziness,
    failures,
    values,
    functions,
    placements,
    aggregations,
    folds,
    empty,
    open_types,
    select,
    secure,
    sequences,
    sequence_intrinsics,
    contexts,
    factories,
)
_LIMIT_SECONDS = 45.0
ALL_TAGS: tuple[Tag, ...] = get_args(Tag)


class ConformanceError(AssertionError):
    """A promise is not kept; the message has the row, the promise, what was expected and what was found."""


def promises() -> list[Promise]:
    """Returns all promises, in the order of the documentation."""
    return [value for module in _MODULES for value in vars(module).values() if isinstance(value, Promise)]


@attrs.frozen(eq=False)
class Row:
    """One row of a suite.

    Attributes:
      promise: What is checked.
    """

    promise: Promise

    @property
    def name(self) -> str:
        """The row's name, a sentence."""
        return self.promise.name

    @property
    def __name__(self) -> str:  # pytest shows it in the names of parametrised tests
        return self.promise.name

    def _run(self, make_subject: Callable[[], Any]) -> None:
        """Runs the check in a thread of its own: it works under a running event loop, and what hangs is reported."""
        subject = make_subject()
        errors: list[BaseException] = []
        thread = threading.Thread(
            target=_run_check, args=(self.promise.check, subject, errors), name=f"conformance {self.name}", daemon=True
        )
        thread.start()
        thread.join(_LIMIT_SECONDS)
        if thread.is_alive():
            raise ConformanceError(self._message(subject, f"Expected an end, found none after {_LIMIT_SECONDS:.0f} s"))
        if errors:
            error = errors[0]
            shown = str(error) if isinstance(error, AssertionError) else f"Expected no error, found {error!r}"
            raise ConformanceError(self._message(subject, shown)) from error

    def _message(self, subject: object, what: str) -> str:
        return f"{self.name}: {self.promise.sentence}\n  {what}\n  in {subject!r}"


class ExecutorRow(Row):
    """One row of `check_executor`."""

    def check(self, make_executor: MakeExecutor) -> None:
        """Checks the promise.

        Args:
          make_executor: Returns an executor for a number of clients; the row closes it.

        Raises:
          ConformanceError: If the promise is not kept.
        """
        self._run(lambda: ExecutorSubject(make_executor))


class StackRow(Row):
    """One row of `check_stack`."""

    def check(
        self, make_factory: MakeFactory, *, retry_policy: RetryPolicy | None = None, default_num_clients: int = 0
    ) -> None:
        """Checks the promise.

        Args:
          make_factory: Returns an executor factory; the row closes it.
          retry_policy: What contexts do about retryable errors; five attempts by default.
          default_num_clients: The number of clients that the factory gives where arguments do not tell.

        Raises:
          ConformanceError: If the promise is not kept.
        """
        self._run(lambda: StackSubject(make_factory, retry_policy, default_num_clients))


def _checked(given: object, choice: object, name: str) -> frozenset[object]:
    """Returns what was given of a choice.

    Raises:
      InvalidValueError: If it is no collection of things to choose from.
    """
    known = sorted(get_args(choice))
    several: list[object] = [given]
    if isinstance(given, Collection) and not isinstance(given, str):
        several = list(cast("Collection[object]", given))
    unknown = [item for item in several if item not in known]
    if unknown:
        raise InvalidValueError(f"Expected a list of some of {known} as `{name}`, found {unknown[0]!r}")
    return frozenset(several)


def _chosen(without: object, tags: object) -> list[Promise]:
    needs, tagged = _checked(without, Need, "without"), _checked(tags, Tag, "tags")
    return [promise for promise in promises() if not promise.needs & needs and promise.tag in tagged]


def executor_rows(*, without: Collection[Need] = (), tags: Collection[Tag] = ALL_TAGS) -> list[ExecutorRow]:
    """Returns the rows of `check_executor`, to parametrise a test with.

    Args:
      without: What the executors under test do not have; rows that need it are left out. See `check_executor`.
      tags: What the rows are about. Executors that pass values on unchanged keep promises about `values` if their
        targets do; for these, `["errors", "timing"]` is enough.
    """
    return [ExecutorRow(promise) for promise in _chosen(without, tags) if promise.of_executors]


def stack_rows(*, without: Collection[Need] = (), tags: Collection[Tag] = ALL_TAGS) -> list[StackRow]:
    """Returns the rows of `check_stack`, to parametrise a test with.

    Args:
      without: What the stacks under test do not have; rows that need it are left out. See `check_executor`.
      tags: What the rows are about. See `executor_rows`.
    """
    return [StackRow(promise) for promise in _chosen(without, tags) if promise.of_stacks]


def check_executor(make_executor: MakeExecutor, *, without: Collection[Need] = ()) -> None:
    """Checks every promise about executors.

    >>> from fedstack.executors import FederatingExecutor, LeafExecutor, ReferenceResolvingExecutor, SequenceExecutor
    >>> def make(num_clients):
    ...     return ReferenceResolvingExecutor(FederatingExecutor(SequenceExecutor(LeafExecutor()), num_clients))
    >>> check_executor(make)

    Args:
      make_executor: Returns an executor for a number of clients. It takes every computation of the language, as what
        has a `ReferenceResolvingExecutor` on top does. It is closed in the end.
      without: What the executors do not have, so that promises that need it are left out: `concurrency`, several leaf
        functions at the same time; `same process`, leaf functions that run where they were made; `lazy arguments`,
        sequences that reach leaf functions without being sent.

    Raises:
      ConformanceError: If promises are not kept; it names all of them.
    """
    _check_all([lambda row=row: row.check(make_executor) for row in executor_rows(without=without)])


def check_stack(
    make_factory: MakeFactory,
    *,
    without: Collection[Need] = (),
    retry_policy: RetryPolicy | None = None,
    default_num_clients: int = 0,
) -> None:
    """Checks every promise about stacks, through sync and async contexts.

    >>> import fedstack
    >>> check_stack(fedstack.local_executor_factory)

    Args:
      make_factory: Returns an executor factory. It is closed in the end, if it can be.
      without: What the stacks do not have, so that promises that need it are left out: `concurrency` and `same process`
        as for `check_executor`; `one attempt`, no retries that run leaf functions again.
      retry_policy: What contexts do about retryable errors; five attempts by default.
      default_num_clients: The number of clients that the factory gives where arguments do not tell.

    Raises:
      ConformanceError: If promises are not kept; it names all of them.
    """

    def check(row: StackRow) -> None:
        row.check(make_factory, retry_policy=retry_policy, default_num_clients=default_num_clients)

    _check_all([lambda row=row: check(row) for row in stack_rows(without=without)])


def _check_all(checks: Sequence[Callable[[], None]]) -> None:
    broken: list[ConformanceError] = []
    for check in checks:
        try:
            check()
        except ConformanceError as error:
            broken.append(error)
    if broken:
        details = "\n".join(map(str, broken))
        raise ConformanceError(
            f"Expected {len(checks)} promises to be kept, found {len(broken)} that are not:\n{details}"
        ) from broken[0]


def _run_check(check: Callable[[Any], Awaitable[None]], subject: Any, errors: list[BaseException]) -> None:
    async def checked() -> None:
        await check(subject)

    try:
        try:
            asyncio.run(checked())
        finally:
            subject.close()
    except BaseException as error:
        errors.append(error)
