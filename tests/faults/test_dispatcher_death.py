"""A dispatcher in a process of its own that is killed while consumers take from it, and started again."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dispatching import EXACTLY_ONCE, Consumer, Peer, splits
from free_ports import free_port
from serving import Server, served

from fedstack.errors import StaleSessionError
from fedstack.membership.reaching import answered
from fedstack.proto import data_service_pb2 as messages

pytestmark = pytest.mark.slow
SPLITS = 3000


class Taking:
    """A consumer that takes on its own thread, and looks for the dispatcher when that is away."""

    def __init__(self, peer: Peer, digest: bytes, name: bytes) -> None:
        self.consumer = Consumer(peer, digest, name, job_name="shared", guarantee=EXACTLY_ONCE)
        self.ranges: list[messages.SplitRange] = []
        self.losses: list[Exception] = []
        self.error: BaseException | None = None
        self.half_way = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            number, finished = self.consumer.number, list[int]()
            while True:
                request = messages.TakeRequest(
                    commit=self.consumer.opened.commit,
                    pass_id=self.consumer.opened.pass_id,
                    consumer=self.consumer.name,
                    number=number,
                    want=1,
                    finished=finished,
                    wait_seconds=1.0,
                )
                answer = self.consumer.peer.ask(
                    lambda stub, request=request: answered(stub, lambda: stub.take(request), 30.0, self.losses.append)
                )
                number, finished = number + 1, [one.id for one in answer.range]
                self.ranges += answer.range
                if sum(one.last - one.first for one in self.ranges) > SPLITS / 8:
                    self.half_way.set()
                if answer.is_exhausted:
                    return
        except BaseException as error:
            self.error = error
        finally:
            self.half_way.set()

    def result(self) -> list[messages.SplitRange]:
        self._thread.join(60)
        if self.error is not None:
            raise self.error
        return self.ranges


def again(server: Server, *arguments: object) -> "Iterator[Server]":
    """Kills a dispatcher, and starts another one at its port."""
    server.process.kill()
    server.process.wait()
    return served("--port", server.target.rpartition(":")[2], *arguments)


def test_a_dispatcher_that_is_killed_and_started_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    arguments = "--data-dispatcher", "--work-dir", tmp_path
    with served(*arguments, "--port", free_port()) as first, Peer(first.target) as peer:
        for worker in (b"v", b"w"):
            peer.attend(worker)
        digest = peer.register(num_splits=SPLITS)
        consumers = [Taking(peer, digest, name) for name in (b"a", b"b")]
        consumers[0].half_way.wait(30)
        with again(first, *arguments) as second, again(second, *arguments):
            ranges = [one for consumer in consumers for one in consumer.result()]
        assert splits(ranges) == list(range(SPLITS))


@pytest.mark.long
def test_a_dispatcher_without_a_journal_says_so_when_it_was_started_again() -> None:
    with served("--data-dispatcher", "--port", free_port()) as first, Peer(first.target) as peer:
        consumer = Consumer(peer, peer.register())
        with again(first, "--data-dispatcher"):
            assert consumer.last is None
            request = messages.TakeRequest(commit=consumer.opened.commit, pass_id=consumer.opened.pass_id)
            with pytest.raises(StaleSessionError, match="without a journal"):
                peer.ask(lambda stub: answered(stub, lambda: stub.take(request), 30.0))
