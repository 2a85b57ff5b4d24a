import abc
from collections.abc import Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")

class TracedSpan: ...

class TracedFunctionReturned:
    def __init__(self, value: object) -> None: ...
    def __getattr__(self, name: str) -> Any: ...  # `value`, which is set in instances only

class TracedFunctionThrew:
    def __init__(
        self, error_type: type[BaseException], error_value: BaseException, traceback: TracebackType | None
    ) -> None: ...
    def __getattr__(self, name: str) -> Any: ...  # the same names

TraceResult = TracedSpan | TracedFunctionReturned | TracedFunctionThrew

class TracingProvider(Generic[_T], abc.ABC):
    @abc.abstractmethod
    def span(
        self,
        scope: str,
        sub_scope: str,
        nonce: int,
        parent_span_yield: _T | None,
        fn_args: tuple[object, ...] | None,
        fn_kwargs: dict[str, object] | None,
        trace_opts: dict[str, object],
    ) -> Generator[_T, TraceResult, None]: ...
    def wrap_rpc(self, parent_span_yield: _T | None) -> AbstractContextManager[None]: ...
    def receive_rpc(self) -> _T | None: ...

class LoggingTracingProvider(TracingProvider[None]):
    def span(
        self,
        scope: str,
        sub_scope: str,
        nonce: int,
        parent_span_yield: None,
        fn_args: tuple[object, ...] | None,
        fn_kwargs: dict[str, object] | None,
        trace_opts: dict[str, object],
    ) -> Generator[None, TraceResult, None]: ...

def span(scope: str, sub_scope: str, **trace_opts: object) -> AbstractContextManager[None]: ...
def set_tracing_providers(tracing_providers: list[TracingProvider[Any]]) -> None: ...
