"""Knows which commits a journal has, so that one that has lost some is found out by those who have heard of them."""

import enum
import hashlib
import hmac
from collections.abc import Mapping
from types import MappingProxyType

import attrs

from fedstack.foundations.drawn_ids import draw_id
from fedstack.proto.data_service_pb2 import Commit

_SEAL_BYTES = 16


class Standing(enum.Enum):
    """What a commit is to a journal that somebody says to have heard of."""

    KNOWN = "known"
    LOST = "lost"
    STRANGE = "strange"


@attrs.frozen(eq=False)
class Commits:
    """The commits of a journal. Their numbers go on from one to the next.

    Each process that writes begins a branch, with an id that it draws. So two journals that have commits of the same
    number and branch have all that came before, too, and one that has lost its end lacks a commit that a peer has heard
    of: its numbers do not go so far, or in another branch. A digest of all that came before would show the same, but
    takes a row for each commit in place of one for each start.

    Attributes:
      secret: What seals are made with; nobody else knows it.
      branches: The first and the last commit of each branch that has ended, by its id.
      branch: The id of the last branch.
      first: Its first commit.
      number: The latest commit.
      latest: The latest commit, for others.
    """

    secret: bytes
    branches: Mapping[bytes, tuple[int, int]] = MappingProxyType({})
    branch: bytes = b""
    first: int = 0
    number: int = 0
    latest: Commit = attrs.field(init=False, default=attrs.Factory(lambda self: _sealed(self), takes_self=True))

    def next(self) -> "Commits":
        """Returns these with one more."""
        return attrs.evolve(self, number=self.number + 1)

    def branched(self) -> "Commits":
        """Returns these with one more, the first of a new branch."""
        number, ended = self.number + 1, {self.branch: (self.first, self.number)} if self.branch else {}
        return attrs.evolve(self, branches={**self.branches, **ended}, branch=draw_id(), first=number, number=number)

    def standing(self, commit: Commit) -> Standing:
        """Returns what a commit is here.

        A sealed one that is not here has been lost, with all that came after it. Where branches are no longer kept that
        cannot be told.
        """
        if not hmac.compare_digest(commit.seal, _seal(self.secret, commit.number, commit.branch)):
            return Standing.STRANGE
        last = {self.branch: (self.first, self.number)}
        first, end = last.get(commit.branch) or self.branches.get(commit.branch, (1, 0))
        if first <= commit.number <= end:
            return Standing.KNOWN
        oldest = min((first for first, _ in self.branches.values()), default=self.first)
        return Standing.STRANGE if commit.number < oldest else Standing.LOST


def _sealed(commits: Commits) -> Commit:
    number, branch = commits.number, commits.branch
    return Commit(number=number, branch=branch, seal=_seal(commits.secret, number, branch))


def _seal(secret: bytes, number: int, branch: bytes) -> bytes:
    return hmac.digest(secret, number.to_bytes(8, "big") + branch, hashlib.sha256)[:_SEAL_BYTES]
