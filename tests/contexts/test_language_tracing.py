"""Calls and phases as spans of the language's own tracing."""

from collections.abc import Generator, Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from federated_language.common_libs import tracing

import fedstack
from fedstack.contexts import SyncExecutionContext, use_language_tracing
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

INTS = fl.FederatedType(np.int32, fl.CLIENTS)


@fedstack.python_computation([np.int32], np.int32)
def double(x: np.int32) -> np.int32:
    if x < 0:
        raise ValueError("negative")
    return x + x


@fl.federated_computation(INTS)
def double_all(values: fl.Value) -> fl.Value:
    return fl.federated_sum(fl.federated_map(double, values))


class Spans(tracing.TracingProvider[str]):
    """Writes down spans: their paths, how they ended, and what else was said of them."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []
        self.options: dict[str, dict[str, Any]] = {}

    def span(
        self,
        scope: str,
        sub_scope: str,
        nonce: int,
        parent_span_yield: Any,
        fn_args: Any,
        fn_kwargs: Any,
        trace_opts: Any,
    ) -> Generator[str, Any, None]:
        path = f"{parent_span_yield or ''}/{scope.removeprefix('fedstack.')} {sub_scope}"
        self.options[path] = {**trace_opts, "nonce": nonce}
        result = yield path
        error = f"{result.error_value}" if isinstance(result, tracing.TracedFunctionThrew) else ""
        self.ended.append((path, error))


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    before = tracing._global_tracing_providers  # pyright: ignore[reportAttributeAccessIssue]
    tracing.set_tracing_providers([found])
    yield found
    tracing.set_tracing_providers(before)


@pytest.fixture(autouse=True)
def local() -> Iterator[None]:
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        yield


def test_a_call_is_a_span_and_a_phase_is_one_within_it(spans: Spans) -> None:
    with use_language_tracing():
        assert double_all([1, 2]) == 6
    call, phase = "/call double_all", "/call double_all/phase double"
    assert spans.ended == [(phase, ""), (call, "")]
    assert spans.options[phase]["parent"] == spans.options[call]["span"] == spans.options[call]["trace"]
    assert spans.options[phase]["nonce"] == int(spans.options[phase]["span"], 16)
    assert spans.options[phase]["clients"] == 2


def test_a_call_is_within_the_span_that_is_open_where_it_is_called(spans: Spans) -> None:
    with use_language_tracing(), tracing.span("train", "round 1"):
        double_all([1])
    assert [path for path, _ in spans.ended] == [
        "/train round 1/call double_all/phase double",
        "/train round 1/call double_all",
        "/train round 1",
    ]


def test_nothing_is_traced_until_somebody_asks_for_it_and_after_that_has_ended(spans: Spans) -> None:
    double_all([1])
    use_language_tracing().remove()
    double_all([1])
    assert spans.ended == []


def test_a_call_that_fails_ends_its_spans_with_the_name_of_the_error(spans: Spans) -> None:
    with use_language_tracing(), pytest.raises(fedstack.FedstackError):
        double_all([-1])
    assert [error for _, error in spans.ended] == ["LeafError", "LeafError"]


def test_spans_of_a_worker_are_within_those_of_its_client(spans: Spans) -> None:
    service = ExecutorService(fedstack.local_executor_factory())
    stub = ExecutorStub(InMemoryConnection(service, "there"))
    context = SyncExecutionContext(fedstack.remote_executor_factory([stub]))
    with context, fedstack.use_context(context), use_language_tracing():
        double_all([1])
    io_loop.run_sync(service.close())
    part = "/call double_all/phase double/phase double"
    assert {path for path, _ in spans.ended} >= {part, f"{part}/phase double"}
    assert spans.options[part]["worker"] == "there"
    assert spans.options[f"{part}/phase double"]["parent"] == spans.options[part]["span"]


def test_a_provider_that_raises_is_told_of_once_and_harms_nothing(
    spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Spans):
        def span(self, *arguments: Any, **named: Any) -> Any:
            raise OSError("no collector")

    tracing.set_tracing_providers([Broken()])
    with use_language_tracing():
        assert double_all([1]) == double_all([1]) == 2
    (record,) = caplog.records
    assert "The observer LanguageTracing raised OSError: no collector; the observer was removed" in record.getMessage()


def test_providers_may_be_set_anew_while_a_call_runs(spans: Spans) -> None:
    others = [Spans(), Spans()]

    @fedstack.python_computation([np.int32], np.int32)
    def set_anew(x: Any) -> Any:
        tracing.set_tracing_providers(others)
        return np.int32(double_all([x]))

    @fl.federated_computation(INTS)
    def set_anew_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(set_anew, values)

    with use_language_tracing():
        assert set_anew_all([3]) == [6]
    assert len(spans.ended) == 2
    assert [len(other.ended) for other in others] == [2, 2]
