"""Knows what runs for the clients of a service."""

import heapq
import weakref

from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.transport.wire.frames import RunningClients

_MOST_WORK = 20


class RunningWork:
    """What runs, by sessions; also what goes on although its session has ended."""

    def __init__(self) -> None:
        # Whoever works refers to the counts; when nobody does any more, there is nothing to tell.
        self._sessions: weakref.WeakKeyDictionary[ProgressCounts, str] = weakref.WeakKeyDictionary()

    def watch(self, progress: ProgressCounts, session_id: str) -> None:
        """Takes note of what counts the work of a call."""
        self._sessions[progress] = session_id

    def longest(self) -> list[tuple[RunningClients, str]]:
        """Returns what has run longest, each with the id of its session; not all of it if there is much."""
        found = [(work, session) for progress, session in list(self._sessions.items()) for work in progress.work()]
        return heapq.nlargest(_MOST_WORK, found, key=lambda pair: pair[0].seconds)

    def __repr__(self) -> str:
        return f"<RunningWork of {len(self._sessions)} calls>"
