"""Reports events of calls, phases, workers and sessions to observers. Without an observer, no events are created.

>>> from fedstack.observe import CallEnded, Observer, add_observer
>>> class Timer(Observer):
...     def observe(self, event):
...         if isinstance(event, CallEnded):
...             print(event.computation, event.seconds)
>>> with add_observer(Timer()):
...     pass  # call computations
"""

from fedstack.observe.client_events import (
    ClientFailed,
    ClientsChanged,
    ClientsHandedIn,
    ClientsRan,
    ClientsRetried,
    ClientsTakenOver,
)
from fedstack.observe.events import (
    CallEnded,
    CallRetried,
    CallStarted,
    Event,
    Folded,
    LeafCompiled,
    LeafLoaded,
    LoopStalled,
    PhaseEnded,
    PhaseStarted,
    RpcEnded,
    SessionClosed,
    SessionOpened,
    WorkCancelled,
    WorkerLost,
    WorkerReady,
)
from fedstack.observe.observers import Observer, Subscription, add_observer
from fedstack.observe.telemetry import export_to_opentelemetry
from fedstack.observe.trace_file import trace_to

__all__ = [
    "CallEnded",
    "CallRetried",
    "CallStarted",
    "ClientFailed",
    "ClientsChanged",
    "ClientsHandedIn",
    "ClientsRan",
    "ClientsRetried",
    "ClientsTakenOver",
    "Event",
    "Folded",
    "LeafCompiled",
    "LeafLoaded",
    "LoopStalled",
    "Observer",
    "PhaseEnded",
    "PhaseStarted",
    "RpcEnded",
    "SessionClosed",
    "SessionOpened",
    "Subscription",
    "WorkCancelled",
    "WorkerLost",
    "WorkerReady",
    "add_observer",
    "export_to_opentelemetry",
    "trace_to",
]
