"""Refuses peers that have heard of commits missing from the journal, and sends others its latest commit."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fedstack.errors import StaleSessionError
from fedstack.proto import data_service_pb2 as messages
from fedstack.service.data.dispatcher import passes
from fedstack.service.data.dispatcher.journal import Journal
from fedstack.service.data.dispatcher.ledger import Standing

_Q = TypeVar("_Q", messages.OpenPassRequest, messages.TakeRequest, messages.ReleasePassRequest, messages.AttendRequest)
_A = TypeVar(
    "_A", messages.OpenPassResponse, messages.TakeResponse, messages.ReleasePassResponse, messages.AttendResponse
)
_logger = logging.getLogger(__name__)


class HeardCommits:
    """The check of the commits that peers have heard of.

    Args:
      journal: The journal.
      run: Runs work on the thread of its tables.
      on_loss: Called when all passes have ended.
    """

    def __init__(
        self, journal: Journal, run: Callable[[Callable[[], bool]], Awaitable[bool]], on_loss: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._run = run
        self._on_loss = on_loss

    def checked(self, handle: Callable[[_Q], Awaitable[_A]]) -> Callable[[_Q], Awaitable[_A]]:
        """Returns a handler that refuses requests with unknown commits and adds the latest commit to its answers."""

        async def run(request: _Q) -> _A:
            await self.check(request.commit)
            try:
                response = await handle(request)
            except StaleSessionError:
                await self.check(request.commit)  # a commit lost meanwhile is a better reason
                raise
            response.commit.CopyFrom(self._journal.commit)
            return response

        return run

    async def check(self, heard: messages.Commit) -> None:
        """Checks a commit that a peer has heard of.

        Raises:
          StaleSessionError: If the journal does not have it. If the journal has lost it, all passes have ended.
        """
        refusal = self._journal.refusal(heard)
        if refusal is None:
            return
        if self._journal.standing(heard) is Standing.LOST:
            _logger.error("%s", refusal)
            if await self._run(lambda: self._begin_anew(heard)):
                self._on_loss()
        raise StaleSessionError(refusal)

    def _begin_anew(self, heard: messages.Commit) -> bool:
        """Ends all passes: the ranges that they hand out next may have been read already, which cannot be detected."""
        if self._journal.standing(heard) is not Standing.LOST:  # another request has reported it meanwhile
            return False
        self._journal.begin_anew(passes.end_all)
        return True

    def __repr__(self) -> str:
        return f"<HeardCommits of {self._journal!r}>"
