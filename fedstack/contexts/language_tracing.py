"""Reports calls and phases as spans to the tracing providers of Federated Language."""

import contextlib
from collections.abc import Generator
from typing import TypeAlias

from fedstack.computations.types.language import (
    TracedFunctionThrew,
    TracedSpan,
    TraceResult,
    current_tracing_yields,
    tracing_providers,
)
from fedstack.errors import FedstackError
from fedstack.observe.events import CallEnded, CallStarted, Event, PhaseEnded, PhaseStarted
from fedstack.observe.observers import Observer, Subscription, add_observer

# An open span of a provider, and the value that its generator has yielded, which is the parent of inner spans.
_Open: TypeAlias = tuple[Generator[object, TraceResult, None], object]


def use_language_tracing() -> Subscription:
    """Starts reporting calls and client phases as spans to the tracing providers of Federated Language.

    Set the providers with `federated_language.common_libs.tracing.set_tracing_providers`. The span of a call is a child
    of the span that is open at the call, and the spans of the call's phases are children of the call's span. The
    `trace_opts` of a span contain the ids `trace`, `span` and `parent`, which connect spans across processes; call this
    function on workers, too. Providers are called on the thread that emits the event.

    Returns:
      A context manager that ends the tracing at the end of its block. Its `remove` method ends the tracing as well.
    """
    return add_observer(LanguageTracing(), direct=True)


class LanguageTracing(Observer):
    """Opens and closes a span for each call and each phase; see `use_language_tracing`."""

    def __init__(self) -> None:
        self._open: dict[str, list[_Open]] = {}  # by span id

    def observe(self, event: Event) -> None:
        match event:
            case CallStarted(call=span, computation=name):
                self._begin(event, span, "fedstack.call", name, {})
            case PhaseStarted(phase=span, functions=name, first_client=first, clients=clients, worker=worker):
                options: dict[str, object] = {"first_client": first, "clients": clients, "worker": worker}
                self._begin(event, span, "fedstack.phase", name, options)
            case CallEnded(call=span, error=error) | PhaseEnded(phase=span, error=error):
                self._end(span, error)
            case _:
                pass

    def _begin(self, event: Event, span: str, scope: str, name: str, options: dict[str, object]) -> None:
        providers = tracing_providers()
        parents = [parent for _, parent in self._open.get(event.parent, [])] or current_tracing_yields()
        if len(parents) != len(providers):  # the providers were replaced after the parent span began
            parents = [None] * len(providers)
        options |= {"trace": event.trace, "span": span, "parent": event.parent}
        opened = self._open.setdefault(span, [])
        for provider, parent in zip(providers, parents):
            generator = provider.span(scope, name, int(span, 16), parent, None, None, options)
            opened.append((generator, next(generator)))

    def _end(self, span: str, error: str) -> None:
        for generator, _ in reversed(self._open.pop(span, [])):
            # Events contain only the name of an error.
            result = TracedFunctionThrew(FedstackError, FedstackError(error), None) if error else TracedSpan()
            with contextlib.suppress(StopIteration):
                generator.send(result)
