"""Defines workers that run client phases, as members, and their features."""

from typing import TypeAlias

import attrs

from fedstack.membership.member import Member
from fedstack.membership.membership import Membership
from fedstack.transport.peers.executor_stub import ExecutorStub


@attrs.frozen
class Features:
    """A worker's capabilities, as it reports them.

    Attributes:
      phases: Whether it runs whole client phases.
      searches: Whether it searches for clients that end its process, in its own child processes.
      threads: The most functions that it runs at the same time; `None` if it does not report it.
    """

    phases: bool = False
    searches: bool = False
    threads: int | None = None


@attrs.define(eq=False, repr=False)
class Worker(Member[ExecutorStub]):
    """A worker.

    Attributes:
      features: Its capabilities, as reported in its last answer.
    """

    features: Features = Features()

    async def ask(self) -> None:
        peer = await self.stub.handshake()
        if peer is None:
            self.features = Features()
        else:
            searches = peer.isolates and not peer.same_process
            self.features = Features(peer.phases, searches=searches, threads=peer.threads or None)


Workers: TypeAlias = Membership[Worker]
