"""Defines an executor that always fails, for testing how the layers above it handle errors."""

from typing import Any, NoReturn, cast

from fedstack.computations.types.language import Executor, ExecutorValue
from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.value_text import describe


class RaisingExecutor(ClosesOnExit, Executor):
    """An executor whose verbs raise an error. Only `close()` does not raise.

    Args:
      error: The exception to raise, or an exception class that can be called without arguments.

    Raises:
      InvalidValueError: If `error` is neither an exception nor an exception class.
    """

    def __init__(self, error: Exception | type[Exception]) -> None:
        given = cast(object, error)
        kind = given if isinstance(given, type) else type(given)
        if not issubclass(kind, BaseException):
            raise InvalidValueError(
                f"Expected an exception or an exception class to raise, found {describe(error)}; pass "
                "ValueError('no luck'), for example"
            )
        self._error = error

    async def create_value(self, value: Any, type_spec: Any = None) -> NoReturn:
        raise self._error

    async def create_call(self, comp: ExecutorValue, arg: ExecutorValue | None = None) -> NoReturn:
        raise self._error

    async def create_struct(self, elements: Any) -> NoReturn:
        raise self._error

    async def create_selection(self, source: ExecutorValue, index: int) -> NoReturn:
        raise self._error

    def close(self) -> None:
        """Does nothing."""

    def __repr__(self) -> str:
        return f"<RaisingExecutor of {self._error!r}>"
