"""Workers that run client phases, as members: what they can do."""

from typing import TypeAlias

import attrs

from fedstack.membership.member import Member
from fedstack.membership.membership import Membership
from fedstack.transport.peers.executor_stub import ExecutorStub


@attrs.frozen
class Features:
    """What a worker can do, as it has said itself.

    Attributes:
      phases: Whether it runs whole client phases.
      searches: Whether it looks for clients that end its process, in processes of its own.
      threads: How many functions it runs at the same time at most; `None` if it does not say.
    """

    phases: bool = False
    searches: bool = False
    threads: int | None = None


@attrs.define(eq=False, repr=False)
class Worker(Member[ExecutorStub]):
    """A worker.

    Attributes:
      features: What it can do, as it said when it last answered.
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
