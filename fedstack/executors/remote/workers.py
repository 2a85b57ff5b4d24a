"""Defines workers that run client phases, and the features that these workers report."""

from typing import TypeAlias

import attrs

from fedstack.membership.member import Member
from fedstack.membership.membership import Membership
from fedstack.transport.peers.executor_stub import ExecutorStub


@attrs.frozen
class Features:
    """The capabilities that a worker reports.

    Attributes:
      phases: Whether the worker runs whole client phases.
      searches: Whether the worker can search, in child processes, for clients that crash its process.
      threads: The maximum number of functions that the worker runs at the same time; `None` if it is not reported.
    """

    phases: bool = False
    searches: bool = False
    threads: int | None = None


@attrs.define(eq=False, repr=False)
class Worker(Member[ExecutorStub]):
    """A worker that runs client phases.

    Attributes:
      features: The capabilities that the worker reported in its last response.
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
