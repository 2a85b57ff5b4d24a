"""Refuses peers that know a commit that the journal lacks, and sends the latest commit to all other peers."""

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
    """Checks the commits in peers' requests against the journal.

    Args:
      journal: The journal.
      run: Runs work on the thread of the journal's tables.
      on_loss: Called after all passes have ended because the journal has lost commits.
    """

    def __init__(
        self, journal: Journal, run: Callable[[Callable[[], bool]], Awaitable[bool]], on_loss: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._run = run
        self._on_loss = on_loss

    def checked(self, handle: Callable[[_Q], Awaitable[_A]]) -> Callable[[_Q], Awaitable[_A]]:
        """Returns a handler that refuses requests with unknown commits and adds the latest commit to responses."""

        async def run(request: _Q) -> _A:
            await self.check(request.commit)
            try:
                response = await handle(request)
            except StaleSessionError:
                await self.check(request.commit)  # the loss of a commit is a more precise reason
                raise
            response.commit.CopyFrom(self._journal.commit)
            return response

        return run

    async def check(self, heard: messages.Commit) -> None:
        """Checks that the journal contains a commit that a peer knows.

        Raises:
          StaleSessionError: If the journal does not contain the commit. If the journal has lost the commit, all passes
            are ended before the error is raised.
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
        """Ends all passes, because their remaining ranges may already have been read, which cannot be detected."""
        if self._journal.standing(heard) is not Standing.LOST:  # another request has reported the loss in the meantime
            return False
        self._journal.begin_anew(passes.end_all)
        return True

    def __repr__(self) -> str:
        return f"<HeardCommits of {self._journal!r}>"
