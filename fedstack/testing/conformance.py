"""Runs the conformance suites, which check executors or stacks with one row per promise.

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
from fedstack.testing.rows.federated import (
    aggregations,
    empty,
    folds,
    placements,
    secure,
    select,
    survivor_errors,
    survivors,
)
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
    survivors,
    survivor_errors,
    sequences,
    sequence_intrinsics,
    contexts,
    factories,
)
_LIMIT_SECONDS = 45.0
ALL_TAGS: tuple[Tag, ...] = get_args(Tag)


class ConformanceError(AssertionError):
    """Raised when a promise is broken.

    The message contains the name of the row, the promise, and the expected and actual behaviour.
    """


def promises() -> list[Promise]:
    """Returns all promises, in the order in which the documentation lists them."""
    return [value for module in _MODULES for value in vars(module).values() if isinstance(value, Promise)]


@attrs.frozen(eq=False)
class Row:
    """One row of a suite.

    Attributes:
      promise: The promise that the row checks.
    """

    promise: Promise

    @property
    def name(self) -> str:
        """The name of the row, which reads as a sentence."""
        return self.promise.name

    @property
    def __name__(self) -> str:  # pytest shows this name in the ids of parametrised tests
        return self.promise.name

    def _run(self, make_subject: Callable[[], Any]) -> None:
        """Runs the check on a new thread, so that callers may run an event loop and a hanging check is reported."""
        subject = make_subject()
        errors: list[BaseException] = []
        thread = threading.Thread(
            target=_run_check, args=(self.promise.check, subject, errors), name=f"conformance {self.name}", daemon=True
        )
        thread.start()
        thread.join(_LIMIT_SECONDS)
        if thread.is_alive():
            raise ConformanceError(
                self._message(
                    subject, f"Expected the check to finish, found it still running after {_LIMIT_SECONDS:.0f} s"
                )
            )
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
          make_executor: Returns a new executor for a number of clients. The row closes the executor.

        Raises:
          ConformanceError: If the promise is broken.
        """
        self._run(lambda: ExecutorSubject(make_executor))


class StackRow(Row):
    """One row of `check_stack`."""

    def check(
        self, make_factory: MakeFactory, *, retry_policy: RetryPolicy | None = None, default_num_clients: int = 0
    ) -> None:
        """Checks the promise.

        Args:
          make_factory: Returns a new executor factory. The row closes the factory.
          retry_policy: The retry policy of the contexts. By default five attempts.
          default_num_clients: The number of clients that the factory uses if the arguments contain no client values.

        Raises:
          ConformanceError: If the promise is broken.
        """
        self._run(lambda: StackSubject(make_factory, retry_policy, default_num_clients))


def _checked(given: object, choice: object, name: str) -> frozenset[object]:
    """Returns the selected options as a set.

    Raises:
      InvalidValueError: If `given` is neither an option of `choice` nor a collection of options.
    """
    known = sorted(get_args(choice))
    several: list[object] = [given]
    if isinstance(given, Collection) and not isinstance(given, str):
        several = list(cast("Collection[object]", given))
    unknown = [item for item in several if item not in known]
    if unknown:
        raise InvalidValueError(f"Expected `{name}` to be a list of names from {known}, found {unknown[0]!r}")
    return frozenset(several)


def _chosen(without: object, tags: object) -> list[Promise]:
    needs, tagged = _checked(without, Need, "without"), _checked(tags, Tag, "tags")
    return [promise for promise in promises() if not promise.needs & needs and promise.tag in tagged]


def executor_rows(*, without: Collection[Need] = (), tags: Collection[Tag] = ALL_TAGS) -> list[ExecutorRow]:
    """Returns the rows of `check_executor`, for parametrising a test.

    Args:
      without: The features that the executors under test lack. Rows that need one of these features are left out. See
        `check_executor`.
      tags: The subjects of the rows to return. An executor that passes values on unchanged keeps the promises about
        `values` if its target does, so `["errors", "timing"]` is enough for it.
    """
    return [ExecutorRow(promise) for promise in _chosen(without, tags) if promise.of_executors]


def stack_rows(*, without: Collection[Need] = (), tags: Collection[Tag] = ALL_TAGS) -> list[StackRow]:
    """Returns the rows of `check_stack`, for parametrising a test.

    Args:
      without: The features that the stacks under test lack. Rows that need one of these features are left out. See
        `check_stack`.
      tags: The subjects of the rows to return. See `executor_rows`.
    """
    return [StackRow(promise) for promise in _chosen(without, tags) if promise.of_stacks]


def check_executor(make_executor: MakeExecutor, *, without: Collection[Need] = ()) -> None:
    """Checks every promise about executors.

    >>> from fedstack.executors import FederatingExecutor, LeafExecutor, ReferenceResolvingExecutor, SequenceExecutor
    >>> def make(num_clients):
    ...     return ReferenceResolvingExecutor(FederatingExecutor(SequenceExecutor(LeafExecutor()), num_clients))
    >>> check_executor(make)

    Args:
      make_executor: Returns a new executor for a number of clients. The executor must accept every computation of the
        language, as a stack with a `ReferenceResolvingExecutor` on top does. It is closed after the check.
      without: The features that the executors lack. Promises that need one of these features are not checked. The
        features are `concurrency` (several leaf functions run at the same time), `same process` (leaf functions run in
        the process that created them) and `lazy arguments` (sequences are passed to leaf functions without being sent).

    Raises:
      ConformanceError: If promises are broken. The message lists all of them.
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
      make_factory: Returns a new executor factory. The factory is closed after the check if it has a `close` method.
      without: The features that the stacks lack. Promises that need one of these features are not checked. The
        features are `concurrency` and `same process`, as for `check_executor`, and `one attempt` (no retry runs a leaf
        function again).
      retry_policy: The retry policy of the contexts. By default five attempts.
      default_num_clients: The number of clients that the factory uses if the arguments contain no client values.

    Raises:
      ConformanceError: If promises are broken. The message lists all of them.
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
            f"Expected all {len(checks)} promises to be kept, found {len(broken)} broken promises:\n{details}"
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
